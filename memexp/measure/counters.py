"""What a memory counter answers, and the counter of a CUDA device. The CPU's is `memexp.measure.live_bytes`.

Nothing here knows of phases: the one who may reset a peak is `memexp.measure.memory.MemoryMeter`.
"""

from typing import Any, Protocol

import torch


class Counter(Protocol):
    """Bytes of one device. Peaks are since the last `reset_peak`; None is what the device cannot tell.

    All readers are cheap and none waits for the device: allocation happens when an op is issued, not when it runs.
    """

    def allocated_bytes(self) -> int:
        """Bytes that live tensors hold now."""
        ...

    def reserved_bytes(self) -> int | None:
        """Bytes that the allocator holds of the device now, free blocks included."""
        ...

    def peak_allocated_bytes(self) -> int:
        """The most `allocated_bytes` since the last reset."""
        ...

    def peak_reserved_bytes(self) -> int | None:
        """The most `reserved_bytes` since the last reset."""
        ...

    def reset_peak(self) -> None:
        """Start new peaks at what is held now."""
        ...

    def synchronize(self) -> None:
        """Wait until all work issued to the device is done."""
        ...

    def alloc_retries(self) -> int | None:
        """How often, since the process started, an allocation only succeeded after cached blocks were given back."""
        ...

    def capacity_bytes(self) -> int | None:
        """The memory of the whole device, whoever uses it."""
        ...


class PeakContents(Protocol):
    """What was on the device at its peak, where that is known: a simulated GPU knows what each byte is for."""

    def forget(self) -> None:
        """Look for a new highest peak from here, over whatever `reset_peak` divides it into."""
        ...

    def peak_categories(self) -> dict[str, int]:
        """Bytes by what they were for at the highest peak since `forget`, as `weights_bytes` and so on."""
        ...


class CudaCounter:
    """torch's caching allocator on one CUDA device. Creating one initialises CUDA, so create it after any fork.

    Figures are the allocator's: without the CUDA context, NCCL, or memory that other libraries take themselves. Its
    `allocated` includes the unsplit tail of a block, up to 1 MiB for each large one.
    """

    def __init__(self, device: int | str | torch.device = "cuda") -> None:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        wanted = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        self._device = torch.cuda.current_device() if wanted.index is None else wanted.index

    def allocated_bytes(self) -> int:
        return self._bytes("allocated_bytes", "current")

    def reserved_bytes(self) -> int | None:
        return self._bytes("reserved_bytes", "current")

    def peak_allocated_bytes(self) -> int:
        return self._bytes("allocated_bytes", "peak")

    def peak_reserved_bytes(self) -> int | None:
        return self._bytes("reserved_bytes", "peak")

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)

    def alloc_retries(self) -> int | None:
        retries = self._stats().get("num_alloc_retries")
        return None if retries is None else int(retries)

    def capacity_bytes(self) -> int | None:
        """The card's total, as the driver gives it: less than its name says, and not lowered by a memory fraction."""
        return int(torch.cuda.get_device_properties(self._device).total_memory)

    def _bytes(self, name: str, metric: str) -> int:
        return int(self._stats()[name]["all"][metric])

    def _stats(self) -> dict[str, Any]:
        # `max_memory_allocated` and its kin flatten and sort all of these on every call.
        return torch.cuda.memory_stats_as_nested_dict(self._device)
