"""A rehearsal: the history is replayed without a word into the journal, to see what code and input of today make of it.

A fork is rehearsed before it is written, so that its receipt can say which inherited calls would get other arguments
now; then the same replay goes on, live. A plan is a rehearsal that ends there.
"""

import hashlib
import marshal
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from satay.errors import SatayError
from satay.model import Entry
from satay.replay import blob_reference, value_text, wait_arguments

_MARSHAL_VERSION: Final = 2
"""The last one in which equal bytes mean equal values, whoever else refers to these."""


class ArgumentCodec(Protocol):
    """Writes the arguments of calls of one function."""

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> str: ...


SameArguments = dict[int, tuple[ArgumentCodec, bytes]]
"""Positional arguments that a codec is known to write as they were recorded, as `marshal` writes them, by seq of the
call. That takes a fraction of what the codec takes. It holds plain values only, and tells 1 from True and from 1.0."""


class Issued(NamedTuple):
    """A call of the history whose arguments would be others today: its entry, and the text of today's arguments.

    `recorded` is the text of those that an ancestor issued it again with, where one did.
    """

    entry: Entry
    text: str
    recorded: str | None = None


class Rehearsal:
    """Collects what differs. `ended` is called once the history is used up, or with the error that stopped it.

    A body that goes on beyond the history logs, unless `is_plan` says that no fork will follow. `same` is what earlier
    rehearsals of the same history have found, and is added to; None where this is the only one.
    """

    __slots__ = ("_same", "differing", "ended", "is_plan")

    def __init__(
        self,
        ended: Callable[[BaseException | None], None],
        *,
        is_plan: bool = False,
        same: SameArguments | None = None,
    ) -> None:
        self.differing: list[Issued] = []
        self.ended = ended
        self.is_plan = is_plan
        self._same = same

    def compare_key(self, entry: Entry, recorded: str | None, issued: str | None) -> None:
        """Compare the key that a wait was recorded with, and the one that the code gives it today."""
        if recorded != issued:
            self.differing.append(Issued(entry, wait_arguments(issued)))

    def compare_arguments(
        self, entry: Entry, codec: ArgumentCodec, args: tuple[Any, ...], kwargs: dict[str, Any], where: str
    ) -> None:
        """Compare the arguments that a call was recorded with, and those that it gets today.

        What cannot be encoded cannot be compared; the call is answered from the history all the same.
        """
        same = self._same
        written = None if same is None or kwargs else _marshalled(args)
        if written is not None and same is not None:
            known = same.get(entry.seq)
            if known is not None and known[1] == written and known[0] is codec:
                return
        try:
            issued = codec.encode(args, kwargs, where)
        except SatayError:
            return
        if not entry.payload.endswith(f',"input":{issued}}}'):
            self.compare(entry, issued)
        elif written is not None and same is not None:
            same[entry.seq] = (codec, written)

    def compare(self, entry: Entry, issued: str, reissued: str | None = None) -> None:
        """Compare the arguments that a call was recorded with, and those that the code gives it today.

        `reissued` are those that an ancestor issued it again with, where one did.
        """
        recorded = value_text(entry) if reissued is None else reissued
        if recorded is None:
            is_same = blob_reference(entry) == hashlib.sha256(issued.encode()).hexdigest()
        else:
            is_same = recorded == issued
        if not is_same:
            self.differing.append(Issued(entry, issued, reissued))


def _marshalled(args: tuple[Any, ...]) -> bytes | None:
    try:
        return marshal.dumps(args, _MARSHAL_VERSION)
    except ValueError:  # There is more in it than plain values.
        return None
