"""A value of a wrong type, for any parameter of a public function, is one error of satay's, and nothing is written."""

import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

import satay
from satay.errors import SatayError
from satay.requests import ForkOptions
from satay.testing import AppUnderTest, open_app
from tests.driving import in_loop

VALUES: Final[tuple[Any, ...]] = (
    5,
    1.5,
    -3,
    float("nan"),
    "\ud800",
    b"x",
    True,
    None,
    object(),
    (5,),
    [5],
    {5: 5},
    int,
)
"""Values of every sort; which of them a parameter takes is said where it is listed."""


async def plain() -> None: ...


@satay.task(name="wrong_types.echo")
async def echo(value: int) -> int:
    return value


@satay.workflow(name="wrong_types.simple")
async def simple(value: int = 1) -> int:
    return await echo(value)


def context() -> satay.TaskContext:
    return satay.TaskContext("r", "t", 0, None, 1, "k", "f")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_none(value: Any) -> bool:
    return value is None


def is_amount(value: Any) -> bool:
    return is_number(value) and value >= 0


def nothing(value: Any) -> bool:
    return False


def one_of(*checks: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: any(check(value) for check in checks)


Parameter = tuple[Callable[[Any], Any], Callable[[Any], bool]]
"""A call that gives a value for the parameter, and whether the parameter takes the value."""

DEFINING: Final[dict[str, Parameter]] = {
    "task.fn": (lambda v: satay.task(v), is_none),
    "task.name": (lambda v: satay.task(name=v)(plain), is_none),
    "task.retries": (lambda v: satay.task(retries=v)(plain), is_count),
    "task.backoff": (lambda v: satay.task(backoff=v)(plain), one_of(is_number, is_none)),
    "task.timeout": (lambda v: satay.task(timeout=v)(plain), one_of(is_number, is_none)),
    "task.retry_on": (lambda v: satay.task(retry_on=v)(plain), nothing),
    "task.no_retry_on": (lambda v: satay.task(no_retry_on=v)(plain), nothing),
    "task.effect": (lambda v: satay.task(effect=v)(plain), is_none),
    "task.codec": (lambda v: satay.task(codec=v)(plain), nothing),
    "workflow.fn": (lambda v: satay.workflow(v), is_none),
    "workflow.name": (lambda v: satay.workflow(name=v)(plain), is_none),
    "effect.fn": (lambda v: satay.effect(v, name="n"), callable),
    "effect.name": (lambda v: satay.effect(plain, name=v), one_of(is_none, is_text)),
    "effect.effect": (lambda v: satay.effect(plain, effect=v), is_none),
    "effect.retries": (lambda v: satay.effect(plain, retries=v), is_count),
    "effect.backoff": (lambda v: satay.effect(plain, backoff=v), one_of(is_number, is_none)),
    "effect.timeout": (lambda v: satay.effect(plain, timeout=v), one_of(is_number, is_none)),
    "session.session_id": (lambda v: satay.session(v), one_of(is_text, callable)),
    "session.state_fn": (lambda v: satay.session("s", state_fn=v), one_of(is_none, callable)),
    "session.state_interval": (lambda v: satay.session("s", state_interval=v), is_count),
    "Backoff.first": (lambda v: satay.Backoff(first=v), is_amount),
    "Backoff.factor": (lambda v: satay.Backoff(factor=v), is_amount),
    "Backoff.longest": (lambda v: satay.Backoff(longest=v), is_amount),
    "Backoff.jitter": (lambda v: satay.Backoff(jitter=v), is_flag),
    "record_usage.model": (lambda v: context().record_usage(model=v), is_text),
    "record_usage.input_tokens": (lambda v: context().record_usage(model="m", input_tokens=v), is_count),
    "record_usage.output_tokens": (lambda v: context().record_usage(model="m", output_tokens=v), is_count),
    "record_usage.cost": (lambda v: context().record_usage(model="m", cost=v), is_amount),
    "run_app.url": (lambda v: satay.run_app(v), one_of(is_text, is_none)),
    "run_app.data_dir": (lambda v: satay.run_app(data_dir=v), one_of(is_text, is_none)),
    "run_app.recover": (lambda v: satay.run_app(recover=v), is_flag),
    "run_app.nondeterminism": (lambda v: satay.run_app(nondeterminism=v), is_none),
    "run_app.synchronous": (lambda v: satay.run_app(synchronous=v), is_none),
    "run_app.allow_pickle": (lambda v: satay.run_app(allow_pickle=v), one_of(is_flag, is_none)),
    "run_app.lease_seconds": (lambda v: satay.run_app(lease_seconds=v), is_amount),
    "run_app.poll_seconds": (lambda v: satay.run_app(poll_seconds=v), is_amount),
    "run_app.grace_seconds": (lambda v: satay.run_app(grace_seconds=v), is_number),
    "run_app.max_resident": (lambda v: satay.run_app(max_resident=v), is_count),
    "run_app.max_threads": (lambda v: satay.run_app(max_threads=v), is_count),
    "run_app.clock": (lambda v: satay.run_app(clock=v), is_none),
    "run_app.chance": (lambda v: satay.run_app(chance=v), is_none),
}
"""What is called anywhere."""

ASKING: Final[dict[str, Parameter]] = {
    "start.workflow": (lambda v: satay.start(v), nothing),
    "start.run_id": (lambda v: satay.start(simple, run_id=v), is_none),
    "start.idempotency_key": (lambda v: satay.start(simple, idempotency_key=v), is_none),
    "resume.run_id": (lambda v: satay.resume(v), nothing),
    "cancel.run_id": (lambda v: satay.cancel(v), nothing),
    "terminate.run_id": (lambda v: satay.terminate(v), nothing),
    "sweep.source": (lambda v: satay.sweep(v, fork_point_seq=1, variants={"a": 1}), nothing),
    "sweep.variants": (lambda v: satay.sweep("there", fork_point_seq=1, variants=v), nothing),
    "sweep.repeats": (lambda v: satay.sweep("there", fork_point_seq=1, variants={"a": 1}, repeats=v), is_count),
    "sweep.score": (
        lambda v: satay.sweep("there", fork_point_seq=1, variants={"a": 1}, score=v),
        one_of(is_none, callable),
    ),
    "sweep.concurrency": (lambda v: satay.sweep("there", fork_point_seq=1, variants={"a": 1}, concurrency=v), is_count),
    "sweep.budget": (lambda v: satay.sweep("there", fork_point_seq=1, variants={"a": 1}, budget=v), is_none),
    "sweep.run_id": (lambda v: satay.sweep("there", fork_point_seq=1, variants={"a": 1}, run_id=v), is_none),
    "compare.one": (lambda v: satay.compare(v, "there"), nothing),
    "compare.more": (lambda v: satay.compare("there", "there", v), nothing),
    "App.ending.run": (lambda v: app().ending(v), nothing),
    "set_outcome.run": (lambda v: satay.set_outcome(v, "rejected"), nothing),
    "set_outcome.value": (lambda v: satay.set_outcome("there", v), nothing),
    "set_outcome.score": (
        lambda v: satay.set_outcome("there", "rejected", score=v),
        one_of(is_number, is_flag, is_none),
    ),
    "set_outcome.note": (lambda v: satay.set_outcome("there", "rejected", note=v), one_of(is_text, is_none)),
    "outcome.run": (lambda v: satay.outcome(v), nothing),
    "experiment.name": (lambda v: satay.experiment(v), nothing),
    "experiment.baseline": (lambda v: satay.experiment("named", baseline=v), is_none),
    "experiment.hypothesis": (lambda v: satay.experiment("named", hypothesis=v), one_of(is_text, is_none)),
    "promote.run": (lambda v: satay.promote(v), nothing),
    "promote.experiment": (lambda v: satay.promote("there", experiment=v), nothing),
    "verify.run": (lambda v: satay.verify(v), nothing),
    "compare.other": (lambda v: satay.compare("there", v), nothing),
    "diff_states.one": (lambda v: satay.diff_states(v, "session"), nothing),
    "diff_states.other": (lambda v: satay.diff_states("session", v), nothing),
    "diff_states.at": (lambda v: satay.diff_states("session", "session", at=v), is_none),
    "decision_trail.run": (lambda v: satay.decision_trail(v), nothing),
    "App.follow.run": (lambda v: first_item(v), nothing),
    "App.follow.after": (lambda v: first_item("there", after=v), is_count),
    "decide.run_id": (lambda v: satay.decide(v, "fail"), nothing),
    "decide.decision": (lambda v: satay.decide("there", v), nothing),
    "decide.seq": (lambda v: satay.decide("there", "fail", seq=v), nothing),
    "approvals.run_id": (lambda v: satay.approvals(v), is_none),
    "decide_approval.run_id": (lambda v: satay.decide_approval(v, "k", approved=True), nothing),
    "decide_approval.key": (lambda v: satay.decide_approval("there", v, approved=True), nothing),
    "decide_approval.approved": (lambda v: satay.decide_approval("there", "k", approved=v), is_flag),
    "decide_approval.by": (
        lambda v: satay.decide_approval("there", "k", approved=True, by=v),
        one_of(is_text, is_none),
    ),
    "decide_approval.note": (
        lambda v: satay.decide_approval("there", "k", approved=True, note=v),
        one_of(is_text, is_none),
    ),
    "send_event.event": (lambda v: satay.send_event(v, 1), nothing),
    "send_event.key": (lambda v: satay.send_event("e", key=v), is_none),
    "send_event.run_id": (lambda v: satay.send_event("e", run_id=v), is_none),
    "send_event.event_id": (lambda v: satay.send_event("e", event_id=v), is_none),
    "fork.source": (lambda v: satay.fork(v, before_task=echo), nothing),
    "fork.before_task": (lambda v: satay.fork("there", before_task=v), nothing),
    "fork.before_ordinal": (lambda v: satay.fork("there", before_task=echo, before_ordinal=v), is_none),
    "fork.before_key": (lambda v: satay.fork("there", before_task=echo, before_key=v), is_none),
    "fork.fork_point_seq": (lambda v: satay.fork("there", fork_point_seq=v), nothing),
    "fork.run_id": (lambda v: satay.fork("there", before_task=echo, run_id=v), is_none),
    "fork.allow_unfinished": (lambda v: satay.fork("there", before_task=echo, allow_unfinished=v), is_flag),
    "fork.before_event": (lambda v: satay.fork("there", before_event=v), nothing),
    "fork.before_child": (lambda v: satay.fork("there", before_child=v), nothing),
    "fork.after_task": (lambda v: satay.fork("there", after_task=v), nothing),
    "fork.after_ordinal": (lambda v: satay.fork("there", after_task=echo, after_ordinal=v), is_none),
    "fork.after_key": (lambda v: satay.fork("there", after_task=echo, after_key=v), is_none),
    "fork.at": (lambda v: satay.fork("there", at=v), nothing),
    "fork.keep_siblings": (lambda v: satay.fork("there", before_task=echo, keep_siblings=v), is_flag),
    "fork.tool_policies": (lambda v: satay.fork("there", before_task=echo, tool_policies=v), is_none),
    "fork.overrides": (lambda v: satay.fork("there", before_task=echo, overrides=v), is_none),
    "fork.raises": (lambda v: satay.fork("there", before_task=echo, raises=v), is_none),
    "fork.reason": (lambda v: satay.fork("there", before_task=echo, reason=v), one_of(is_text, is_none)),
    "fork.on_stale": (lambda v: satay.fork("there", before_task=echo, on_stale=v), nothing),
    "fork.children": (lambda v: satay.fork("there", before_task=echo, children=v), nothing),
    "fork.expected_head": (lambda v: satay.fork("there", before_task=echo, expected_head=v), is_none),
    "receipt.run_id": (lambda v: satay.receipt(v), nothing),
    "plan_fork.source": (lambda v: satay.plan_fork(v, before_task=echo), nothing),
    "App.run.run_id": (lambda v: app().run(v), nothing),
    "App.status.run": (lambda v: app().status(v), nothing),
    "App.handle.run_id": (lambda v: app().handle(v).status(), nothing),
    "App.events.run_id": (lambda v: first_event(v), nothing),
    "App.events.after": (lambda v: first_event("there", after=v), is_count),
    "App.runs.status": (lambda v: app().runs(status=v), is_none),
    "App.runs.workflow": (lambda v: app().runs(workflow=v), one_of(is_text, is_none)),
    "App.runs.forked_from": (lambda v: app().runs(forked_from=v), one_of(is_text, is_none)),
    "App.runs.limit": (lambda v: app().runs(limit=v), is_count),
    "App.runs.before": (lambda v: app().runs(before=v), is_none),
}
"""What is called in an app."""

IN_BODY: Final[dict[str, Parameter]] = {
    "sleep.duration": (lambda v: satay.sleep(v), is_number),
    "wait_for_event.event": (lambda v: satay.wait_for_event(v, timeout=0), lambda v: isinstance(v, type)),
    "wait_for_event.key": (lambda v: satay.wait_for_event("e", key=v, timeout=0), is_none),
    "wait_for_event.timeout": (lambda v: satay.wait_for_event("e", timeout=v), one_of(is_number, is_none)),
    "require_approval.key": (lambda v: satay.require_approval(v, timeout=0), nothing),
    "require_approval.timeout": (lambda v: satay.require_approval("k", timeout=v), one_of(is_number, is_none)),
    "map.task": (lambda v: satay.map(v, [1]), nothing),
    "map.items": (lambda v: satay.map(echo, v), lambda v: isinstance(v, tuple | list | dict | bytes | str)),
    "map.key": (lambda v: satay.map(echo, [1], key=v), is_none),
    "map.concurrency": (lambda v: satay.map(echo, [1], concurrency=v), one_of(is_count, is_none)),
    "map.return_exceptions": (lambda v: satay.map(echo, [1], return_exceptions=v), is_flag),
    "gather.awaitables": (lambda v: satay.gather(echo(1), v), nothing),
    "gather.return_exceptions": (lambda v: satay.gather(echo(1), return_exceptions=v), is_flag),
    "start_child.workflow": (lambda v: satay.start_child(v), nothing),
    "start_child.key": (lambda v: satay.start_child(simple, key=v), is_none),
}
"""What is called in a body."""

VALUES_OF_USERS: Final = {
    "input",
    "output",
    "result",
    "args",
    "kwargs",
    "payload",
    "value",
    "workflow_input",
    "intervention",
}
"""Parameters that take what the user has, which the codec judges by the declared type."""


NOT_FOR_USERS: Final = {
    "open_later",
    "scheduler",
    "is_open_on",
    "result",
    "new_id",
    "check_fork",
    "fork_for",
    "find_source",
    "entries_after",
}
"""Methods of an app that only satay calls."""


def app() -> satay.App:
    return satay.functions.current_app()


async def first_event(run_id: Any, **options: Any) -> None:
    async for _ in app().events(run_id, **options):
        return


async def first_item(run_id: Any, **options: Any) -> None:
    async for _ in app().follow(run_id, **options):
        return


def named_parameters(function: Any) -> list[str]:
    """The parameters of a function; the options of a fork are listed where `fork` is."""
    names = list(inspect.signature(function).parameters)
    if "options" in names:
        names.remove("options")
        names += ForkOptions.__annotations__ if function is satay.fork else ()
    return names


def test_every_parameter_of_every_public_function_is_listed_here() -> None:
    listed = {*DEFINING, *ASKING, *IN_BODY, *IN_SESSION}
    public: dict[str, Any] = {name: getattr(satay, name) for name in satay.__all__}
    functions: dict[str, Any] = {
        name: value for name, value in public.items() if inspect.isfunction(value) and name != "run"
    }
    functions |= {"Backoff": satay.Backoff, "record_usage": satay.TaskContext.record_usage}
    functions |= {
        f"App.{name}": method
        for name, method in inspect.getmembers(satay.App, inspect.isfunction)
        if not name.startswith("_") and name not in functions and name not in NOT_FOR_USERS
    }
    functions |= {"Session": satay.Session} | {
        f"Session.{name}": method
        for name, method in inspect.getmembers(satay.Session, inspect.isroutine)
        if not name.startswith("_") and name not in NOT_FOR_USERS_OF_SESSIONS
    }
    missing = {
        f"{name}.{parameter}"
        for name, function in functions.items()
        for parameter in named_parameters(function)
        if parameter != "self" and parameter not in VALUES_OF_USERS
    } - listed

    assert set() == missing


IN_SESSION: Final[dict[str, Parameter]] = {
    "Session.session_id": (lambda v: satay.Session(v), is_text),
    "Session.state_fn": (lambda v: satay.Session("s", state_fn=v), one_of(is_none, callable)),
    "Session.state_interval": (lambda v: satay.Session("s", state_interval=v), is_count),
    "Session.resume.session_id": (lambda v: satay.Session.resume(v), nothing),
    "Session.resume.fork_at_step": (lambda v: satay.Session.resume("s", fork_at_step=v), one_of(is_none, is_count)),
    "Session.resume.name": (lambda v: satay.Session.resume("s", fork_at_step=1, name=v), is_none),
    "Session.resume.boundary": (lambda v: satay.Session.resume("s", fork_at_step=1, boundary=v), nothing),
    "Session.resume.tool_policies": (lambda v: satay.Session.resume("s", fork_at_step=1, tool_policies=v), is_none),
    "Session.resume.reason": (
        lambda v: satay.Session.resume("s", fork_at_step=1, reason=v),
        one_of(is_none, is_text),
    ),
    "Session.resume.state_fn": (
        lambda v: satay.Session.resume("s", fork_at_step=1, state_fn=v),
        one_of(is_none, callable),
    ),
    "Session.resume.state_interval": (
        lambda v: satay.Session.resume("s", fork_at_step=1, state_interval=v),
        is_count,
    ),
    "Session.join.carrier": (lambda v: satay.Session.join(v), nothing),
    "Session.join.state_fn": (lambda v: satay.Session.join(here().carrier(), state_fn=v), one_of(is_none, callable)),
    "Session.step.name": (lambda v: here().step(v), nothing),
    "Session.state_at.step": (lambda v: here().state_at(v), nothing),
    "Session.wake_at.when": (lambda v: here().wake_at(v), is_number),
    "Session.wake_at.note": (lambda v: here().wake_at(60, note=v), one_of(is_none, is_text)),
    "Session.fork.at_step": (lambda v: here().fork(at_step=v), one_of(is_none, is_count)),
    "Session.fork.name": (lambda v: here().fork(at_step=1, name=v), is_none),
    "Session.fork.boundary": (lambda v: here().fork(at_step=1, boundary=v), nothing),
    "Session.fork.tool_policies": (lambda v: here().fork(at_step=1, tool_policies=v), is_none),
    "Session.fork.reason": (lambda v: here().fork(at_step=1, reason=v), one_of(is_none, is_text)),
    "Session.fork.state_fn": (lambda v: here().fork(at_step=1, state_fn=v), one_of(is_none, callable)),
    "Session.fork.state_interval": (
        lambda v: here().fork(at_step=1, state_interval=v),
        one_of(is_none, is_count),
    ),
    "Session.claim.tool": (lambda v: here().claim(v, {}), nothing),
    "Session.claim.arguments": (lambda v: here().claim("tool", v), lambda v: isinstance(v, dict)),
    "Session.claim.key": (lambda v: here().claim("tool", {}, key=v), is_none),
    "Session.claim.effect": (lambda v: here().claim("tool", {}, effect=v), is_none),
    "Session.claim.ttl": (lambda v: here().claim("tool", {}, ttl=v), lambda v: is_number(v) and v > 0),
    "Session.require_approval.key": (lambda v: here().require_approval(v, timeout=0), nothing),
    "Session.require_approval.timeout": (
        lambda v: here().require_approval("k", timeout=v, wait=False),
        one_of(is_number, is_none),
    ),
    "Session.require_approval.wait": (lambda v: here().require_approval("k", timeout=0, wait=v), is_flag),
    "Session.call.tool": (lambda v: here().call(v, plain), nothing),
    "Session.call.fn": (lambda v: here().call("tool", v), callable),
    "Session.call.key": (lambda v: here().call("tool", plain, key=v), is_none),
    "Session.call.effect": (lambda v: here().call("tool", plain, effect=v), is_none),
    "Session.call.dedup_fields": (lambda v: here().call("tool", plain, dedup_fields=v), is_none),
    "Session.pause.reason": (lambda v: here().pause(v), is_text),
}
"""What is asked of a session that is open and has one step with a state."""

NOT_FOR_USERS_OF_SESSIONS: Final = {"call_task"}
"""Methods of a session that only satay calls."""


def here() -> satay.Session:
    return satay.current_session()


async def outcome(call: Callable[[Any], Any], value: Any) -> str:
    try:
        made = call(value)
        if isinstance(made, Awaitable):
            await made
    except SatayError:
        return "refused"
    except Exception as error:
        return repr(error)
    return "taken"


async def wrongly_answered(parameter: Parameter) -> dict[str, str]:
    call, takes = parameter
    outcomes = {repr(value): await outcome(call, value) for value in VALUES if not takes(value)}
    return {value: outcome for value, outcome in outcomes.items() if outcome != "refused"}


@pytest.mark.parametrize("name", DEFINING)
def test_a_wrong_type_is_refused_where_something_is_made(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)

    assert {} == in_loop(wrongly_answered(DEFINING[name]))
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ASKING)
def test_a_wrong_type_is_refused_where_an_app_is_asked(name: str, tmp_path: Path) -> None:
    async def run() -> tuple[dict[str, str], bool]:
        async with open_app(tmp_path) as app:
            await app.start(simple, run_id="there").result()
            async with satay.Session("session", state_fn=lambda: 1) as session:
                await session.step("only")
            before = await contents(app)
            return await wrongly_answered(ASKING[name]), before == await contents(app)

    assert ({}, True) == in_loop(run())


