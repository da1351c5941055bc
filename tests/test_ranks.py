"""Cells of several processes: what they train on, how they end together, and what is said of the one that died."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sweeping import LENGTHS, sweep

from memexp.plan import load
from memexp.results.record import Record
from memexp.results.store import write_record
from memexp.run import ranks
from memexp.run.launch import run_cell
from memexp.run.ranks import MEETING_VARIABLE, Ranks, rank_variables
from memexp.run.unmeasured import base_record

TWO_RANKS = load("backend=cpu", "launch=torchrun", "logger=none")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, dict[str, Any]]:
    """Two steps in two processes with two rows each, and the same in one process with four rows."""
    folder = tmp_path_factory.mktemp("trained")
    rows = folder / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"input_ids": [*range(4 + i, 4 + i + n)]}) + "\n" for i, n in enumerate(LENGTHS))
    )
    arguments = ("data=jsonl", f"data.path={rows}", "max_length=16", "steps=1", "unmeasured_steps=1", "logger=none")
    single = sweep(folder / "single", *arguments, "batch_size=4", "-m", "launch=single").by("launch")
    shared = sweep(folder / "shared", *arguments, "batch_size=2", "-m", "launch=torchrun").by("launch")
    return single | shared


@pytest.mark.usefixtures("warm_cells")
def test_two_ranks_train_on_what_one_process_with_their_batches_trains_on(trained: dict[Any, dict[str, Any]]) -> None:
    single, shared = trained["single"], trained["torchrun"]
    assert {record["status"] for record in trained.values()} == {"ok"}
    # Steps of the rows (5, 9, 13, 3) and (7, 11, 3, 5): the ranks take two of each in turn.
    assert shared["data"]["real_tokens"] == single["data"]["real_tokens"] == 30 + 26
    assert [rank["real_tokens"] for rank in shared["ranks"]] == [(5 + 9) + (7 + 11), (13 + 3) + (3 + 5)]
    assert shared["data"]["steps_per_epoch"] == single["data"]["steps_per_epoch"] == 2
    # Rank 0 pads to 9 and 11 columns, rank 1 to 13 and 5.
    assert shared["data"]["padding_fraction"] == pytest.approx(1 - 56 / (2 * 9 + 2 * 11 + 2 * 13 + 2 * 5))


@pytest.mark.usefixtures("warm_cells")
def test_the_loss_is_that_of_the_whole_batch(trained: dict[Any, dict[str, Any]]) -> None:
    single, shared = trained["single"], trained["torchrun"]
    assert shared["loss"]["per_step"] == pytest.approx(single["loss"]["per_step"], abs=2e-5)


@pytest.mark.usefixtures("warm_cells")
def test_the_launch_is_read_from_the_trainer(trained: dict[Any, dict[str, Any]]) -> None:
    effective = {name: record["effective"] for name, record in trained.items()}
    assert {name: (seen["launch"], seen["processes"]) for name, seen in effective.items()} == {
        "single": ("single", 1),
        "torchrun": ("torchrun", 2),
    }
    assert effective["torchrun"]["fell_back"] == []
    assert len({seen["parameters"] for seen in effective.values()}) == 1


def test_zero3_samples_from_gathered_and_from_split_weights(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"Count to {n}"}) + "\n" for n in range(8)))
    swept = sweep(
        tmp_path / "results", "-m", "ds3_gather=true,false", "launch=zero3", "trainer=grpo", "data=jsonl",
        f"data.path={tmp_path / 'prompts.jsonl'}", "trainer.max_completion_length=8", "trainer.num_generations=2",
        "batch_size=2", "steps=1", "unmeasured_steps=0", "logger=none",
    )  # fmt: skip
    found = swept.by("ds3_gather")
    assert {name: record["status"] for name, record in found.items()} == {"true": "ok", "false": "ok"}
    assert {name: record["effective"]["ds3_gather"] for name, record in found.items()} == {"true": True, "false": False}
    for record in found.values():
        assert record["effective"]["launch"] == "zero3"
        assert record["effective"]["fell_back"] == []
        # Weights that are split are counted whole: 4,096 embeddings of 64, two layers, one norm.
        layer = 64 * (64 + 2 * 32) + (64 + 2 * 32) + 64 * 64 + 3 * 64 * 128 + 2 * 64
        assert record["effective"]["parameters"] == 4096 * 64 + 2 * layer + 64
        assert len(record["ranks"]) == 2
    generation = {name: r["memory"]["phases"]["generation"]["peak_allocated_bytes"] for name, r in found.items()}
    assert generation["false"] < generation["true"]


# What stands in for a worker below: RANK decides what becomes of it.
DIES = "import os, signal, time\nos.kill(os.getpid(), signal.SIGKILL) if os.environ['RANK'] == '1' else time.sleep(600)"
LEAVES = "import os, sys, time\nsys.exit(3) if os.environ['RANK'] == '1' else time.sleep(600)"
HANGS = "import time\ntime.sleep(600)"


@pytest.fixture
def started() -> list["subprocess.Popen[bytes]"]:
    """The ranks that `run` has started, in their order."""
    return []


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list["subprocess.Popen[bytes]"]
) -> Callable[[str], Record]:
    """Run a cell of two ranks that are this code, and see that none of them is left."""

    def run_code(code: str, **changes: Any) -> Record:
        plan = replace(TWO_RANKS, **changes)
        folder = tmp_path / "s" / "cells" / plan.id
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text(plan.to_json())

        def start(plan_path: Path, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
            command = [sys.executable, "-c", code, str(plan_path.with_name(f"rank{environment['RANK']}.json"))]
            started.append(subprocess.Popen(command, env=environment, start_new_session=True))
            return started[-1]

        monkeypatch.setattr(ranks, "start_worker", start)
        record = run_cell(folder / "plan.json")
        assert record is not None
        assert len(started) == 2
        assert all(process.poll() is not None for process in started)
        assert not list(folder.glob("measured*"))
        return record

    return run_code


def test_a_rank_that_is_killed_ends_the_others_and_the_row_says_which(
    run: Callable[[str], Record], started: list["subprocess.Popen[bytes]"]
) -> None:
    record = run(DIES)
    assert record.status == "killed"
    assert record.reason is not None
    assert record.reason.startswith("rank 1: ended by SIGKILL")
    assert [rank.returncode for rank in started] == [-signal.SIGKILL, -signal.SIGKILL]


def test_a_rank_that_exits_is_named_with_its_code(
    run: Callable[[str], Record], started: list["subprocess.Popen[bytes]"]
) -> None:
    record = run(LEAVES)
    assert record.status == "failed"
    assert record.reason is not None
    assert record.reason.startswith("rank 1: exited with code 3")
    assert [rank.returncode for rank in started] == [-signal.SIGKILL, 3]


def test_ranks_that_hang_are_a_timeout(run: Callable[..., Record]) -> None:
    record = run(HANGS, timeout_seconds=0.5)
    assert record.status == "timeout"
    assert record.reason == "ended after timeout_seconds=0.5"


def test_the_reason_is_that_of_the_rank_that_failed_first(tmp_path: Path, run: Callable[[str], Record]) -> None:
    record = base_record(TWO_RANKS, "s")
    folder = tmp_path / "s" / "cells" / TWO_RANKS.id
    for rank, reason in enumerate(("Connection closed by peer", "it cannot count")):
        write_record(tmp_path / f"left{rank}.json", replace(record, reason=reason))
    # Rank 1 fails, and rank 0 in consequence: its record is there as well, and it is still about to end.
    record = run(
        "import os, shutil, sys, time\n"
        "rank = os.environ['RANK']\n"
        f"shutil.copy(f'{tmp_path}/left{{rank}}.json', f'{folder}/measured.rank{{rank}}.json')\n"
        f"while not os.path.exists('{folder}/measured.rank0.json'): time.sleep(0.01)\n"
        "sys.exit(1) if rank == '1' else time.sleep(600)"
    )
    assert record.status == "failed"
    assert record.reason == "rank 1: it cannot count"


def test_a_refusal_is_of_the_data_and_of_no_rank(tmp_path: Path, run: Callable[[str], Record]) -> None:
    refused = replace(base_record(TWO_RANKS, "s"), status="refused", reason_kind="invalid_data", reason="row 1 is null")
    write_record(tmp_path / "left.json", refused)
    folder = tmp_path / "s" / "cells" / TWO_RANKS.id
    record = run(
        "import os, shutil, sys\n"
        f"shutil.copy('{tmp_path}/left.json', f'{folder}/measured.rank{{os.environ[\"RANK\"]}}.json')\n"
        "sys.exit(1)"
    )
    assert (record.status, record.reason_kind, record.reason) == ("refused", "invalid_data", "row 1 is null")


def test_two_cells_meet_in_two_places_and_take_no_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "start_worker", lambda path, environment: subprocess.Popen(["true"], env=environment))
    met = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        cell = Ranks(TWO_RANKS, tmp_path / name / "plan.json")
        met.append(cell._folder.name)
        cell.kill()
    assert met[0] != met[1]
    variables = [rank_variables(TWO_RANKS, rank, tmp_path) for rank in (0, 1)]
    assert [(v["RANK"], v["LOCAL_RANK"], v["WORLD_SIZE"]) for v in variables] == [("0", "0", "2"), ("1", "1", "2")]
    assert variables[0][MEETING_VARIABLE] == variables[1][MEETING_VARIABLE]
    assert not any("PORT" in name for v in variables for name in v)
    assert not any(os.path.exists(folder) for folder in met)
