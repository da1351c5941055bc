"""Many cells: each composed once and let go of, one table, and nothing run twice."""

import gc
import weakref
from pathlib import Path

import pytest
from omegaconf import DictConfig
from sweeping import sweep

from memexp.plan import conf
from memexp.plan.cells import plan_cells
from memexp.plan.compose import compose_cells
from memexp.plan.machine import Machine
from tools.quick_cells import PEAK, quick_server

CELLS = 15
GRID = ("-m", f"seed=range(0,{CELLS})", "logger=none", "sweep=many", "jobs=2")


def test_a_table_of_many_cells_is_whole_and_resuming_runs_what_is_left(tmp_path: Path) -> None:
    with quick_server():
        first = sweep(tmp_path, *GRID)
        assert first.code == 0
        assert [record["memory"]["peak_allocated_bytes"] for record in first.records] == [
            PEAK + n for n in range(CELLS)
        ]
        lost = [record["id"] for record in first.records[5:8]]
        for cell in lost:
            (tmp_path / "many" / "cells" / cell / "record.json").unlink()
        again = sweep(tmp_path, *GRID)
    assert f"3 to run, {CELLS - 3} finished before" in again.out
    assert len(again.records) == CELLS
    assert not list(tmp_path.rglob("*.tmp"))
    assert not list(tmp_path.rglob("progress.json"))


def test_a_config_is_gone_when_its_cell_is_planned() -> None:
    (composed,) = compose_cells([["backend=cpu"]])
    alive: list[weakref.ref[DictConfig]] = []
    most = 0

    def configs() -> object:
        nonlocal most
        for _ in range(20):
            config = composed.copy()
            alive.append(weakref.ref(config))
            yield config
            del config
            gc.collect()
            most = max(most, sum(ref() is not None for ref in alive))

    planned = plan_cells(configs(), Machine())  # type: ignore[arg-type]
    assert len(planned.plans) == 20
    assert most <= 2  # the first, which speaks for the sweep, and the one at hand


@pytest.mark.parametrize("key", ["jobs", "rerun", "fail_fast", "timeout_seconds", "isolation"])
def test_how_a_sweep_is_run_is_no_part_of_what_a_cell_is(key: str) -> None:
    from memexp.plan import load

    value = {"jobs": "7", "rerun": "ok", "fail_fast": "false", "timeout_seconds": "9", "isolation": "fresh"}[key]
    assert key in conf.primary()
    assert load("backend=cpu", f"{key}={value}").id == load("backend=cpu").id
    assert key not in load("backend=cpu", f"{key}={value}").choices
