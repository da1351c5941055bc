"""What a technique that must not change the loss did to it: the same, another one, or nothing that can be said."""

from dataclasses import replace
from typing import Any

import pytest
from made_records import made, swept

from memexp.results.grid import Grid
from memexp.results.record import Data, Loss, Record
from memexp.results.sweep import Axis
from memexp.results.verdict import judged, sentences

CHECKPOINTING = Axis("checkpointing", ("none", "full"), "none")
PACKING = Axis("packing", ("none", "bfd"), "none")


def cell(plan_id: str, losses: tuple[float | None, ...], dtype: str | None = None, **choices: Any) -> Record:
    base = {"checkpointing": "none", "packing": "none", "trainer": "sft", "seed": 0}
    record = made(plan_id, choices={**base, **choices}, effective={"autocast_dtype": dtype})
    return replace(record, loss=Loss(per_step=losses))


def verdict(axis: Axis, first: Record, second: Record) -> Loss:
    (baseline, other) = judged(swept(axis, cells="ab"), [first, second])
    assert baseline.loss.verdict is None
    return other.loss


@pytest.mark.parametrize(
    ("losses", "dtype", "said"),
    [
        ((8.0, 4.0), None, "same"),
        ((8.0, 4.0007), None, "same"),  # 1e-4 of 8 is 0.0008
        ((8.0, 4.0009), None, "different"),
        ((8.0, 4.03), "bfloat16", "same"),  # 2**-8 of 8 is 0.03125
        ((8.0, 4.04), "bfloat16", "different"),
    ],
)
def test_every_step_is_held_to_the_rounding_of_its_arithmetic(
    losses: tuple[float, ...], dtype: str | None, said: str
) -> None:
    loss = verdict(CHECKPOINTING, cell("a", (8.0, 4.0), dtype), cell("b", losses, dtype, checkpointing="full"))
    assert loss.verdict == said
    assert loss.max_abs_difference == pytest.approx(abs(losses[1] - 4.0))
    assert loss.tolerance == pytest.approx(8 / 256 if dtype else 8e-4)


@pytest.mark.parametrize(
    "other",
    [
        cell("b", (8.0,), checkpointing="full"),  # fewer steps
        cell("b", (8.0, None), checkpointing="full"),  # simulated, or not finite
        cell("b", (8.0, 4.0), checkpointing="full", learning_rate=1.0),  # another job
        replace(cell("b", (8.0, 4.0), checkpointing="full"), data=Data(real_tokens=7)),
        replace(cell("b", (8.0, 4.0), checkpointing="full"), effective={"fell_back": ["checkpointing=full"]}),
        replace(cell("b", (8.0, 4.0), checkpointing="full"), status="failed"),
    ],
)
def test_without_the_same_work_there_is_no_verdict(other: Record) -> None:
    assert verdict(CHECKPOINTING, cell("a", (8.0, 4.0)), other).verdict is None


def test_packing_may_change_the_loss_and_a_sampling_trainer_may_sample_otherwise() -> None:
    assert verdict(PACKING, cell("a", (8.0,)), cell("b", (8.0,), packing="bfd")).verdict is None
    first, second = cell("a", (8.0,), trainer="grpo"), cell("b", (8.0,), trainer="grpo", checkpointing="full")
    assert verdict(CHECKPOINTING, first, second).verdict is None


def test_a_repeat_is_held_against_the_baseline_of_its_own_seed() -> None:
    sweep = swept(CHECKPOINTING, Axis("seed", (0, 1), 0), cells="abcd")
    records = [
        cell("a", (8.0,)),
        cell("b", (9.0,), seed=1),
        cell("c", (8.0,), checkpointing="full"),
        cell("d", (9.0,), checkpointing="full", seed=1),
    ]
    assert [record.loss.verdict for record in judged(sweep, records)] == [None, None, "same", "same"]


def test_both_verdicts_are_said_in_a_line() -> None:
    sweep = swept(CHECKPOINTING, cells="ab")
    for losses, said in {
        (8.0,): "checkpointing=full: the same loss",
        (9.0,): "checkpointing=full has another loss",
    }.items():
        records = judged(sweep, [cell("a", (8.0,)), cell("b", losses, checkpointing="full")])
        (line,) = sentences(Grid(sweep, records))
        assert line.startswith(said)
