"""Budgets in steps, epochs and tokens, on rows whose lengths are known."""

import itertools

import pytest

from memexp.plan.plan import Budget
from memexp.run.budget import count_steps

ROWS = [5, 9, 13, 3, 7, 11, 3]  # batches of two: 14, 16, 18, 3


def steps(rows: list[int] = ROWS, batch_size: int = 2, accumulation: int = 1, **budget: float) -> tuple[int, int]:
    counted = count_steps(Budget(measured_steps=5, unmeasured_steps=2, **budget), rows, batch_size, accumulation)  # type: ignore[arg-type]
    return counted.unmeasured, counted.measured


def test_without_a_budget_the_steps_are_those_asked_for() -> None:
    assert steps() == (2, 5)


def test_an_epoch_is_every_row_once_with_a_short_last_batch() -> None:
    assert steps(epochs=1) == (2, 2)
    assert steps(epochs=2) == (2, 6)
    assert steps(epochs=0.5) == (1, 1)


def test_accumulation_makes_fewer_steps_of_an_epoch() -> None:
    assert steps(epochs=1, accumulation=2) == (1, 1)
    assert count_steps(Budget(5, 2), ROWS, 2, 3).per_epoch == 2


@pytest.mark.parametrize(("tokens", "total"), [(1, 1), (14, 1), (15, 2), (30, 2), (48, 3), (51, 4), (52, 5)])
def test_a_token_budget_ends_with_the_step_that_reaches_it(tokens: int, total: int) -> None:
    assert sum(steps(tokens=tokens)) == total


@pytest.mark.parametrize("total", [1, 2, 3, 10])
def test_a_step_budget_counts_the_unmeasured_ones_and_measures_at_least_one(total: int) -> None:
    unmeasured, measured = steps(steps=total)
    assert unmeasured + measured == total
    assert (unmeasured, measured >= 1) == (min(2, total - 1), True)


@pytest.mark.parametrize("rows", [[], [0, 0]])
def test_no_token_is_no_budget(rows: list[int]) -> None:
    with pytest.raises(ValueError, match="nothing to train on"):
        steps(rows, tokens=5)


@pytest.mark.parametrize("rows", [ROWS, ROWS[:5], ROWS[:4], ROWS[:1], [*ROWS, 5]])
@pytest.mark.parametrize("processes", [2, 3])
def test_ranks_take_what_accelerate_deals_to_them(rows: list[int], processes: int) -> None:
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler, SequentialSampler

    shards = [
        list(BatchSamplerShard(BatchSampler(SequentialSampler(rows), 2, False), processes, rank))
        for rank in range(processes)
    ]
    # A step is a batch of every rank's: its tokens are all of theirs.
    steps = [sum(rows[index] for batch in batches for index in batch) for batches in zip(*shards, strict=True)]
    reached = list(itertools.accumulate(steps))
    for tokens, total in zip(reached, itertools.count(1), strict=False):
        counted = count_steps(Budget(5, 0, tokens=tokens), rows, 2, 1, processes)
        assert (counted.total, counted.per_epoch) == (total, len(steps))
