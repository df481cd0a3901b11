"""Tool policies in forks of sessions: what is sent is counted in a file, and not in a journal."""

import asyncio
import shutil
from pathlib import Path
from typing import Any, Final, Literal

import pytest

import satay
from satay.errors import NeedsDecisionError, TaskBlockedError
from satay.model import EntryType
from satay.testing import AppUnderTest, Faults, ManualClock, open_app
from tests.corpus import NEVER_SECONDS
from tests.driving import entries_of, types_of
from tests.mailings import letters, post

pytestmark = pytest.mark.anyio

TOOL: Final = "email.send"
EFFECTS: Final = (None, "pure", "idempotent", "external")
POLICIES: Final = ("auto", "replay", "block", "live")

KEYS: Final = ("match", "mismatch", "new", "in flight")
"""A call that the fork inherits; one with other arguments; one that is new; one that was outstanding at the cut."""

SENT: Final[dict[str, dict[str, str]]] = {
    "auto": {"match": "replayed", "mismatch": "claimed", "new": "claimed", "in flight": "reclaimed"},
    "replay": {"match": "replayed", "mismatch": "blocked", "new": "blocked", "in flight": "blocked"},
    "block": {"match": "replayed", "mismatch": "blocked", "new": "blocked", "in flight": "blocked"},
    "live": {"match": "claimed", "mismatch": "claimed", "new": "claimed", "in flight": "claimed"},
}
"""By policy, what becomes of each of the calls in the fork."""

effects = pytest.mark.parametrize("effect", EFFECTS)
policies = pytest.mark.parametrize("policy", POLICIES)


class Mailer:
    """Sends letters into a file. While it is closed, none goes out."""

    def __init__(self, outbox: Path) -> None:
        self.outbox = outbox
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.begun = asyncio.Event()

    async def send(self, to: str) -> str:
        self.begun.set()
        await self.is_open.wait()
        post(str(self.outbox), to)
        return f"sent to {to}"

    def send_now(self, to: str) -> str:
        post(str(self.outbox), to)
        return f"sent to {to}"


def call(session: satay.Session, mailer: Mailer, key: str, to: str, effect: Any) -> Any:
    return session.call(TOOL, mailer.send, to, key=key, effect=effect)


async def record_source(mailer: Mailer, effect: Any) -> None:
    """A session of which step 1 has two calls behind it, and one that outlasts it."""
    async with satay.Session("source", state_fn=dict) as session:
        await call(session, mailer, "match", "match", effect)
        await call(session, mailer, "mismatch", "mismatch", effect)
        mailer.is_open.clear()
        mailer.begun.clear()
        outlasting = asyncio.ensure_future(call(session, mailer, "in flight", "in flight", effect))
        await mailer.begun.wait()
        await session.step("one")
        mailer.is_open.set()
        await outlasting
        await call(session, mailer, "new", "in the source", effect)
        await session.step("two")


def argument(key: str) -> str:
    """What the fork makes its call with."""
    return "another address" if key == "mismatch" else key


async def fate(session: satay.Session, mailer: Mailer, key: str, effect: Any) -> str:
    """What becomes of a call in the fork."""
    try:
        receipt = await call(session, mailer, key, argument(key), effect)
    except TaskBlockedError:
        return "blocked"
    except NeedsDecisionError:
        return "undecided"
    assert f"sent to {argument(key)}" == receipt.result
    return str(receipt.status)


def expected_fates(policy: str, effect: Any) -> dict[str, str]:
    expected = dict(SENT[policy])
    if policy == "auto" and effect == "external":
        expected["in flight"] = "undecided"
    return expected


def went_out(fates: dict[str, str]) -> list[str]:
    """The letters that calls with these fates sent."""
    return sorted(argument(key) for key, how in fates.items() if how in ("claimed", "reclaimed"))


async def make_fork(app: AppUnderTest, policy: str, source: str = "source", name: str = "fork") -> satay.Session:
    session = await satay.Session.resume(source, fork_at_step=1, name=name, tool_policies={TOOL: policy}, state_fn=dict)
    assert policy == (session.receipt and session.receipt.tool_policies[TOOL])
    return session


# --- every policy, every call -----------------------------------------------------------------------------------------


