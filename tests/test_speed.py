"""Step times and rates on clocks that the test moves by hand."""

import pytest

from memexp.measure import speed
from memexp.measure.speed import StepClock, rates
from memexp.measure.tokens import BatchCount


class Clock:
    """A host's clock, and a device's that runs behind it until someone waits."""

    def __init__(self) -> None:
        self.host_seconds = 0.0
        self.device_seconds = 0.0
        self.waits = 0

    def issue(self, device_seconds: float) -> None:
        self.host_seconds += 0.001
        self.device_seconds += device_seconds

    def wait(self) -> None:
        self.waits += 1
        self.host_seconds = max(self.host_seconds, self.device_seconds)
        self.device_seconds = self.host_seconds


class DeviceEvent:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def record(self) -> None:
        self.waits_when_recorded = self.clock.waits
        self.seconds = self.clock.device_seconds

    def elapsed_time(self, end: "DeviceEvent") -> float:
        assert self.clock.waits > end.waits_when_recorded, "read before the device had passed it"
        return (end.seconds - self.seconds) * 1000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(speed.time, "perf_counter", lambda: clock.host_seconds)
    return clock


def test_a_step_takes_until_the_device_is_done(clock: Clock) -> None:
    steps = StepClock(clock.wait)
    clock.issue(50.0)  # still running when the step begins, and none of its own time
    with steps.step():
        clock.issue(2.0)
        clock.issue(1.0)
        assert clock.waits == 1
    assert clock.waits == 2
    assert steps.step_seconds == pytest.approx((3.0,))


def test_phases_on_a_device_are_timed_there_without_waiting(clock: Clock) -> None:
    steps = StepClock(clock.wait, lambda: DeviceEvent(clock))
    for forward_seconds in (2.0, 4.0):
        with steps.step():
            for _ in range(2):  # micro-batches add up
                with steps.phase("forward"):
                    clock.issue(forward_seconds)
                with steps.phase("backward"):
                    clock.issue(3.0)
    assert clock.waits == 4
    assert steps.phases() == {"forward": {"median_seconds": pytest.approx(6.0)}, "backward": {"median_seconds": 6.0}}


def test_phases_on_the_host_are_timed_by_its_clock(clock: Clock) -> None:
    steps = StepClock(clock.wait)
    with steps.step(), steps.phase("optimizer"):
        clock.host_seconds += 7.0
    assert steps.phases() == {"optimizer": {"median_seconds": pytest.approx(7.0)}}


def test_a_phase_within_one_of_its_name_is_timed_once(clock: Clock) -> None:
    steps = StepClock(clock.wait)
    with steps.step(), steps.phase("forward"):
        clock.host_seconds += 1.0
        steps.enter("forward")
        clock.host_seconds += 1.0
    assert steps.phases()["forward"]["median_seconds"] == pytest.approx(2.0)


def test_what_is_outside_of_a_step_is_not_timed(clock: Clock) -> None:
    steps = StepClock(clock.wait)
    with steps.phase("forward"):
        clock.host_seconds += 1.0
    steps.end_step()
    assert (steps.step_seconds, steps.phases(), clock.waits) == ((), {}, 0)


def test_a_step_that_raises_is_left_out(clock: Clock) -> None:
    steps = StepClock(clock.wait)
    with pytest.raises(MemoryError), steps.step(), steps.phase("forward"):
        clock.host_seconds += 1.0
        raise MemoryError
    assert (steps.step_seconds, steps.phases()) == ((), {})


def test_rates_are_a_sum_over_a_sum() -> None:
    counts = [BatchCount(100, 90, 128, 4), BatchCount(20, 10, 128, 2), BatchCount(60, 50, 128, 3)]
    assert rates([1.0, 1.0, 4.0], counts) == {
        "median_step_seconds": 1.0,
        "real_tokens_per_second": 180 / 6,  # and not 180 / 3 over the median
        "loss_tokens_per_second": 150 / 6,
        "slot_tokens_per_second": 384 / 6,
        "samples_per_second": 9 / 6,
    }


def test_rates_name_fields_of_the_record() -> None:
    from memexp.results.record import Speed

    assert Speed(**rates([2.0], [BatchCount(4, 3, 8, 1)])).samples_per_second == 0.5


def test_a_rate_of_what_was_not_counted_is_unknown() -> None:
    assert rates([2.0], [BatchCount(10, None, 16, None)]) == {
        "median_step_seconds": 2.0,
        "real_tokens_per_second": 5.0,
        "loss_tokens_per_second": None,
        "slot_tokens_per_second": 8.0,
        "samples_per_second": None,
    }


def test_nothing_measured_is_unknown_and_not_zero() -> None:
    assert set(rates([], []).values()) == {None}
    assert set(rates([], [BatchCount(10, 9, 16, 1)]).values()) == {None}
    assert rates([2.0], [])["real_tokens_per_second"] is None


@pytest.mark.gpu
def test_cuda_events_time_a_phase_within_its_step() -> None:
    import torch

    steps = StepClock(torch.cuda.synchronize, lambda: torch.cuda.Event(enable_timing=True))
    x = torch.ones(4096, 4096, device="cuda")
    with steps.step():
        with steps.phase("forward"):
            for _ in range(20):
                x = x @ x
        with steps.phase("optimizer"):
            pass
    phases = {name: phase["median_seconds"] for name, phase in steps.phases().items()}
    assert 0 <= phases["optimizer"] < phases["forward"] < steps.step_seconds[0]
