"""The counter of a simulated GPU: predictions, read as the counters of a real one are."""

from memexp.simulate.gpu import SimulatedGPU


class SimulatedCounter:
    """A `Counter` that also remembers what was on the card at the highest peak since `forget`."""

    def __init__(self, gpu: SimulatedGPU) -> None:
        self._gpu = gpu
        self._highest_bytes = 0
        self._categories: dict[str, int] = {}
        self._reserved_bytes = 0
        self._late_bytes: int | None = 0
        self.late_reserved_bytes: int | None = None
        self.streams_matter = False

    def allocated_bytes(self) -> int:
        return self._gpu.memory_allocated()

    def reserved_bytes(self) -> int | None:
        return self._gpu.memory_reserved()

    def peak_allocated_bytes(self) -> int:
        return self._gpu.max_memory_allocated()

    def peak_reserved_bytes(self) -> int | None:
        return self._gpu.max_memory_reserved()

    def reset_peak(self) -> None:
        self._remember()
        self._gpu.reset_peak_memory_stats()

    def synchronize(self) -> None:
        self._gpu.synchronize()

    def alloc_retries(self) -> int | None:
        return self._gpu.alloc_retries

    def capacity_bytes(self) -> int | None:
        """The card's memory less its CUDA context: what the allocator can have."""
        return self._gpu.capacity_bytes

    def forget(self) -> None:
        """Look for a new highest peak from here."""
        self.reset_peak()
        self._highest_bytes, self._categories = 0, {}
        self._reserved_bytes = self._late_bytes = 0

    def peak_categories(self) -> dict[str, int]:
        """What was on the card at the highest peak since `forget`, as `weights_bytes` and so on.

        From here on `late_reserved_bytes` says what was reserved at most until now, were each stream done late, and
        `streams_matter` whether that is more than what was.
        """
        self._remember()
        self.late_reserved_bytes = self._late_bytes
        self.streams_matter = self._late_bytes is not None and self._late_bytes > self._reserved_bytes
        return {f"{name}_bytes": size for name, size in self._categories.items()}

    def _remember(self) -> None:
        peak = self._gpu.max_memory_allocated()
        if peak > self._highest_bytes:
            self._highest_bytes, self._categories = peak, self._gpu.peak_categories
        self._reserved_bytes = max(self._reserved_bytes, self._gpu.max_memory_reserved())
        late = self._gpu.late_reserved_bytes()
        self._late_bytes = None if late is None or self._late_bytes is None else max(self._late_bytes, late)
