"""Where to probe next. Pure: sizes and whether they fitted in, sizes to try out.

More rows, or longer ones, never need less memory: so a size that did not fit rules out all larger ones, and one that
fitted all smaller ones. Of nothing else is that true: no technique is pruned by another.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """`low`, `low + step`, …, up to `high`, which is tried too where the steps pass it by. Raises ValueError."""

    low: int
    high: int
    step: int = 1

    def __post_init__(self) -> None:
        if self.low < 1 or self.step < 1:
            raise ValueError("a size and a step are at least 1")
        if self.high < self.low:
            raise ValueError(f"the upper bound {self.high} is below the lower one, {self.low}")

    def size(self, index: int) -> int:
        return min(self.low + index * self.step, self.high)

    @property
    def last(self) -> int:
        return -(-(self.high - self.low) // self.step)

    def index(self, size: int) -> int | None:
        """Where a size stands, None for one that is not among those tried."""
        index = -(-(size - self.low) // self.step)
        return index if 0 <= index <= self.last and self.size(index) == size else None


@dataclass(frozen=True)
class Found:
    """`largest` is the largest size known to fit, `too_large` the smallest known not to; None where there is none."""

    largest: int | None
    too_large: int | None


def found(bounds: Bounds, fitted: Mapping[int, bool]) -> Found:
    """What the probes so far say. Sizes outside of the bounds' steps count too: they were measured all the same."""
    not_fitting = [size for size, fits in fitted.items() if not fits]
    too_large = min(not_fitting, default=None)
    fitting = [size for size, fits in fitted.items() if fits and (too_large is None or size < too_large)]
    return Found(max(fitting, default=None), too_large)


def next_sizes(bounds: Bounds, fitted: Mapping[int, bool]) -> tuple[int, ...]:
    """The sizes to try now; empty when the frontier is known. Both ends come first, and may run side by side.

    Then one between what fits and what does not: the geometric mean while they are far apart, since small sizes are
    cheap to try and large ones are not, else the middle.
    """
    now = found(bounds, fitted)
    ends = {bounds.low, bounds.high}
    untried = sorted(end for end in ends if end not in fitted and _open(end, now))
    if untried:
        return tuple(untried)
    low = 0 if now.largest is None else bounds.index(now.largest)
    high = bounds.last if now.too_large is None else bounds.index(now.too_large)
    if low is None or high is None or now.largest is None or now.too_large is None or high - low < 2:
        return ()
    return (bounds.size(min(max(_between(bounds, low, high), low + 1), high - 1)),)


def _open(size: int, now: Found) -> bool:
    below = now.largest is None or size > now.largest
    return below and (now.too_large is None or size < now.too_large)


def _between(bounds: Bounds, low: int, high: int) -> int:
    smaller, larger = bounds.size(low), bounds.size(high)
    if larger < 4 * smaller:
        return (low + high) // 2
    return round((math.sqrt(smaller * larger) - bounds.low) / bounds.step)
