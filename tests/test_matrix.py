"""Every trainer with every option of every technique's group: refused with a reason before anything is touched, or run
on the CPU with the option confirmed, or named among those that fell back. Nothing else.

What each trainer takes is written here by hand, from what TRL 1.16 was seen to do with each pair.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sweeping import sweep

from memexp.plan import conf, load_sweep
from memexp.plan.plan import Plan
from memexp.results.record import REASON_KINDS, Record
from memexp.run.launch import run_cell

TRAINERS = ("sft", "dpo", "reward", "grpo", "rloo", "online_dpo")
OFFLINE, ONLINE = ("sft", "dpo", "reward"), ("grpo", "rloo", "online_dpo")
GROUPS = {group: options for group, options in conf.groups().items() if group not in conf.STRUCTURE}
NOWHERE = ("model=tiny", "model.weights=pretrained", "model.path=/nowhere/model", "logger=none")
ROWS = ("data=lengths", "data.rows=12", "data.distribution=[9,17,12,20,5,14,9,11,16,8,13,10]", "max_length=24")
SHORT = ("model=tiny", "logger=none", *ROWS, "steps=1", "unmeasured_steps=0")


def overrides(trainer: str) -> tuple[str, ...]:
    return (f"trainer={trainer}", *(["trainer.max_completion_length=4"] if trainer in ONLINE else []))


def planned(trainer: str, *arguments: str) -> list[Plan]:
    """Cells of a sweep. A length that the trainer does not know is not asked for."""
    taken = [
        a for a in arguments if not (a.startswith("max_length") and "max_length" in conf.values_not_taken(trainer))
    ]
    return load_sweep("backend=cpu", *overrides(trainer), *taken)


# technique: the trainers that have it, where the model and the machine are all right
TAKEN_BY = {
    "packing=bfd": ("sft",),
    "packing=bfd_split": ("sft",),
    "packing=wrapped": ("sft",),
    "padding_free='true' max_length=null": ("sft", "dpo"),
    "checkpointing=full": TRAINERS,
    "checkpointing=selective": ("sft",),
    "peft=lora": TRAINERS,
    "peft=dora": TRAINERS,
    "kernels='true'": (),
    "checkpointing=selective peft=lora": (),
    "checkpointing=full peft=lora": TRAINERS,
    "pad_to_multiple_of=64": ("sft", "dpo", "reward", "grpo", "rloo"),
    "max_length=16": ("sft", "dpo", "reward", "online_dpo"),
    "offload='true'": (),
    "ds3_gather='false'": (),
    "vllm_sleep='true'": (),
}
OFFLOAD = {"sft": "needs_hardware", "dpo": "needs_hardware", "reward": "needs_hardware"}


@cache
def without_a_model(technique: str) -> dict[str, Plan]:
    """Trainer to its cell with this technique, where the model's path leads nowhere."""
    found = {}
    for trainers, more in ((OFFLINE, ()), (ONLINE, ("trainer.max_completion_length=4",))):
        typed = (f"trainer={','.join(trainers)}", *more, *technique.split())
        found |= dict(zip(trainers, load_sweep("backend=cpu", *NOWHERE, *typed), strict=True))
    return found


@pytest.mark.parametrize("technique", TAKEN_BY)
def test_what_a_trainer_lacks_is_refused_before_the_model_is_looked_for(technique: str) -> None:
    for trainer, plan in without_a_model(technique).items():
        assert plan.refusal is not None
        assert (plan.refusal.kind == "not_found") == (trainer in TAKEN_BY[technique]), (trainer, plan.refusal)
        assert plan.refusal.kind in REASON_KINDS


def test_offload_needs_a_gpu_where_the_trainer_has_it_and_is_unknown_to_the_others() -> None:
    for trainer in TRAINERS:
        plan = without_a_model("offload='true'")[trainer]
        assert plan.refusal is not None
        assert plan.refusal.kind == OFFLOAD.get(trainer, "unsupported")
        assert "offload=true" in plan.refusal.reason
        (simulated,) = load_sweep("backend=simulate", *overrides(trainer), "offload='true'", "model=tiny")
        assert (simulated.refusal is None) == (trainer in OFFLOAD)


def test_dpo_takes_padding_free_since_it_trains_all_the_same() -> None:
    for trainer, kind in {
        "sft": "conflict",
        "dpo": "not_found",
        "reward": "unsupported",
        "grpo": "unsupported",
    }.items():
        plan = without_a_model("padding_free='true'")[trainer]
        assert plan.refusal is not None
        assert plan.refusal.kind == kind


