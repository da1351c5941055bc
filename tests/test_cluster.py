"""The same sweep through Hydra's own cluster launchers: a one-node SLURM that this module starts, and a local Ray.

Run by `make test-cluster`, which installs what it needs; `make test` leaves these out.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from processes import command_lines
from slurm_cluster import missing, one_node_slurm

pytestmark = pytest.mark.cluster
SWEEP = ("backend=cpu", "model=tiny", "packing=bfd,wrapped", "steps=1", "unmeasured_steps=1", "max_length=64")
SLURM = ("hydra/launcher=slurm_cpu", "hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=2")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    absent = missing()
    if absent is not None:
        assert "MEMEXP_REQUIRE_CLUSTER" not in os.environ, absent
        pytest.skip(absent)
    with one_node_slurm(tmp_path_factory.mktemp("slurm")) as environment:
        yield {**os.environ, **environment}


def command(results: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "memexp", "-m", "logger=none", f"results_dir={results}", "sweep=s", *arguments]


def run(results: Path, *arguments: str, environment: dict[str, str] | None = None) -> Any:
    return subprocess.run(
        command(results, *arguments), env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def records(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (results / "s" / "records.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The sweep as a laptop runs it."""
    results = tmp_path_factory.mktemp("here")
    assert run(results, *SWEEP).returncode == 0
    return records(results)


def numbers(found: list[dict[str, Any]]) -> list[Any]:
    return [(r["id"], r["status"], r["loss"]["per_step"], r["memory"]["peak_allocated_bytes"]) for r in found]


def test_slurm_runs_the_same_cells_with_the_same_numbers(
    slurm: dict[str, str], here: list[dict[str, Any]], tmp_path: Path
) -> None:
    done = run(tmp_path, *SLURM, *SWEEP, environment=slurm)
    assert done.returncode == 0, done.stdout + done.stderr
    assert numbers(records(tmp_path)) == numbers(here)
    # Each in the allotment of its own job, not in a process beside the sweep.
    jobs = {record["environment"]["scheduler_job"] for record in records(tmp_path)}
    assert len(jobs) == 2
    assert all(job.startswith("slurm ") for job in jobs)


def test_a_cancelled_job_is_a_killed_row_and_resuming_runs_it(slurm: dict[str, str], tmp_path: Path) -> None:
    # Two cells, of which one would train for an hour.
    arguments = [*SLURM, "backend=cpu", "model=tiny", "max_length=64", "budget.steps=2,100000"]
    with subprocess.Popen(
        command(tmp_path, *arguments), env=slurm, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as sweep:
        job = _job_that_trains(tmp_path)
        subprocess.run(["scancel", job], env=slurm, check=True)
        said, _ = sweep.communicate(timeout=300)
    assert sweep.returncode == 1, said
    assert (tmp_path / "s" / "records.jsonl").exists(), said
    by_status = {record["status"]: record for record in records(tmp_path)}
    assert set(by_status) == {"ok", "killed"}
    assert by_status["killed"]["reason"].startswith(f"its job {job} is ")
    assert not _workers(tmp_path), "the cancelled cell still trains"
    again = run(tmp_path, *arguments, "--dry-run", environment=slurm)
    assert again.returncode == 0


def test_ray_runs_the_same_cells_with_the_same_numbers(here: list[dict[str, Any]], tmp_path: Path) -> None:
    if "MEMEXP_REQUIRE_CLUSTER" not in os.environ:
        pytest.importorskip("hydra_plugins.hydra_ray_launcher")
    done = run(tmp_path, "hydra/launcher=ray", *SWEEP)
    assert done.returncode == 0, done.stdout + done.stderr
    assert numbers(records(tmp_path)) == numbers(here)


def _job_that_trains(results: Path, seconds: float = 120) -> str:
    """The id of the job of the long cell, once it trains."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for path in results.glob("s/cells/*/progress.json"):
            progress = json.loads(path.read_text() or "{}")
            plan = json.loads(path.with_name("plan.json").read_text())
            if plan["choices"]["budget.steps"] == 100000 and progress.get("step", 0) > 1:
                return _job_of(path.parent)
        time.sleep(0.2)
    raise AssertionError("the long cell never trained")


def _job_of(cell: Path) -> str:
    for pid in (pid for pid, command in command_lines() if str(cell / "plan.json") in command):
        with suppress(OSError):  # it has ended since
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            variables = dict(v.split(b"=", 1) for v in environment if b"=" in v)
            array, task = variables.get(b"SLURM_ARRAY_JOB_ID"), variables.get(b"SLURM_ARRAY_TASK_ID")
            if array and task:
                return f"{array.decode()}_{task.decode()}"
    raise AssertionError("no process of the cell belongs to a job")


def _workers(results: Path) -> list[int]:
    return [pid for pid, command in command_lines() if str(results / "s" / "cells") in command]