async def contents(app: AppUnderTest) -> list[Any]:
    journal = (await app._ready()).journal
    runs = await app.runs()
    return [runs, [await journal.read(run.run_id) for run in runs], await journal.deliverable(0, 10, app.clock.now())]


@pytest.mark.parametrize("name", IN_BODY)
def test_a_wrong_type_is_refused_in_a_body(name: str, tmp_path: Path) -> None:
    @satay.workflow(name=f"wrong_types.{name}")
    async def calls() -> dict[str, str]:
        return await wrongly_answered(IN_BODY[name])

    async def run() -> tuple[dict[str, str], list[str]]:
        async with open_app(tmp_path) as app:
            answered = await app.start(calls, run_id="r").result()
            return answered, [event.type async for event in app.events("r")]

    assert ({}, ["WorkflowCreated", "WorkflowCompleted"]) == in_loop(run())


@pytest.mark.parametrize("name", IN_SESSION)
def test_a_wrong_type_is_refused_where_a_session_is_asked(name: str, tmp_path: Path) -> None:
    async def run() -> tuple[dict[str, str], bool]:
        async with open_app(tmp_path) as app, satay.Session("s", state_fn=lambda: 1) as session:
            await session.step("work")
            before = await contents(app)
            return await wrongly_answered(IN_SESSION[name]), before == await contents(app)

    assert ({}, True) == in_loop(run())
