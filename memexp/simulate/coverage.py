"""What a prediction rests on: ops whose memory is modelled in full, and branches that a rule decided, not a value."""

import sys
import warnings
from collections import Counter


class Coverage:
    """Counts of one simulation. Views and ops on the host are no kernels and do not count.

    `warns`: the first float that is read on the host is told of, as it is nan whatever the code computes.
    """

    def __init__(self, warns: bool = True) -> None:
        self.ops = 0
        self.unknown_ops: Counter[str] = Counter()
        self.rule_branches: Counter[str] = Counter()
        self.float_reads = 0
        self._warns = warns

    @property
    def known_fraction(self) -> float:
        """1.0 where all memory is modelled, and where nothing ran."""
        return 1.0 - self.unknown_ops.total() / self.ops if self.ops else 1.0

    def read_float(self, is_offloaded: bool = False) -> None:
        """A float came to the host; nobody looks at one that is offloaded, which is not told of."""
        self.float_reads += 1
        if self._warns and not is_offloaded:
            self._warns = False
            warnings.warn(
                "a float was read from the simulated GPU: it is nan, as floats have no values there. Leave out what "
                "stops or branches on it (a check of the loss for nan, early stopping); memory and time are right "
                "without it",
                stacklevel=_level_of_the_caller(),
            )


def _level_of_the_caller() -> int:
    """How far up the first line is that is neither torch's nor the simulation's."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals["__name__"].startswith(("torch.", "memexp.simulate.")):
        frame, level = frame.f_back, level + 1
    return level