@policies
@effects
async def test_each_call_fares_as_its_policy_says(policy: str, effect: Any, tmp_path: Path) -> None:
    mailer = Mailer(tmp_path / "outbox")
    async with open_app(tmp_path / "journal", poll_seconds=NEVER_SECONDS) as app:
        await record_source(mailer, effect)
        sent = letters(mailer.outbox)
        async with await make_fork(app, policy) as fork:
            fates = {key: await fate(fork, mailer, key, effect) for key in KEYS}
            again = {key: await fate(fork, mailer, key, effect) for key in KEYS}
        blocked = (await types_of(app, "fork")).count("TaskBlocked")
        compared = [
            str(side.other.state)
            for side in (await satay.compare("source", "fork")).calls
            if side.other is not None and side.identity.name == TOOL
        ]

        assert expected_fates(policy, effect) == fates
        assert {
            key: how.replace("reclaimed", "replayed").replace("claimed", "replayed") for key, how in fates.items()
        } == again
        assert went_out(fates) == sorted(letters(mailer.outbox)[len(sent) :])
        assert blocked == list(fates.values()).count("blocked") == compared.count("blocked")
        assert (await satay.verify("fork")).is_intact


@effects
async def test_without_a_policy_only_external_calls_are_refused(effect: Any, tmp_path: Path) -> None:
    mailer = Mailer(tmp_path / "outbox")
    async with open_app(tmp_path / "journal", poll_seconds=NEVER_SECONDS):
        await record_source(mailer, effect)
        async with satay.Session.resume("source", fork_at_step=1, name="fork") as fork:
            fates = {key: await fate(fork, mailer, key, effect) for key in KEYS}

        assert expected_fates("block" if effect == "external" else "auto", effect) == fates


@policies
async def test_a_policy_for_every_tool_gives_way_to_one_by_name(policy: str, tmp_path: Path) -> None:
    mailer = Mailer(tmp_path / "outbox")
    async with open_app(tmp_path / "journal", poll_seconds=NEVER_SECONDS):
        await record_source(mailer, None)
        wide = {"*": policy, TOOL: "auto"}
        async with satay.Session.resume("source", fork_at_step=1, name="a", tool_policies=wide) as fork:
            by_name = {key: await fate(fork, mailer, key, None) for key in KEYS}
        async with satay.Session.resume("source", fork_at_step=1, name="b", tool_policies={"*": policy}) as fork:
            by_star = {key: await fate(fork, mailer, key, None) for key in KEYS}

        assert (SENT["auto"], SENT[policy]) == (by_name, by_star)


@policies
@effects
async def test_calls_that_are_made_at_once_fare_as_those_one_by_one(policy: str, effect: Any, tmp_path: Path) -> None:
    mailer = Mailer(tmp_path / "outbox")
    async with open_app(tmp_path / "journal", poll_seconds=NEVER_SECONDS) as app:
        await record_source(mailer, effect)
        sent = letters(mailer.outbox)
        async with await make_fork(app, policy) as fork:
            found = await asyncio.gather(*(fate(fork, mailer, key, effect) for key in KEYS))
            fates = dict(zip(KEYS, found, strict=True))

        assert expected_fates(policy, effect) == fates
        assert went_out(fates) == sorted(letters(mailer.outbox)[len(sent) :])


# --- forks of forks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", POLICIES)
@policies
async def test_a_fork_of_a_fork_goes_by_its_own_policy(first: str, policy: str, tmp_path: Path) -> None:
    mailer = Mailer(tmp_path / "outbox")
    async with open_app(tmp_path / "journal", poll_seconds=NEVER_SECONDS) as app:
        await record_source(mailer, None)
        async with await make_fork(app, first) as fork:
            before = {key: await fate(fork, mailer, key, None) for key in KEYS}
            await fork.step("two of the fork")
        second = await satay.Session.resume("fork", fork_at_step=2, name="second", tool_policies={TOOL: policy})
        async with second:
            sent = len(letters(mailer.outbox))
            fates = {key: await fate(second, mailer, key, None) for key in KEYS}

        # What was refused in the first fork has no outcome that the second could inherit.
        refused = "blocked" if policy in ("replay", "block") else "claimed"
        inherited = "claimed" if policy == "live" else "replayed"
        assert {key: refused if before[key] == "blocked" else inherited for key in KEYS} == fates
        assert went_out(fates) == sorted(letters(mailer.outbox)[sent:])


@pytest.mark.parametrize("policy", ["replay", "block"])
async def test_a_fork_of_a_fork_inherits_its_policies(policy: str, tmp_path: Path) -> None:
    mailer = Mailer(tmp_path / "outbox")
    async with open_app(tmp_path / "journal", poll_seconds=NEVER_SECONDS) as app:
        await record_source(mailer, None)
        source = "source"
        for depth in range(1, 13):
            async with satay.Session.resume(
                source,
                fork_at_step=depth,
                name=f"f{depth}",
                tool_policies={TOOL: policy} if depth == 1 else None,
                state_fn=dict,
            ) as fork:
                sent = len(letters(mailer.outbox))
                fates = {key: await fate(fork, mailer, key, "external") for key in KEYS}
                await fork.step("own")

            assert (SENT[policy], sent) == (fates, len(letters(mailer.outbox)))
            source = f"f{depth}"
        assert 3 * 12 == (await types_of(app, "f12")).count("TaskBlocked")


