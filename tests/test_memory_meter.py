"""Peaks by phase, on a counter that follows a script; every expected figure is worked out by hand."""

from typing import Any

import pytest
import torch

from memexp.measure.counters import CudaCounter
from memexp.measure.memory import MemoryMeter


class Script:
    """A device on which the test says what is held. It reserves in steps of 100 and never gives back."""

    def __init__(self) -> None:
        self.now = self.peak = self.reserved = self.peak_reserved = 0
        self.waits = 0

    def hold(self, *levels: int) -> None:
        for level in levels:
            self.now = level
            self.reserved = max(self.reserved, -(-level // 100) * 100)
            self.peak, self.peak_reserved = max(self.peak, self.now), max(self.peak_reserved, self.reserved)

    def allocated_bytes(self) -> int:
        return self.now

    def reserved_bytes(self) -> int | None:
        return self.reserved

    def peak_allocated_bytes(self) -> int:
        return self.peak

    def peak_reserved_bytes(self) -> int | None:
        return self.peak_reserved

    def reset_peak(self) -> None:
        self.peak, self.peak_reserved = self.now, self.reserved

    def synchronize(self) -> None:
        self.waits += 1

    def alloc_retries(self) -> int | None:
        return 3

    def capacity_bytes(self) -> int | None:
        return 10_000


@pytest.fixture
def device() -> Script:
    return Script()


@pytest.fixture
def meter(device: Script) -> MemoryMeter:
    return MemoryMeter(device)


def step(meter: MemoryMeter, device: Script, number: int, phase: str, activations: int) -> None:
    """A step on 200 bytes of weights and optimizer: it ends as it began."""
    with meter.phase("forward"):
        device.hold(200 + activations)
    with meter.phase("backward"):
        device.hold(200 + activations + 50, 250)
    with meter.phase("optimizer"):
        device.hold(290, 200)
    meter.step_done(number, phase)


def test_each_phase_has_its_own_peak(meter: MemoryMeter, device: Script) -> None:
    device.hold(1_000, 0)  # before any phase: nobody's
    with meter.phase("load"):
        device.hold(999, 100)
    with meter.phase("warmup"):
        device.hold(200)
        step(meter, device, 1, "warmup", activations=100)
    with meter.phase("measured"):
        step(meter, device, 2, "measured", activations=150)
        step(meter, device, 3, "measured", activations=120)
    with meter.phase("worst_case"):
        step(meter, device, 4, "worst_case", activations=700)

    assert meter.summary() == {
        "load_peak_allocated_bytes": 999,
        "peak_allocated_bytes": 400,
        "peak_reserved_bytes": 1_000,  # what loading left reserved
        "peak_phase": "backward",
        "phases": {
            "load": {"peak_allocated_bytes": 999, "peak_reserved_bytes": 1_000},
            "warmup": {"peak_allocated_bytes": 350, "peak_reserved_bytes": 1_000},
            "forward": {"peak_allocated_bytes": 350, "peak_reserved_bytes": 1_000},
            "backward": {"peak_allocated_bytes": 400, "peak_reserved_bytes": 1_000},
            "optimizer": {"peak_allocated_bytes": 290, "peak_reserved_bytes": 1_000},
            "measured": {"peak_allocated_bytes": 400, "peak_reserved_bytes": 1_000},
            "worst_case": {"peak_allocated_bytes": 950, "peak_reserved_bytes": 1_000},
        },
        "worst_case_peak_allocated_bytes": 950,
        "per_step": (
            {"step": 1, "phase": "warmup", "peak_allocated_bytes": 350, "peak_reserved_bytes": 1_000},
            {"step": 2, "phase": "measured", "peak_allocated_bytes": 400, "peak_reserved_bytes": 1_000},
            {"step": 3, "phase": "measured", "peak_allocated_bytes": 370, "peak_reserved_bytes": 1_000},
            {"step": 4, "phase": "worst_case", "peak_allocated_bytes": 950, "peak_reserved_bytes": 1_000},
        ),
        "alloc_retries": 3,
        "capacity_bytes": 10_000,
    }


def test_a_phase_that_never_ran_is_unknown_and_not_zero(meter: MemoryMeter) -> None:
    summary = meter.summary()
    assert summary["load_peak_allocated_bytes"] is None
    assert summary["peak_allocated_bytes"] is None
    assert summary["peak_reserved_bytes"] is None
    assert summary["peak_phase"] is None
    assert summary["worst_case_peak_allocated_bytes"] is None
    assert summary["phases"] == {}
    assert (meter.current_phase, meter.current_step, meter.open_phases) == (None, None, ())


def test_a_reserved_peak_that_the_device_cannot_tell_stays_unknown(meter: MemoryMeter, device: Script) -> None:
    device.peak_reserved_bytes = lambda: None  # type: ignore[method-assign]
    with meter.phase("measured"):
        device.hold(70)
    assert meter.summary()["peak_reserved_bytes"] is None
    assert meter.summary()["phases"]["measured"] == {"peak_allocated_bytes": 70, "peak_reserved_bytes": None}


def test_the_summary_names_fields_of_the_record(meter: MemoryMeter) -> None:
    from memexp.results.record import Memory

    assert Memory(**meter.summary()).capacity_bytes == 10_000


def test_the_device_is_waited_for_at_outer_edges_only(meter: MemoryMeter, device: Script) -> None:
    with meter.phase("warmup"):
        assert device.waits == 1
        step(meter, device, 1, "warmup", activations=10)
        assert device.waits == 1
    assert device.waits == 2


def test_an_inner_peak_counts_in_every_phase_around_it(meter: MemoryMeter, device: Script) -> None:
    with meter.phase("measured"):
        with meter.phase("generation"):
            device.hold(10)
            with meter.phase("forward"):
                device.hold(80, 20)
            device.hold(30)
        device.hold(40)
    phases = {name: peak["peak_allocated_bytes"] for name, peak in meter.summary()["phases"].items()}
    assert phases == {"measured": 80, "generation": 80, "forward": 80}
    assert meter.summary()["peak_phase"] == "generation"


def test_a_peak_between_inner_phases_is_the_outer_ones(meter: MemoryMeter, device: Script) -> None:
    with meter.phase("measured"):
        with meter.phase("forward"):
            device.hold(10)
        device.hold(90, 10)
    assert meter.summary()["peak_phase"] == "measured"
    assert meter.summary()["phases"]["forward"]["peak_allocated_bytes"] == 10


def test_the_worst_case_and_loading_leave_inner_phases_alone(meter: MemoryMeter, device: Script) -> None:
    for outer in ("load", "worst_case"):
        with meter.phase(outer), meter.phase("forward"):
            device.hold(500, 0)
    assert list(meter.summary()["phases"]) == ["load", "worst_case"]


def test_a_steps_peak_starts_with_the_step(meter: MemoryMeter, device: Script) -> None:
    with meter.phase("load"):
        device.hold(900, 100)
    with meter.phase("warmup"):
        device.hold(300, 100)
        meter.step_done(1, "warmup")
        device.hold(200, 100)
        meter.step_done(2, "warmup")
    assert [s["peak_allocated_bytes"] for s in meter.summary()["per_step"]] == [300, 200]


def test_callbacks_may_enter_and_leave(meter: MemoryMeter, device: Script) -> None:
    meter.enter("measured")
    meter.enter("forward")
    device.hold(60)
    assert (meter.current_phase, meter.current_step) == ("forward", 1)
    meter.leave("forward")
    assert meter.current_phase == "measured"
    meter.leave("measured")
    assert meter.current_phase is None
    assert meter.summary()["phases"]["forward"]["peak_allocated_bytes"] == 60


def test_leaving_a_phase_that_is_not_open_is_an_error(meter: MemoryMeter) -> None:
    meter.enter("warmup")
    with pytest.raises(ValueError, match="phase 'forward' is not open; open are \\['warmup'\\]"):
        meter.leave("forward")


def run_out_of_memory(meter: MemoryMeter, device: Script) -> None:
    with meter.phase("measured"):
        device.hold(100)
        step(meter, device, 1, "measured", activations=10)
        meter.enter("forward")
        device.hold(777)
        raise MemoryError


def test_an_exception_closes_its_phases_and_says_where_it_was(meter: MemoryMeter, device: Script) -> None:
    with pytest.raises(MemoryError):
        run_out_of_memory(meter, device)
    assert meter.open_phases == ("measured", "forward")
    assert meter.current_phase == "forward"
    assert meter.current_step == 2
    assert meter.summary()["peak_allocated_bytes"] == 777
    assert meter.summary()["phases"]["forward"]["peak_allocated_bytes"] == 777
    assert device.waits == 1  # after an error the device may never answer


def test_a_new_phase_after_an_exception_starts_clean(meter: MemoryMeter, device: Script) -> None:
    with pytest.raises(MemoryError):
        run_out_of_memory(meter, device)
    device.hold(5)
    with meter.phase("worst_case"):
        device.hold(50)
        assert meter.open_phases == ("worst_case",)
        assert meter.current_step is None
    assert meter.summary()["worst_case_peak_allocated_bytes"] == 50


def test_an_exception_that_is_handled_inside_leaves_no_trace(meter: MemoryMeter, device: Script) -> None:
    with meter.phase("measured"):
        with pytest.raises(MemoryError), meter.phase("forward"):
            raise MemoryError
        device.hold(40)
    assert meter.summary()["peak_phase"] == "measured"
    assert meter.current_phase is None


# --- the CUDA counter -------------------------------------------------------------------------------------------------


def test_the_cuda_counter_reads_the_allocators_own_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    statistics = {
        "num_alloc_retries": 2,
        "allocated_bytes": {"all": {"current": 10, "peak": 30}, "small_pool": {"current": 1, "peak": 3}},
        "reserved_bytes": {"all": {"current": 40, "peak": 50}, "small_pool": {"current": 4, "peak": 5}},
    }
    monkeypatch.setattr(torch.cuda, "init", lambda: calls.append("init"))
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: {1: statistics}[device])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: calls.append(("reset", device)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: calls.append(("wait", device)))
    counter = CudaCounter("cuda:1")
    assert (counter.allocated_bytes(), counter.peak_allocated_bytes()) == (10, 30)
    assert (counter.reserved_bytes(), counter.peak_reserved_bytes()) == (40, 50)
    assert counter.alloc_retries() == 2
    assert calls == ["init"]  # readers do not wait
    counter.reset_peak()
    counter.synchronize()
    assert calls[1:] == [("reset", 1), ("wait", 1)]


@pytest.mark.gpu
def test_the_cuda_counter_agrees_with_torchs_own_functions() -> None:
    counter = CudaCounter()
    counter.reset_peak()
    kept = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
    torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
    counter.synchronize()
    assert counter.allocated_bytes() == torch.cuda.memory_allocated() >= kept.nbytes
    assert counter.peak_allocated_bytes() == torch.cuda.max_memory_allocated() >= 8 << 20
    assert counter.reserved_bytes() == torch.cuda.memory_reserved()
    assert counter.peak_reserved_bytes() == torch.cuda.max_memory_reserved()
    assert counter.alloc_retries() == torch.cuda.memory_stats()["num_alloc_retries"]
    assert counter.capacity_bytes() == torch.cuda.mem_get_info()[1]
    counter.reset_peak()
    assert counter.peak_allocated_bytes() == counter.allocated_bytes()


@pytest.mark.gpu
def test_a_meter_on_a_gpu_keeps_the_peak_of_a_phase_that_is_over() -> None:
    meter = MemoryMeter(CudaCounter())
    with meter.phase("load"):
        torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    with meter.phase("measured"):
        torch.empty(16 << 20, dtype=torch.uint8, device="cuda")
    summary = meter.summary()
    assert summary["load_peak_allocated_bytes"] - summary["peak_allocated_bytes"] == 48 << 20
    assert summary["peak_reserved_bytes"] >= 64 << 20
