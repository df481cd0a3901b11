"""When outstanding calls are to be looked at again: the moments of one run, earliest first."""

import heapq
from collections.abc import Container


class Dues:
    """Moments with the calls that they belong to. Calls that are settled are passed over, not removed."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []

    @property
    def is_empty(self) -> bool:
        """Whether there is no moment at all."""
        return not self._heap

    def add(self, due: int, call: int) -> None:
        """Look at a call again at `due`."""
        heapq.heappush(self._heap, (due, call))

    def earliest(self, outstanding: Container[int]) -> int | None:
        """The first moment of a call that is outstanding, or None."""
        heap = self._heap
        while heap and heap[0][1] not in outstanding:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pop_due(self, now: int) -> int | None:
        """The call of the first moment that has come, or None."""
        return heapq.heappop(self._heap)[1] if self._heap and self._heap[0][0] <= now else None
