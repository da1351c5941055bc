"""What a prediction rests on: ops whose memory is modelled in full, and branches that a rule decided, not a value."""

from collections import Counter


class Coverage:
    """Counts of one simulation. Views and ops on the host are no kernels and do not count."""

    def __init__(self) -> None:
        self.ops = 0
        self.unknown_ops: Counter[str] = Counter()
        self.rule_branches: Counter[str] = Counter()
        self.float_reads = 0

    @property
    def known_fraction(self) -> float:
        """1.0 where all memory is modelled, and where nothing ran."""
        return 1.0 - self.unknown_ops.total() / self.ops if self.ops else 1.0
