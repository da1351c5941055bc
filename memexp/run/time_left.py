"""How long a sweep takes yet, from the cells that ended. It never rises while no other has: it only runs out."""

import time
from collections.abc import Callable


class TimeLeft:
    """Seconds of this process's own clock, which no change of the machine's time touches."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = self._last_end = clock()
        self._ended = 0

    def cell_ended(self) -> None:
        self._ended += 1
        self._last_end = self._clock()

    def seconds(self, cells: int) -> float | None:
        """For so many cells. None before the first has ended, and when they have taken longer than those that did."""
        if not self._ended:
            return None
        at_last_end = (self._last_end - self._started) / self._ended * cells
        left = at_last_end - (self._clock() - self._last_end)
        return left if left > 0 else None
