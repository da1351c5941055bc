"""The peak of host memory: the process's own, and what CUDA pinned of it. None where the system cannot tell."""

from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


def host_peak_bytes() -> int | None:
    """The most resident memory of this process so far, by the kernel's VmHWM; None where there is no /proc.

    A forked process starts at its parent's peak, unless `reset_host_peak` is called first. `getrusage` is no way
    around that: its `ru_maxrss` keeps the parent's peak even in a fresh interpreter.
    """
    try:
        lines = _STATUS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    peaks = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return peaks[0] if peaks else None


def reset_host_peak() -> bool:
    """Start a new `host_peak_bytes` at what is resident now; False where the kernel does not allow it."""
    try:
        _CLEAR_REFS.write_text("5", encoding="ascii")  # 5 resets the peak, see proc_pid_clear_refs(5)
    except OSError:
        return False
    return True


def pinned_peak_bytes() -> int | None:
    """The most pinned host memory of torch's CUDA host allocator, blocks it keeps for reuse included, each rounded up
    to a power of two. None without CUDA initialised, and with a torch that does not count it.
    """
    import torch

    if not (torch.cuda.is_initialized() and hasattr(torch.cuda, "host_memory_stats")):  # type: ignore[no-untyped-call]
        return None
    peak = torch.cuda.host_memory_stats().get("allocated_bytes.peak")
    return None if peak is None else int(peak)