@cache
def matrix(trainer: str) -> dict[str, Plan]:
    """`group=option` to its cell, each option alone with all others off."""
    (base,) = planned(trainer, *SHORT)
    cells = {}
    for group, options in GROUPS.items():
        # One cell with nothing asked for is that of every default.
        cells[f"{group}={base.choices[group]}"] = base
        listed = ",".join(f"'{option}'" for option in options if option not in ("auto", base.choices[group]))
        for plan in planned(trainer, *SHORT, f"{group}={listed}") if listed else []:
            cells[f"{group}={plan.choices[group]}"] = plan
    return cells


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_option_is_planned_and_what_is_refused_says_why_in_a_line(trainer: str) -> None:
    cells = matrix(trainer)
    options = {f"{group}={option}" for group, listed in GROUPS.items() for option in listed if option != "auto"}
    assert set(cells) == options
    for typed, plan in cells.items():
        if plan.refusal is not None:
            assert plan.refusal.kind in REASON_KINDS
            assert "\n" not in plan.refusal.reason
            assert plan.refusal.reason.endswith(".")
            assert typed.partition("=")[0] in plan.refusal.reason


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory, warm_cells: None) -> Iterator[dict[str, dict[str, Record]]]:
    """What became of each cell that is not refused and has one process; the same cell is run once."""
    folder = tmp_path_factory.mktemp("matrix")
    done: dict[str, Record] = {}
    found: dict[str, dict[str, Record]] = {}
    for trainer in TRAINERS:
        for typed, plan in matrix(trainer).items():
            if plan.refusal is not None or plan.work.processes > 1:
                continue
            if plan.id not in done:
                done[plan.id] = run(plan, folder)
            found.setdefault(trainer, {})[typed] = done[plan.id]
    yield found


def run(plan: Plan, folder: Path) -> Record:
    path = folder / "cells" / plan.id / "plan.json"
    path.parent.mkdir(parents=True)
    path.write_text(plan.to_json(), encoding="utf-8")
    return run_cell(path)


def fallen(found: dict[str, Record]) -> dict[str, Any]:
    return {typed: record.effective["fell_back"] for typed, record in found.items() if record.effective["fell_back"]}


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_option_that_is_not_refused_trains_and_is_confirmed(
    trainer: str, records: dict[str, dict[str, Record]]
) -> None:
    found = records[trainer]
    assert {typed: record.reason for typed, record in found.items() if record.status != "ok"} == {}
    # trl 1.16, DPOTrainer: "padding_free=True is temporarily unavailable […] Falling back to standard padding".
    expected = {"padding_free=true": ["padding_free=true"]} if trainer == "dpo" else {}
    assert fallen(found) == expected
    for record in found.values():
        assert len(record.loss.per_step) == 1
        assert record.loss.first is not None
        assert record.data.real_tokens
        assert record.memory.worst_case_peak_allocated_bytes


def test_an_option_that_is_on_for_a_trainer_changes_what_it_is_on_for(records: dict[str, dict[str, Record]]) -> None:
    for trainer in TRAINERS:
        full, none = (records[trainer][f"checkpointing={option}"].effective for option in ("full", "none"))
        assert (full["checkpointing"], none["checkpointing"]) == ("full", "none")
        lora, whole = (records[trainer][f"peft={option}"].effective for option in ("lora", "none"))
        assert lora["trainable_parameters"] < whole["trainable_parameters"] / 2
        # PEFT turns its adapters off for the reference, so that no second model is held.
        assert not lora["reference_model"]
        assert whole["reference_model"] == (trainer in ("dpo", "rloo", "online_dpo"))


def test_what_dpo_fell_back_from_is_never_shown_as_a_saving(tmp_path: Path, warm_cells: None) -> None:
    swept = sweep(tmp_path, "-m", *SHORT, "trainer=dpo", "padding_free=false,true")
    padded, fell_back = swept.rows
    assert [row["status"] for row in swept.rows] == ["ok", "ok"]
    assert swept.by("padding_free")["true"]["effective"]["padding_free"] is False
    assert padded["peak_allocated_bytes_vs_baseline"] == "0.0"
    assert fell_back["peak_allocated_bytes_vs_baseline"] == fell_back["real_tokens_per_second_vs_baseline"] == ""
    assert "padding_free=true" in swept.out


@pytest.mark.parametrize("trainer", ONLINE)
def test_the_generation_is_metered_apart(trainer: str, records: dict[str, dict[str, Record]]) -> None:
    record = records[trainer]["packing=none"]
    generation = record.memory.phases["generation"]["peak_allocated_bytes"]
    assert 0 < generation <= record.memory.phases["measured"]["peak_allocated_bytes"]
    # Nothing is kept for a backward pass while sampling.
    assert generation < record.memory.phases["forward"]["peak_allocated_bytes"]
    seconds = {name: phase["median_seconds"] for name, phase in record.speed.phases.items()}
    assert set(seconds) == {"generation", "forward", "backward", "optimizer"}
    assert sum(seconds.values()) <= record.speed.step_seconds[0]
