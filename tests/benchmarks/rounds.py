"""Interleaved measuring.

Every round makes each measure once, and what is compared is measured side by side: what disturbs one disturbs both.
"""

import gc
from collections.abc import Awaitable, Callable, Mapping

NOISE = 1.1
"""How much slower one of two equal measures may look: a figure that must not be slower is held to this."""

Measure = Callable[[], Awaitable[float]]
"""Does its work once and answers a number: a rate, or a duration in seconds."""


async def interleaved(rounds: int, measures: Mapping[str, Measure]) -> dict[str, list[float]]:
    """The samples of each measure, one a round. A round before the first one warms up and is not counted."""
    samples: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(rounds + 1):
        for name, measure in measures.items():
            gc.collect()
            sample = await measure()
            if number > 0:
                samples[name].append(sample)
    return samples


def against(reference: Measure, measure: Measure) -> Measure:
    """A measure in multiples of the reference, which is taken just before and just after it."""

    async def ratio() -> float:
        before = await reference()
        sample = await measure()
        return 2 * sample / (before + await reference())

    return ratio


def beyond(reference: Measure, measure: Measure) -> Measure:
    """How many microseconds one of a measured rate takes more than one of the reference's, which is taken likewise."""

    async def microseconds() -> float:
        before = await reference()
        sample = await measure()
        return (1 / sample - 2 / (before + await reference())) * 1e6

    return microseconds
