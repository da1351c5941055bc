"""The comparison behind `make gpu-check`, on records made by hand."""

from memexp.results.record import Memory, Record, Speed
from tools.gpu_check import compare


def record(allocated: int | None, step: float | None = 1.0, status: str = "ok") -> Record:
    memory = Memory(peak_allocated_bytes=allocated, peak_reserved_bytes=allocated)
    return Record("a", "s", status, cell="packing=bfd", memory=memory, speed=Speed(median_step_seconds=step))


def test_differences_are_of_the_measured_value() -> None:
    lines = compare([(record(101), record(100)), (record(97, 2.0), record(100))])
    assert "allocated +1.00%" in lines[0]
    assert "allocated -3.00%" in lines[1]
    assert "step +100.00%" in lines[1]
    assert lines[2] == "allocated: median 2.00%, 95th 3.00%, worst 3.00% of 2 cells"


def test_a_false_fit_is_shouted() -> None:
    (line, *_) = compare([(record(100), record(None, None, "oom"))])
    assert "PREDICTED ok, WAS oom" in line
    assert "allocated -" in line
