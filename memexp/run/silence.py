"""For how long a running cell has told nothing new: a cell that hangs ends only where `timeout_seconds` is set."""

import time
from collections.abc import Callable

from memexp.run.progress import Progress

LONG_SECONDS = 600.0  # a step of an honest cell may take minutes; nothing is ended for it, only said


class Silence:
    """Seconds of this process's own clock, which no change of the machine's time touches."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: dict[str, tuple[Progress, float]] = {}
        self._told: dict[str, Progress] = {}

    def seconds(self, cell: str, progress: Progress) -> float:
        """Since when the cell stands where it stands, as far as it was seen."""
        before, since = self._last.setdefault(cell, (progress, self._clock()))
        if before != progress:
            self._last[cell] = (progress, self._clock())
            return 0.0
        return self._clock() - since

    def is_news(self, cell: str, progress: Progress) -> bool:
        """Whether it has been silent for long and that was not said of this place yet. One that waits hangs nowhere."""
        if self.seconds(cell, progress) < LONG_SECONDS or self._told.get(cell) == progress or progress.is_waiting:
            return False
        self._told[cell] = progress
        return True
