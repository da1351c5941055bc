"""The parent's side of a cell: start its worker, wait, and make sure that a record is there whatever happened.

Isolation lives here and not in a Hydra launcher, so that a single run, `-m`, joblib, SLURM and Ray all get it: one
process a cell, in a process group of its own, with its environment set before Python starts.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from memexp.plan.plan import Plan
from memexp.results.record import Record
from memexp.results.store import write_record
from memexp.results.strict import read_strictly
from memexp.run.cluster import scheduler_job
from memexp.run.environment import ALLOCATOR_VARIABLES, describe_cell, worker_environment
from memexp.run.fail_fast import FailFast
from memexp.run.gpus import lent_gpus
from memexp.run.interrupt import Process, Running
from memexp.run.measured import measured_path, read_measured
from memexp.run.process_group import end_group, start_worker
from memexp.run.progress import STARTING, Progress, write_progress
from memexp.run.ranks import Ranks
from memexp.run.signals import handling
from memexp.run.unmeasured import record_of_a_death
from memexp.run.warm import WarmProcess, WarmServerGone, server_address
from memexp.secrets import secrets_in, without_secrets


def run_cell(plan_path: Path, running: Running | None = None) -> Record | None:
    """Train one planned cell in its own process, write its record.json, and return it.

    `plan_path` is `…/<sweep>/cells/<id>/plan.json`; the record and the log land beside it. Whatever becomes of the
    worker is in the record. None where the sweep has stopped (`fail_fast`). Cells of several threads share `running`.

    Raises KeyboardInterrupt or Interrupted, which leave no record, and OSError where nothing can be written.
    """
    fail_fast = FailFast(plan_path.parents[2])
    if fail_fast.reason_to_stop() is not None:
        return None
    plan = read_strictly(Plan, plan_path)
    running = running or Running()
    measured, progress = measured_path(plan_path), plan_path.with_name("progress.json")
    measured.unlink(missing_ok=True)
    with lent_gpus(plan, plan_path.parent, running) as gpus:
        write_progress(progress, Progress(STARTING))
        started, started_at = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
        outcome = _run_worker(plan, plan_path, gpus, running)
    seconds = time.perf_counter() - started
    # Also where the worker came to grief afterwards, on its way out: what it measured is whole.
    left_by_worker = None if outcome is None else read_measured(measured)
    record = left_by_worker or record_of_a_death(plan, plan_path, outcome)
    timing = replace(record.timing, wall_seconds=round(seconds, 6), started_at=started_at)
    record = replace(record, environment=_environment(plan, record), timing=timing)
    _hide_secrets(plan_path.with_name("log.txt"))
    write_record(plan_path.with_name("record.json"), record)
    half_written = plan_path.parent.glob(".*.tmp")  # by a worker that was killed while it wrote
    for left in (measured, progress, *half_written):
        left.unlink(missing_ok=True)
    fail_fast.note(record)
    return record


class FreshProcess:
    """A worker in an interpreter of its own."""

    def __init__(self, plan: Plan, plan_path: Path, gpus: Sequence[str] = ()) -> None:
        plan_path.with_name("log.txt").unlink(missing_ok=True)
        self._process = start_worker(plan_path, worker_environment(plan, os.environ, gpus))

    def wait(self, timeout_seconds: float | None) -> int | None:
        """The exit code, minus the signal's number for one that ended it, None for a timeout (the group is ended)."""
        try:
            code = self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return None
        self.end()
        return code

    def kill(self) -> None:
        self.end()
        self._process.wait()

    def end(self) -> None:
        """End it from another thread than the one that waits for it."""
        end_group(self._process.pid)


def _run_worker(plan: Plan, plan_path: Path, gpus: Sequence[str], running: Running) -> int | None:
    """The exit code, minus the number of the signal that ended it, or None where its time was up."""
    try:
        return _wait_for(running, lambda: _start(plan, plan_path, gpus), plan.timeout_seconds)
    except WarmServerGone:
        return _wait_for(running, lambda: FreshProcess(plan, plan_path, gpus), plan.timeout_seconds)


def _wait_for(running: Running, start: Callable[[], Process], timeout_seconds: float | None) -> int | None:
    process: Process | None = None
    try:
        with _interrupts_wait():
            process = start()
        with running.holding(process):
            return process.wait(timeout_seconds)
    except BaseException:
        if process is not None:
            process.kill()  # an interrupted cell leaves no record, so that resuming runs it
        raise


def _hide_secrets(log: Path) -> None:
    """Libraries print what they were given: a key in the log is a key in a report of a bug."""
    secrets = secrets_in(os.environ)
    with contextlib.suppress(OSError):
        text = log.read_text(encoding="utf-8", errors="surrogateescape")
        hidden = without_secrets(text, secrets)
        if hidden != text:
            log.write_text(hidden, encoding="utf-8", errors="surrogateescape")


def _environment(plan: Plan, record: Record) -> dict[str, Any]:
    """What only the parent knows of where a cell ran, and what the worker said of it."""
    inherited = {name: os.environ.get(name) for name in ALLOCATOR_VARIABLES}
    allocator = {"effective": record.effective.get("allocator"), "inherited": inherited}
    here = {"allocator": allocator, "scheduler_job": scheduler_job()}
    return {**describe_cell(plan), **record.environment, **here}


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Ctrl-C in the middle of starting a process would leave one that nobody knows of."""
    caught: list[int] = []
    try:
        with handling(lambda number, _: caught.append(number), signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            yield
    finally:
        for number in caught[:1]:
            signal.raise_signal(number)


def _start(plan: Plan, plan_path: Path, gpus: Sequence[str]) -> Process:
    if plan.work.processes > 1:
        return Ranks(plan, plan_path, gpus)
    address = server_address()
    if plan.isolation == "warm" and address is not None:
        # Where the server is gone or on another machine, a fresh interpreter gives the same numbers, later.
        with contextlib.suppress(OSError):
            return WarmProcess(address, plan, plan_path, gpus)
    return FreshProcess(plan, plan_path, gpus)
