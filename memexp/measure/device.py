"""What the whole GPU holds, whoever took it, as NVML sees it. Every answer is None without NVML or an NVIDIA driver.

A device is named by NVML's index, which `CUDA_VISIBLE_DEVICES` does not change, or by its UUID ("GPU-…"), which is the
safe way to name the one that torch uses.
"""

import os
import threading
from typing import Any, Self

from memexp import nvml

SAMPLE_SECONDS = 0.05


class DeviceSampler:
    """Reads the device's used memory every 50 ms in a thread of its own, from `with` to its end, and once at each end.

    It misses what comes and goes between two samples, and counts every process on the device.
    """

    def __init__(self, device: int | str = 0) -> None:
        self.device_used_peak_bytes: int | None = None
        self._device = device
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        session = _open(self._device)
        if session is not None:
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, args=session, name="device-sampler", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None

    def _run(self, library: Any, handle: Any) -> None:
        stopping = False
        while True:
            try:
                used = int(library.nvmlDeviceGetMemoryInfo(handle).used)
            except library.NVMLError:
                return
            self.device_used_peak_bytes = max(used, self.device_used_peak_bytes or 0)
            if stopping:
                return
            stopping = self._stop.wait(SAMPLE_SECONDS)


def foreign_processes(device: int | str = 0) -> list[dict[str, int | None]] | None:
    """Compute processes on the device other than this one: `{"pid", "used_bytes"}`, the bytes None where hidden.

    In a container NVML gives the host's process ids, so that this process looks foreign once it uses CUDA: ask before.
    """
    session = _open(device)
    if session is None:
        return None
    library, handle = session
    try:
        processes = library.nvmlDeviceGetComputeRunningProcesses(handle)
    except library.NVMLError:
        return None
    return [{"pid": p.pid, "used_bytes": p.usedGpuMemory} for p in processes if p.pid != os.getpid()]


def gpu_facts(device: int | str = 0) -> dict[str, str | int] | None:
    """The device's `name`, `driver` and `total_bytes`."""
    session = _open(device)
    if session is None:
        return None
    library, handle = session
    try:
        return {
            "name": library.nvmlDeviceGetName(handle),
            "driver": library.nvmlSystemGetDriverVersion(),
            "total_bytes": int(library.nvmlDeviceGetMemoryInfo(handle).total),
        }
    except library.NVMLError:
        return None


def _open(device: int | str) -> tuple[Any, Any] | None:
    library = nvml.opened()
    if library is None:
        return None
    try:
        by_index = isinstance(device, int)
        handle = (library.nvmlDeviceGetHandleByIndex if by_index else library.nvmlDeviceGetHandleByUUID)(device)
    except library.NVMLError:
        return None
    return library, handle
