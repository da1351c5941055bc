"""What a table says below its rows of cells that ran out of memory."""

from dataclasses import replace

import pytest
from made_records import GIB, PACKING, not_ok, swept

from memexp.plan import conf
from memexp.results.grid import Grid
from memexp.results.oom_sentences import oom_sentences
from memexp.results.outcome import outcome
from memexp.results.record import CATEGORIES, Oom, Record

SINGLE = {"trainer": "sft", "batch_size": 4, "max_length": 1024}


def ran_out(phase: str, plan_id: str = "a", load_gib: int | None = None, **choices: object) -> Record:
    oom = Oom(phase, None if phase == "load" else 1, 224 * 2**20, 154 * 2**20, 70 * 2**20)
    record = not_ok(plan_id, "oom", oom=oom, choices={**SINGLE, "packing": "none", **choices})
    load = None if load_gib is None else load_gib * GIB
    return replace(record, memory=replace(record.memory, load_peak_allocated_bytes=load))


def holding(record: Record, **gib: int) -> Record:
    known = dict.fromkeys(CATEGORIES, 0) | {f"{name}_bytes": size * GIB for name, size in gib.items()}
    return replace(record, memory=replace(record.memory, peak_categories=known))


def said(*records: Record) -> list[str]:
    return oom_sentences(Grid(swept(PACKING), records))


def test_out_of_memory_in_load_is_not_short_of_the_one_tensor_that_did_not_fit() -> None:
    record = ran_out("load", load_gib=23, precision="bf16", quantization="none")
    assert outcome(record) == "OOM in load: asked 224 MiB, 154 free, and more is needed than could be seen"
    (line,) = said(record)
    assert line.startswith("This cell ran out in load, with 23.00 GiB of weights so far and more to come: ")
    assert "precision=bf16_weights" in line
    assert "quantization=int8,nf4" in line
    assert "peft" not in line  # it acts on gradients and the optimizer's state


def test_what_the_cell_has_already_is_not_advised() -> None:
    (line,) = said(ran_out("load", precision="bf16_weights", quantization="nf4"))
    assert "precision" not in line
    assert "quantization" not in line


def test_the_largest_part_decides_and_the_batch_counts_among_what_acts_on_activations() -> None:
    (line,) = said(holding(ran_out("forward"), activations=18, weights=6))
    assert "in forward, when the largest part was activations, 18.00 GiB (75%): " in line
    assert "checkpointing=" in line
    assert line.endswith("batch_size and max_length act on that")
    (line,) = said(holding(ran_out("backward"), activations=1, weights=6))
    assert "batch_size" not in line


def test_options_of_another_trainer_are_not_advised() -> None:
    sft_only = [name for name in conf.groups()["packing"] if conf.option("packing", name).get("trainers") == ["sft"]]
    assert sft_only
    (line,) = said(holding(ran_out("forward", trainer="dpo"), activations=18))
    assert "packing=" not in line


def test_where_nobody_knows_what_was_there_the_phase_decides() -> None:
    (line,) = said(ran_out("optimizer"))
    assert "which holds weights, gradients and the optimizer's state: " in line
    assert "optimizer" in line.split(": ")[1] and "checkpointing" not in line


def test_cells_that_ran_out_alike_are_one_sentence_with_the_span_of_their_sizes() -> None:
    cells = [holding(ran_out("forward", name), activations=size) for name, size in (("a", 9), ("b", 12))]
    (line,) = said(*cells)
    assert line.startswith("Every cell ran out in forward")
    assert "9.00 GiB (100%) to 12.00 GiB (100%)" in line


@pytest.mark.parametrize("record", [not_ok("a", "oom"), not_ok("a", "failed"), ran_out("saving")])
def test_of_what_is_not_known_nothing_is_said(record: Record) -> None:
    assert said(record) == []
