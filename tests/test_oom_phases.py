"""Out of device memory in each phase: a card that is just too small for it, and a row that names phase and shortfall.

What each phase takes is read from a run on a large card. The card is then made 1% smaller than that, which is still
more than what comes before it takes.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from sweeping import write_rows

from memexp.plan import load
from memexp.plan.plan import Plan
from memexp.results.record import Record
from memexp.run.worker import Job
from memexp.simulate.cards import CARDS

CARD = "h100_80gb"
# In the order in which a job comes to them. Long rows fill forward and backward; short ones leave the optimizer's step
# the largest (it is the unfused one, which copies), and a long row that is never reached is the worst case.
ROWS = {"wide": [1024] * 8, "narrow": [8] * 8 + [512] * 8}
PHASES = {"load": "wide", "forward": "wide", "backward": "wide", "optimizer": "narrow", "worst_case": "narrow"}


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Plan]:
    folder = tmp_path_factory.mktemp("rows")
    return {
        name: load(
            "backend=simulate", f"gpu={CARD}", "model=qwen2_5_0_5b", "model.config.num_hidden_layers=2", "data=jsonl",
            f"data.path={write_rows(folder / f'{name}.jsonl', lengths)}", "max_length=1024", "batch_size=8",
            "budget.steps=1", "optimizer=adamw",
        )
        for name, lengths in ROWS.items()
    }  # fmt: skip


def run(plan: Plan, folder: Path) -> Record:
    cell = folder / "sweep" / "cells" / plan.id
    cell.mkdir(parents=True)
    return Job(plan, cell, "fresh").run()


@pytest.fixture(scope="module")
def peaks(plans: dict[str, Plan], tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """Bytes that tensors held at the peak of each phase of one step, on a card that is large enough."""
    found = {}
    for name, plan in plans.items():
        record = run(plan, tmp_path_factory.mktemp(name))
        assert record.status == "ok", record.reason
        found[name] = {phase: record.memory.phases[phase]["peak_allocated_bytes"] for phase in PHASES}
    return found


@pytest.mark.parametrize("phase", PHASES)
def test_memory_that_is_short_in_a_phase_is_a_row_that_names_it(
    phase: str,
    plans: dict[str, Plan],
    peaks: dict[str, dict[str, int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs = peaks[PHASES[phase]]
    before = max([needs[earlier] for earlier in list(PHASES)[: list(PHASES).index(phase)]], default=0)
    capacity_bytes = needs[phase] * 99 // 100
    assert capacity_bytes > before  # or the phase could not be the first that is short
    card = CARDS[CARD]
    memory_bytes = card.context_bytes + capacity_bytes
    monkeypatch.setitem(CARDS, CARD, replace(card, memory_bytes=memory_bytes))
    record = run(plans[PHASES[phase]], tmp_path)
    oom = record.memory.oom
    assert record.status == "oom"
    assert oom is not None
    assert oom.phase == phase
    assert oom.short_bytes == oom.requested_bytes - oom.free_bytes > 0
    assert record.memory.capacity_bytes == capacity_bytes
    there = [size for size in record.memory.peak_categories.values() if size is not None]
    # By the time a step runs every byte has a use. The first tensor that did not fit, and nothing else, is not there.
    assert bool(there) == (phase != "load")
    assert phase == "load" or capacity_bytes - oom.requested_bytes - 2**27 < sum(there) <= capacity_bytes
