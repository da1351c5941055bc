"""The same sweep through Hydra's own cluster launchers: a one-node SLURM that this module starts, and a local Ray.

Run by `make test-cluster`, which installs what it needs; `make test` leaves these out.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from processes import command_lines, wait_until
from slurm_cluster import missing, one_node_slurm

pytestmark = pytest.mark.cluster
SWEEP = ("backend=cpu", "model=tiny", "packing=bfd,wrapped", "steps=1", "unmeasured_steps=1", "max_length=64")
# Each takes the whole node. The first would train for an hour.
LONG_AND_SHORT = ("hydra/launcher=slurm_cpu", f"hydra.launcher.cpus_per_task={os.cpu_count()}",
                  "hydra.launcher.mem_gb=2", "backend=cpu", "model=tiny", "max_length=64", "unmeasured_steps=0",
                  "budget.steps=100000,2")  # fmt: skip
SLURM = ("hydra/launcher=slurm_cpu", "hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=2")
# As memexp, but for the seconds between two questions to squeue, which a cluster is spared and a test need not wait.
PROGRAM = (
    "import sys; from memexp.run import cluster; from memexp.cli import main; cluster._SOON_SECONDS = 1;"
    "sys.exit(main())"
)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    absent = missing()
    if absent is not None:
        assert "MEMEXP_REQUIRE_CLUSTER" not in os.environ, absent
        pytest.skip(absent)
    with one_node_slurm(tmp_path_factory.mktemp("slurm")) as environment:
        yield {**os.environ, **environment}


def command(results: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, "-m", "logger=none", f"results_dir={results}", "sweep=s", *arguments]


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


def test_a_cancelled_job_is_a_killed_row_and_the_next_waits_with_its_reason(
    slurm: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    results = tmp_path_factory.mktemp("cancelled")
    with subprocess.Popen(
        command(results, *LONG_AND_SHORT), env=slurm, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as sweep:
        job = _job_that_trains(results)
        wait_until(lambda: any("waiting for SLURM (" in path.read_text() for path in _progress(results)))
        subprocess.run(["scancel", job], env=slurm, check=True)
        said, _ = sweep.communicate(timeout=600)
    assert sweep.returncode == 1, said
    assert (results / "s" / "records.jsonl").exists(), said
    by_status = {record["status"]: record for record in records(results)}
    assert set(by_status) == {"ok", "killed"}
    assert by_status["killed"]["reason"].startswith(f"its job {job} is ")
    assert not _workers(results), "the cancelled cell still trains"
    _goes_on_and_is_interrupted(results, slurm)


def _goes_on_and_is_interrupted(results: Path, slurm: dict[str, str]) -> None:
    """Resuming runs what was cancelled, and Ctrl-C takes its jobs off the queue: they would train for nobody."""
    with subprocess.Popen(
        command(results, *LONG_AND_SHORT),
        env=slurm,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as sweep:
        wait_until(lambda: sweep.poll() is not None or bool(_queue(slurm)))
        sweep.send_signal(signal.SIGINT)
        said, _ = sweep.communicate(timeout=600)
    assert sweep.returncode == 130, said
    assert "1 to run, 1 finished before" in said
    wait_until(lambda: not _queue(slurm))


def test_a_job_that_slurm_does_not_take_is_one_line(slurm: dict[str, str], tmp_path: Path) -> None:
    refused = run(tmp_path, *SLURM, "hydra.launcher.partition=nowhere", *SWEEP, environment=slurm)
    assert refused.returncode == 2
    assert "memexp: SLURM took no job: invalid partition specified: nowhere." in refused.stderr
    assert "Traceback" not in refused.stderr


def test_ray_runs_the_same_cells_with_the_same_numbers(here: list[dict[str, Any]], tmp_path: Path) -> None:
    if "MEMEXP_REQUIRE_CLUSTER" not in os.environ:
        pytest.importorskip("hydra_plugins.hydra_ray_launcher")
    done = run(tmp_path, "hydra/launcher=ray", *SWEEP)
    assert done.returncode == 0, done.stdout + done.stderr
    assert numbers(records(tmp_path)) == numbers(here)


def _progress(results: Path) -> list[Path]:
    return list(results.glob("s/cells/*/progress.json"))


def _queue(slurm: dict[str, str]) -> str:
    return subprocess.run(["squeue", "--noheader"], env=slurm, capture_output=True, text=True, check=True).stdout


def _job_that_trains(results: Path) -> str:
    """The id of the job of the long cell, once it trains."""
    found: list[Path] = []

    def trains() -> bool:
        with suppress(OSError, ValueError):  # replaced while it is read
            found[:] = [path for path in _progress(results) if json.loads(path.read_text()).get("step", 0) > 2]
        return bool(found)

    wait_until(trains)
    return _job_of(found[0].parent)


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
