"""The parent's side of a cell: start its worker, wait, and make sure that a record is there whatever happened.

Isolation lives here and not in a Hydra launcher, so that a single run, `-m`, joblib, SLURM and Ray all get it: one
process a cell, in a process group of its own, with its environment set before Python starts.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from memexp.invocation import replay_command
from memexp.plan.plan import Plan
from memexp.results.record import Record, Timing
from memexp.results.store import write_record
from memexp.results.strict import read_strictly
from memexp.run.cluster import scheduler_job
from memexp.run.environment import ALLOCATOR_VARIABLES, describe_code, worker_environment
from memexp.run.fail_fast import FailFast
from memexp.run.gpus import lent_gpus
from memexp.run.interrupt import Process, Running
from memexp.run.ranks import Ranks
from memexp.run.signals import handling
from memexp.run.warm import WarmProcess, WarmServerGone, server_address
from memexp.secrets import secrets_in, without_secrets

# What a worker leaves for its parent, who adds what only a parent knows and makes it the cell's record.json.
MEASURED = "measured.json"


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
    measured, progress = plan_path.with_name(MEASURED), plan_path.with_name("progress.json")
    measured.unlink(missing_ok=True)
    with lent_gpus(plan, plan_path.parent, running) as gpus:
        started, started_at = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
        outcome = _run_worker(plan, plan_path, gpus, running)
    seconds = time.perf_counter() - started
    record = _measured(measured, outcome) or _record_of_a_death(plan, plan_path, outcome)
    timing = replace(record.timing, wall_seconds=round(seconds, 6), started_at=started_at)
    record = replace(record, environment=_environment(plan, record), timing=timing)
    _hide_secrets(plan_path.with_name("log.txt"))
    write_record(plan_path.with_name("record.json"), record)
    for left in (measured, progress):
        left.unlink(missing_ok=True)
    fail_fast.note(record)
    return record


def refused_record(plan: Plan, sweep: str) -> Record:
    """The row of a cell that was refused before anything was started."""
    assert plan.refusal is not None
    refusal = plan.refusal
    record = replace(base_record(plan, sweep), status="refused", reason_kind=refusal.kind, reason=refusal.reason)
    return replace(record, environment=_software(plan))


def record_of_a_lost_job(plan_path: Path, said: str) -> None:
    """Write the row of a cell whose job on a cluster ended and left nothing. One that has its record keeps it.

    `environment.lost` marks it: resuming the sweep runs it again, since what ended it was not its own.
    """
    path = plan_path.with_name("record.json")
    if path.exists():
        return
    plan = read_strictly(Plan, plan_path)
    record = replace(base_record(plan, sweep=plan_path.parents[2].name), status="killed", reason=said)
    write_record(path, replace(record, environment={**_software(plan), "lost": said}))


def base_record(plan: Plan, sweep: str) -> Record:
    """What is known of a cell before it runs, but for its environment, as a failed record for the caller to change."""
    return Record(
        id=plan.id,
        sweep=sweep,
        status="failed",
        cell=plan.name,
        backend=plan.work.backend,
        choices=plan.choices,
        notes=plan.notes,
        timing=Timing(),
    )


class FreshProcess:
    """A worker in an interpreter of its own."""

    def __init__(self, plan: Plan, plan_path: Path, gpus: Sequence[str] = ()) -> None:
        with open(plan_path.with_name("log.txt"), "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "memexp.run.worker", str(plan_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=worker_environment(plan, os.environ, gpus),
                start_new_session=True,
            )

    def wait(self, timeout_seconds: float | None) -> int | None:
        """The exit code, minus the signal's number for one that ended it, None for a timeout (the group is ended)."""
        try:
            code = self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            return None
        self._end_group()
        return code

    def kill(self) -> None:
        self._end_group()
        self._process.wait()

    def end(self) -> None:
        """End it from another thread than the one that waits for it."""
        self._end_group()

    def _end_group(self) -> None:
        # Whatever the worker started and left behind goes with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


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


def _measured(path: Path, outcome: int | None) -> Record | None:
    """What the worker left: also where it came to grief afterwards, on its way out. What it measured is whole."""
    if outcome is None or not path.exists():
        return None
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        return read_strictly(Record, path)
    return None


def _hide_secrets(log: Path) -> None:
    """Libraries print what they were given: a key in the log is a key in a report of a bug."""
    secrets = secrets_in(os.environ)
    with contextlib.suppress(OSError):
        text = log.read_text(encoding="utf-8", errors="surrogateescape") if secrets else ""
        hidden = without_secrets(text, secrets)
        if hidden != text:
            log.write_text(hidden, encoding="utf-8", errors="surrogateescape")


def _environment(plan: Plan, record: Record) -> dict[str, Any]:
    """What only the parent knows of where a cell ran, and what the worker said of it."""
    inherited = {name: os.environ.get(name) for name in ALLOCATOR_VARIABLES}
    allocator = {"effective": record.effective.get("allocator"), "inherited": inherited}
    here = {"allocator": allocator, "scheduler_job": scheduler_job()}
    return {**_software(plan), **record.environment, **here}


def _software(plan: Plan) -> dict[str, Any]:
    return {**describe_code(), "replay": replay_command(plan.overrides, plan.flags)}


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Ctrl-C in the middle of starting a process would leave one that nobody knows of."""
    caught: list[int] = []
    try:
        with handling(lambda number, _: caught.append(number), signal.SIGINT, signal.SIGTERM):
            yield
    finally:
        for number in caught[:1]:
            signal.raise_signal(number)


def _start(plan: Plan, plan_path: Path, gpus: Sequence[str]) -> Process:
    if plan.work.processes > 1:
        measured = plan_path.with_name(MEASURED)
        return Ranks(plan, plan_path, gpus, measured, lambda code: _record_of_a_death(plan, plan_path, code))
    address = server_address()
    if plan.isolation == "warm" and address is not None:
        # Where the server is gone or on another machine, a fresh interpreter gives the same numbers, later.
        with contextlib.suppress(OSError):
            return WarmProcess(address, plan, plan_path, gpus)
    return FreshProcess(plan, plan_path, gpus)


def _record_of_a_death(plan: Plan, plan_path: Path, outcome: int | None) -> Record:
    record = base_record(plan, sweep=plan_path.parents[2].name)
    log = plan_path.with_name("log.txt")
    if outcome is None:
        return replace(record, status="timeout", reason=f"ended after timeout_seconds={plan.timeout_seconds:g}")
    if outcome < 0:
        name = _signal_name(-outcome)
        cause = " (the kernel's out-of-memory killer, or a kill -9)" if name == "SIGKILL" else ""
        return replace(record, status="killed", reason=f"ended by {name}{cause}; see {log.name}")
    return replace(record, status="failed", reason=f"exited with code {outcome} and left no record; {_last_line(log)}")


def _signal_name(number: int) -> str:
    # Real-time signals have no name of their own.
    return signal.Signals(number).name if number in {*signal.Signals} else f"signal {number}"


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    said = [line.strip() for line in lines if line.strip()]
    return f"its log ends: {said[-1][:200]}" if said else "its log is empty"
