"""One record from those of two ranks, every number of it worked out by hand."""

from dataclasses import replace

import pytest

from memexp.results.record import Data, Loss, Memory, Record, Speed, Timing
from memexp.run.merge import merge_ranks


def of_rank(**parts: object) -> Record:
    return Record(id="a", sweep="s", status="ok", effective={"launch": "torchrun"}, **parts)  # type: ignore[arg-type]


FIRST = of_rank(
    notes=("slow",),
    memory=Memory(
        load_peak_allocated_bytes=50,
        peak_allocated_bytes=100,
        peak_reserved_bytes=128,
        peak_phase="forward",
        phases={"forward": {"peak_allocated_bytes": 100, "peak_reserved_bytes": 128}},
        host_peak_bytes=1000,
        alloc_retries=1,
        per_step=({"step": 1, "phase": "measured", "peak_allocated_bytes": 100, "peak_reserved_bytes": 128},),
    ),
    # Two steps of 10 tokens in 1 s and 2 s, of which 4 are a batch's padding in all.
    speed=Speed(step_seconds=(1.0, 2.0), median_step_seconds=1.5, real_tokens_per_second=20 / 3),
    data=Data(
        rows_in=8, kept_tokens=120, real_tokens=20, padding_fraction=4 / 24, hours_per_epoch=120 / (20 / 3) / 3600
    ),
    loss=Loss((2.0, 1.0), 2.0, 1.0),
    timing=Timing(setup_seconds=4.0, train_seconds=3.0),
)
SECOND = of_rank(
    notes=("slow", "hot"),
    memory=Memory(
        load_peak_allocated_bytes=60,
        peak_allocated_bytes=300,
        peak_reserved_bytes=None,
        peak_phase="backward",
        phases={
            "forward": {"peak_allocated_bytes": 90, "peak_reserved_bytes": None},
            "backward": {"peak_allocated_bytes": 300, "peak_reserved_bytes": None},
        },
        host_peak_bytes=900,
        alloc_retries=2,
        per_step=({"step": 1, "phase": "measured", "peak_allocated_bytes": 300, "peak_reserved_bytes": None},),
    ),
    # Two steps of 20 tokens in 3 s and 1 s, without padding.
    speed=Speed(step_seconds=(3.0, 1.0), median_step_seconds=2.0, real_tokens_per_second=40 / 4),
    data=Data(rows_in=8, kept_tokens=120, real_tokens=40, padding_fraction=0.0, hours_per_epoch=120 / 10 / 3600),
    loss=Loss((4.0, 2.0), 4.0, 2.0),
    timing=Timing(setup_seconds=5.0, train_seconds=2.0),
)


def test_peaks_are_the_highest_of_any_rank() -> None:
    memory = merge_ranks([FIRST, SECOND]).memory
    assert (memory.load_peak_allocated_bytes, memory.peak_allocated_bytes, memory.host_peak_bytes) == (60, 300, 1000)
    assert memory.peak_phase == "backward"
    assert memory.phases == {
        "forward": {"peak_allocated_bytes": 100, "peak_reserved_bytes": 128},
        "backward": {"peak_allocated_bytes": 300, "peak_reserved_bytes": None},
    }
    assert memory.per_step == (
        {"step": 1, "phase": "measured", "peak_allocated_bytes": 300, "peak_reserved_bytes": 128},
    )
    assert memory.alloc_retries == 3


def test_the_peaks_of_each_rank_are_kept() -> None:
    ranks = merge_ranks([FIRST, SECOND]).ranks
    assert [rank["peak_allocated_bytes"] for rank in ranks] == [100, 300]
    assert [rank["real_tokens"] for rank in ranks] == [20, 40]


def test_tokens_are_those_of_all_ranks_over_the_seconds_of_the_slowest() -> None:
    merged = merge_ranks([FIRST, SECOND])
    assert merged.data.real_tokens == 60
    assert merged.speed.step_seconds == (3.0, 2.0)
    assert merged.speed.median_step_seconds == 2.5
    assert merged.speed.real_tokens_per_second == pytest.approx(60 / 5)
    assert merged.data.hours_per_epoch == pytest.approx(120 / 12 / 3600)


def test_padding_is_that_of_all_slots() -> None:
    # 24 slots on the first, 40 on the second: 4 of 64 are padding.
    assert merge_ranks([FIRST, SECOND]).data.padding_fraction == pytest.approx(4 / 64)


def test_losses_are_averaged_step_by_step() -> None:
    assert merge_ranks([FIRST, SECOND]).loss == Loss((3.0, 1.5), 3.0, 1.5)


def test_a_loss_or_a_count_that_one_rank_lacks_is_unknown() -> None:
    without = replace(SECOND, loss=Loss((None, 2.0), None, 2.0), data=replace(SECOND.data, real_tokens=None))
    merged = merge_ranks([FIRST, without])
    assert merged.loss.per_step == (None, 1.5)
    assert merged.data.real_tokens is None
    assert merged.data.padding_fraction is None


def test_what_every_rank_says_is_said_once() -> None:
    merged = merge_ranks([FIRST, SECOND])
    assert merged.notes == ("slow", "hot")
    assert merged.timing == Timing(setup_seconds=5.0, train_seconds=3.0)
    assert merged.effective == {"launch": "torchrun"}
    assert merged.data.rows_in == 8
