"""A rehearsal: the history is replayed without a word into the journal, to see what code and input of today make of it.

A fork is rehearsed before it is written, so that its receipt can say which inherited calls would get other arguments
now; then the same replay goes on, live. A plan is a rehearsal that ends there.
"""

import hashlib
from collections.abc import Callable
from typing import NamedTuple

from satay.model import Entry
from satay.replay import blob_reference, value_text, wait_arguments


class Issued(NamedTuple):
    """A call of the history whose arguments would be others today: its entry, and the text of today's arguments.

    `recorded` is the text of those that an ancestor issued it again with, where one did.
    """

    entry: Entry
    text: str
    recorded: str | None = None


class Rehearsal:
    """Collects what differs. `ended` is called once the history is used up, or with the error that stopped it.

    A body that goes on beyond the history logs, unless `is_plan` says that no fork will follow.
    """

    __slots__ = ("differing", "ended", "is_plan")

    def __init__(self, ended: Callable[[BaseException | None], None], *, is_plan: bool = False) -> None:
        self.differing: list[Issued] = []
        self.ended = ended
        self.is_plan = is_plan

    def compare_key(self, entry: Entry, recorded: str | None, issued: str | None) -> None:
        """Compare the key that a wait was recorded with, and the one that the code gives it today."""
        if recorded != issued:
            self.differing.append(Issued(entry, wait_arguments(issued)))

    def compare(self, entry: Entry, issued: str, reissued: str | None = None) -> None:
        """Compare the arguments that a call was recorded with, and those that the code gives it today.

        `reissued` are those that an ancestor issued it again with, where one did.
        """
        if reissued is None and entry.payload.endswith(f',"input":{issued}}}'):
            return
        recorded = value_text(entry) if reissued is None else reissued
        if recorded is None:
            is_same = blob_reference(entry) == hashlib.sha256(issued.encode()).hexdigest()
        else:
            is_same = recorded == issued
        if not is_same:
            self.differing.append(Issued(entry, issued, reissued))
