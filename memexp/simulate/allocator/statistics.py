"""Counters of the allocator, named as in `torch.cuda.memory_stats()`. They cover both pools together."""


class Gauge:
    """A level in bytes, and the highest it has been since the last reset."""

    __slots__ = ("current", "peak")

    def __init__(self) -> None:
        self.current = 0
        self.peak = 0

    def increase(self, amount: int) -> None:
        self.current += amount
        if self.current > self.peak:
            self.peak = self.current

    def decrease(self, amount: int) -> None:
        self.current -= amount


class Statistics:
    """Allocated bytes count whole blocks, tails that were not split off included, so they exceed the requested bytes.

    Active bytes are the allocated ones and those freed while another stream may still use them; reserved bytes are what
    the device has given. `num_alloc_retries` counts the times that the whole cache was emptied to make room, whether or
    not that helped, and `num_ooms` the times it did not.
    """

    def __init__(self) -> None:
        self.allocated_bytes = Gauge()
        self.reserved_bytes = Gauge()
        self.active_bytes = Gauge()
        self.requested_bytes = Gauge()
        self.num_alloc_retries = 0
        self.num_ooms = 0

    def count_allocation(self, size: int, requested_size: int) -> None:
        self.allocated_bytes.increase(size)
        self.active_bytes.increase(size)
        self.requested_bytes.increase(requested_size)

    def reset_peak(self) -> None:
        """Start every peak again at its current level; the two counts stay."""
        for gauge in (self.allocated_bytes, self.reserved_bytes, self.active_bytes, self.requested_bytes):
            gauge.peak = gauge.current