# --- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", [None, "external"])
@pytest.mark.parametrize("policy", ["replay", "block"])
async def test_nothing_is_sent_under_block_and_replay_whatever_entry_a_crash_comes_after(
    policy: str, effect: Any, tmp_path: Path
) -> None:
    crashes = await fork_crashing_everywhere(policy, effect, tmp_path)

    for sent, fates in crashes:
        assert ([], expected_fates(policy, effect)) == (sent, fates)
    assert 7 <= len(crashes)


@pytest.mark.parametrize("policy", ["auto", "live"])
async def test_an_external_call_goes_out_at_most_once_unless_somebody_decides_whatever_entry_a_crash_comes_after(
    policy: str, tmp_path: Path
) -> None:
    crashes = await fork_crashing_everywhere(policy, "external", tmp_path)

    for sent, fates in crashes:
        assert len(set(sent)) == len(sent)
        assert all(argument(key) in sent for key, how in fates.items() if how in ("claimed", "reclaimed"))
    assert 7 <= len(crashes)


@pytest.mark.parametrize("policy", ["auto", "live"])
async def test_a_call_that_may_be_repeated_goes_out_at_least_once_whatever_entry_a_crash_comes_after(
    policy: str, tmp_path: Path
) -> None:
    crashes = await fork_crashing_everywhere(policy, "idempotent", tmp_path)

    expected = [argument(key) for key, how in SENT[policy].items() if how != "replayed"]
    for sent, _ in crashes:
        assert set(expected) == set(sent)
        assert len(sent) <= len(expected) + 1
    assert 7 <= len(crashes)


async def fork_crashing_everywhere(policy: str, effect: Any, place: Path) -> list[tuple[list[str], dict[str, str]]]:
    """Go on with a fork, with a crash after each of its entries in turn, and then to the end.

    For each crash, what went out before and after it, and the fates of the calls after it.
    """
    mailer = Mailer(place / "outbox")
    async with open_app(place / "source", poll_seconds=NEVER_SECONDS) as app:
        await record_source(mailer, effect)
        await make_fork(app, policy)
    found: list[tuple[list[str], dict[str, str]]] = []
    while True:
        copy = place / str(len(found))
        shutil.copytree(place / "source", copy)
        mailer.outbox.unlink()
        faults = Faults().crash_after(entries=len(found) + 1)
        async with open_app(copy, faults=faults, poll_seconds=NEVER_SECONDS):
            working = asyncio.ensure_future(go_on(mailer, effect))
            await asyncio.wait((working, faults.crashed), return_when=asyncio.FIRST_COMPLETED)
            working.cancel()
            await asyncio.wait((working,))
        if not faults.is_crashed:
            return found
        async with open_app(copy, clock=ManualClock(autojump=True), poll_seconds=NEVER_SECONDS):
            fates = await go_on(mailer, effect)
            assert (await satay.verify("fork")).is_intact
        post(str(mailer.outbox), "end")
        found.append((letters(mailer.outbox)[:-1], fates))


async def go_on(mailer: Mailer, effect: Any) -> dict[str, str]:
    async with satay.Session.resume("fork") as fork:
        fates = {}
        for key in KEYS:
            fates[key] = await fate(fork, mailer, key, effect)
        if fork.last_step == 1:
            await fork.step("two of the fork")
        return fates


# --- what is recorded -------------------------------------------------------------------------------------------------


async def test_a_refusal_says_in_the_journal_what_refused_it(tmp_path: Path) -> None:
    mailer = Mailer(tmp_path / "outbox")
    async with open_app(tmp_path / "journal", poll_seconds=NEVER_SECONDS) as app:
        await record_source(mailer, None)
        async with await make_fork(app, "block") as fork:
            with pytest.raises(TaskBlockedError) as refused:
                await call(fork, mailer, "new", "new", None)
        blocked = [entry for entry in await entries_of(app, "fork") if entry.type == EntryType.TASK_BLOCKED]

        assert ["block"] == [entry.data["refusal"]["policy"] for entry in blocked]
        assert (TOOL, "block", "after step 1", "fork") == (
            refused.value.task,
            refused.value.policy,
            refused.value.cut,
            refused.value.fork_id,
        )
        assert fork.receipt is not None
        assert fork.receipt.receipt_id == refused.value.receipt_id


