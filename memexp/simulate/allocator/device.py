"""The device under the allocator: what cudaMalloc and the virtual memory calls of the driver give and take back.

Memory outside the allocator (context, NCCL, other processes) is not here: leave it out of the capacity.
"""

from collections.abc import Callable

from memexp.simulate.allocator.events import EventLog
from memexp.simulate.allocator.settings import LARGE_ROUNDING_BYTES, round_up
from memexp.simulate.allocator.statistics import Gauge

FIRST_ADDRESS = 0x7F00_0000_0000


class Device:
    """Keeps `reserved` and the segment events. Addresses only break ties, so they are handed out in rising order."""

    def __init__(
        self, capacity_bytes: int, reserved: Gauge, log: EventLog | None, new_address: Callable[[int], int] | None
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self._reserved = reserved
        self._log = log
        self._next_address = FIRST_ADDRESS
        self.new_address = new_address or self._rising_address

    @property
    def free_bytes(self) -> int:
        return self.capacity_bytes - self._reserved.current

    def malloc(self, size: int, stream: int) -> int | None:
        """The address of a new segment, or None where it does not fit."""
        if size > self.free_bytes:
            return None
        address = self.new_address(size)
        self._reserved.increase(size)
        if self._log is not None:
            self._log.record("segment_alloc", address, size, stream)
        return address

    def free(self, address: int, size: int, stream: int) -> None:
        self._reserved.decrease(size)
        if self._log is not None:
            self._log.record("segment_free", address, size, stream)

    def map(self, address: int, size: int, stream: int) -> bool:
        """Back reserved addresses with memory: all of `size` or, where it does not fit, nothing."""
        if size > self.free_bytes:
            return False
        self._reserved.increase(size)
        if self._log is not None:
            self._log.record("segment_map", address, size, stream)
        return True

    def unmap(self, address: int, size: int, stream: int) -> None:
        self._reserved.decrease(size)
        if self._log is not None:
            self._log.record("segment_unmap", address, size, stream)

    def _rising_address(self, size: int) -> int:
        address = self._next_address
        self._next_address += round_up(size, LARGE_ROUNDING_BYTES)
        return address
