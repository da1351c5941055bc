"""Host memory by the kernel, device memory by an NVML that the test plays."""

import mmap
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memexp.measure import device, host
from memexp.measure.device import DeviceSampler, foreign_processes, gpu_facts
from memexp.measure.host import host_peak_bytes, pinned_peak_bytes, reset_host_peak

MIB = 1 << 20


def touch_and_release(nbytes: int) -> None:
    with mmap.mmap(-1, nbytes) as pages:
        pages.write(b"x" * nbytes)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's VmHWM is Linux's")
def test_the_host_peak_remembers_what_was_released() -> None:
    before = resident_bytes()
    touch_and_release(64 * MIB)
    peak = host_peak_bytes()
    assert peak is not None
    assert peak >= before + 64 * MIB > resident_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's VmHWM is Linux's")
def test_a_reset_host_peak_starts_at_what_is_resident() -> None:
    touch_and_release(64 * MIB)
    before = host_peak_bytes()
    if not reset_host_peak():
        pytest.skip("this kernel does not let a process reset its peak")
    after = host_peak_bytes()
    assert before is not None
    assert after is not None
    assert after == pytest.approx(resident_bytes(), abs=8 * MIB)
    assert before - after >= 32 * MIB


def test_without_proc_the_host_peak_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host, "_STATUS", tmp_path / "none" / "status")
    monkeypatch.setattr(host, "_CLEAR_REFS", tmp_path / "none" / "clear_refs")
    assert host_peak_bytes() is None
    assert reset_host_peak() is False


def test_without_cuda_pinned_memory_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert pinned_peak_bytes() is None


@pytest.mark.gpu
def test_pinned_memory_is_counted() -> None:
    import torch

    torch.cuda.init()
    before = pinned_peak_bytes()
    kept = torch.empty(32 * MIB, dtype=torch.uint8, pin_memory=True)
    after = pinned_peak_bytes()
    assert before is not None
    assert after is not None
    assert after >= before + kept.nbytes


# --- the device, as NVML sees it --------------------------------------------------------------------------------------


class FakeNvml:
    """Two cards; the memory in use goes through `used` and then stays at its last value."""

    class NVMLError(Exception): ...

    def __init__(self, used: list[int]) -> None:
        self._used = list(used)
        self.all_read = threading.Event()
        self.broken = False

    def nvmlInit(self) -> None:
        if self.broken:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return ["card 0", "card 1"][index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return {"GPU-b": "card 1"}[uuid]

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        used = self._used.pop(0) if len(self._used) > 1 else self._used[0]
        if len(self._used) == 1:
            self.all_read.set()
        return SimpleNamespace(used=used, total={"card 0": 80_000, "card 1": 24_000}[handle])

    def nvmlDeviceGetName(self, handle: str) -> str:
        return f"a {handle}"

    def nvmlSystemGetDriverVersion(self) -> str:
        return "600.1"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[SimpleNamespace]:
        used = {"card 0": [(os.getpid(), 500), (1, 70), (2, None)], "card 1": []}[handle]
        return [SimpleNamespace(pid=pid, usedGpuMemory=nbytes) for pid, nbytes in used]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml([100, 900, 300])
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(device, "SAMPLE_SECONDS", 0.001)
    return fake


def test_the_sampler_keeps_the_highest_reading(nvml: FakeNvml) -> None:
    with DeviceSampler(0) as sampler:
        assert nvml.all_read.wait(timeout=10)
    assert sampler.device_used_peak_bytes == 900
    assert "device-sampler" not in {thread.name for thread in threading.enumerate()}


def test_the_sampler_reads_once_more_at_its_end(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "SAMPLE_SECONDS", 3600)
    with DeviceSampler(0) as sampler:
        pass
    assert sampler.device_used_peak_bytes == 900  # the first reading, and the one at the end


def test_processes_of_others_are_listed_and_our_own_is_not(nvml: FakeNvml) -> None:
    assert foreign_processes(0) == [{"pid": 1, "used_bytes": 70}, {"pid": 2, "used_bytes": None}]
    assert foreign_processes("GPU-b") == []


def test_a_card_is_described_by_index_or_uuid(nvml: FakeNvml) -> None:
    assert gpu_facts(0) == {"name": "a card 0", "driver": "600.1", "total_bytes": 80_000}
    assert gpu_facts("GPU-b") == {"name": "a card 1", "driver": "600.1", "total_bytes": 24_000}


def answers() -> list[Any]:
    with DeviceSampler(0) as sampler:
        pass
    return [sampler.device_used_peak_bytes, foreign_processes(0), gpu_facts(0)]


def test_without_a_driver_every_answer_is_unknown(nvml: FakeNvml) -> None:
    nvml.broken = True
    assert answers() == [None, None, None]


def test_without_the_nvml_package_every_answer_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    assert answers() == [None, None, None]


@pytest.mark.gpu
def test_nvml_and_torch_speak_of_the_same_card() -> None:
    import torch

    properties = torch.cuda.get_device_properties(0)
    facts = gpu_facts(f"GPU-{properties.uuid}")
    assert facts is not None
    assert facts["name"] == properties.name
    with DeviceSampler(f"GPU-{properties.uuid}") as sampler:
        kept = torch.empty(256 * MIB, dtype=torch.uint8, device="cuda")
    assert sampler.device_used_peak_bytes is not None
    assert sampler.device_used_peak_bytes >= kept.nbytes