async def test_the_trail_of_a_fork_has_the_inherited_call_and_the_one_that_was_made_anew(tmp_path: Path) -> None:
    mailer = Mailer(tmp_path / "outbox")
    async with open_app(tmp_path / "journal", poll_seconds=NEVER_SECONDS) as app:
        await record_source(mailer, None)
        async with await make_fork(app, "block") as fork:
            for key in KEYS:
                await fate(fork, mailer, key, None)
        trail = await satay.decision_trail("fork")

        assert [
            (f"{TOOL}[match]", "completed", True),
            (f"{TOOL}[mismatch]", "completed", True),
            (f"{TOOL}[in flight]", "blocked", False),
            (f"{TOOL}[mismatch]", "blocked", False),
            (f"{TOOL}[new]", "blocked", False),
        ] == [(str(call.identity), str(call.side.state), call.is_inherited) for call in trail.calls]


@pytest.mark.parametrize("decision", ["rerun", "fail", "value"])
async def test_an_external_call_that_was_outstanding_at_the_cut_is_decided_in_the_fork_alone(
    decision: Literal["rerun", "fail", "value"], tmp_path: Path
) -> None:
    mailer = Mailer(tmp_path / "outbox")
    async with open_app(tmp_path / "journal", poll_seconds=NEVER_SECONDS) as app:
        await record_source(mailer, "external")
        before = await entries_of(app, "source")
        sent = len(letters(mailer.outbox))
        async with await make_fork(app, "auto") as fork:
            assert "undecided" == await fate(fork, mailer, "in flight", "external")
            if decision == "value":
                await satay.decide("fork", value="sent to in flight")
            else:
                await satay.decide("fork", decision)
            if decision == "fail":
                with pytest.raises(satay.errors.TaskCrashedError):
                    await fate(fork, mailer, "in flight", "external")
            else:
                assert "reclaimed" == await fate(fork, mailer, "in flight", "external")

        assert (decision == "rerun") == (sent < len(letters(mailer.outbox)))
        assert before == await entries_of(app, "source")


async def test_a_plain_function_is_refused_before_it_gets_a_thread(tmp_path: Path) -> None:
    mailer = Mailer(tmp_path / "outbox")
    async with open_app(tmp_path / "journal", poll_seconds=NEVER_SECONDS) as app:
        await record_source(mailer, None)
        sent = letters(mailer.outbox)
        async with await make_fork(app, "block") as fork:
            with pytest.raises(TaskBlockedError):
                await fork.call(TOOL, mailer.send_now, "ada", key="ada")

        assert sent == letters(mailer.outbox)


async def test_a_fork_blocks_a_tool_that_its_source_never_called(tmp_path: Path) -> None:
    mailer = Mailer(tmp_path / "outbox")
    async with open_app(tmp_path):
        async with satay.Session("s", state_fn=lambda: 1) as session:
            await session.step("plan")
        fork = await satay.Session.resume("s", fork_at_step=1, name="f", tool_policies={TOOL: "block", "*": "auto"})
        async with fork:
            with pytest.raises(TaskBlockedError):
                await call(fork, mailer, "welcome", "ada", None)
            fork.pause()
        async with satay.Session.resume("s") as session:
            await session.call(TOOL + "s", mailer.send, "bob")
        again = await satay.Session.resume("s", fork_at_step=1, name="f", tool_policies={TOOL: "block", "*": "auto"})

    assert ["bob"] == letters(tmp_path / "outbox")
    assert again.receipt is not None
    assert again.receipt.replayed


@pytest.mark.parametrize(("policy", "sent"), [("auto", ["ada"]), ("live", ["ada"]), ("block", []), ("replay", [])])
async def test_a_session_that_is_opened_in_the_block_of_a_fork_calls_nothing_that_the_fork_may_not(
    policy: str, sent: list[str], tmp_path: Path
) -> None:
    mailer = Mailer(tmp_path / "outbox")
    async with open_app(tmp_path):
        async with satay.Session("s", state_fn=lambda: 1) as session:
            await session.step("plan")
            fork = await session.fork(name="f", tool_policies={TOOL: policy, "*": "auto"})
        async with fork, satay.Session("another") as between, satay.Session("assistant") as inner:
            if sent:
                await call(inner, mailer, "welcome", "ada", None)
            else:
                with pytest.raises(TaskBlockedError, match="another session called it"):
                    await call(inner, mailer, "welcome", "ada", None)
            await between.call("search", mailer.send, "bob")

    assert [*sent, "bob"] == letters(tmp_path / "outbox")


async def test_a_fork_that_is_opened_in_the_block_of_its_source_has_policies_of_its_own(tmp_path: Path) -> None:
    mailer = Mailer(tmp_path / "outbox")
    async with open_app(tmp_path):
        async with satay.Session("s", state_fn=lambda: 1) as session:
            await session.step("plan")
            careful = await session.fork(name="careful", tool_policies={TOOL: "block"})
        async with careful:
            bold = await careful.fork(name="bold", tool_policies={TOOL: "live"})
            async with bold:
                await call(bold, mailer, "welcome", "ada", None)

    assert ["ada"] == letters(tmp_path / "outbox")
