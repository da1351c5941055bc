"""The other bound on what `record_stream` costs: the same allocations where each stream is done as late as can be.

A block that was freed while a second stream may still use it is reusable once that stream is done, which on a card is
a matter of time. The simulation takes it to be so at once; here it is so when the host waits for the card, and not
before. What a card reserves lies between the two.
"""

from memexp.simulate.allocator import AllocatorSettings, CachingAllocator, OutOfMemoryError


class LateStreams:
    """Follows another allocator by its addresses. `peak_reserved_bytes` is None once this one has run out of memory."""

    def __init__(self, capacity_bytes: int, settings: AllocatorSettings) -> None:
        self._allocator = CachingAllocator(capacity_bytes, settings, event_timing="pessimistic")
        self._reserved = self._allocator.statistics.reserved_bytes
        self._addresses: dict[int, int] = {}
        self._fits = True

    @property
    def peak_reserved_bytes(self) -> int | None:
        """The most that was reserved since `reset_peak`."""
        return self._reserved.peak if self._fits else None

    def malloc(self, address: int, size: int, stream: int) -> None:
        if self._fits and address:
            try:
                self._addresses[address] = self._allocator.malloc(size, stream)
            except OutOfMemoryError:
                self._fits = False

    def free(self, address: int) -> None:
        if self._fits and address:
            self._allocator.free(self._addresses.pop(address))

    def record_stream(self, address: int, stream: int) -> None:
        if self._fits:
            self._allocator.record_stream(self._addresses[address], stream)

    def synchronize(self) -> None:
        self._allocator.synchronize()

    def empty_cache(self) -> None:
        self._allocator.empty_cache()

    def reset_peak(self) -> None:
        self._allocator.statistics.reset_peak()
