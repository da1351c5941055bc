"""The parent's side of a cell: start its worker, wait, and make sure that a record is there whatever happened.

Isolation lives here and not in a Hydra launcher, so that a single run, `-m`, joblib, SLURM and Ray all get it: one
process a cell, in a process group of its own, with its environment set before Python starts.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from memexp.invocation import replay_command
from memexp.plan.plan import Plan
from memexp.results.record import Record, Timing
from memexp.results.store import write_record
from memexp.run.environment import ALLOCATOR_VARIABLES, describe_code, worker_environment
from memexp.run.warm import WarmProcess, WarmServerGone, server_address

# What a worker leaves for its parent, who adds what only a parent knows and makes it the cell's record.json.
MEASURED = "measured.json"


def run_cell(plan_path: Path) -> Record:
    """Train one planned cell in its own process, write its record.json, and return it.

    `plan_path` is `…/<sweep>/cells/<id>/plan.json`; the record and the log land beside it. Whatever becomes of the
    worker is in the record. Raises KeyboardInterrupt, which leaves no record, and OSError where nothing can be written.
    """
    plan = Plan.read(plan_path)
    measured = plan_path.with_name(MEASURED)
    measured.unlink(missing_ok=True)
    started, started_at = time.perf_counter(), datetime.now(UTC).isoformat(timespec="seconds")
    outcome = _run_worker(plan, plan_path)
    if measured.exists() and outcome is not None:
        # Also where the process came to grief afterwards, on its way out: what it measured is whole.
        record = Record.read(measured)
    else:
        record = _record_of_a_death(plan, plan_path, outcome)
    timing = replace(record.timing, wall_seconds=round(time.perf_counter() - started, 6), started_at=started_at)
    record = replace(record, environment=_environment(plan, record), timing=timing)
    write_record(plan_path.with_name("record.json"), record)
    measured.unlink(missing_ok=True)
    return record


def refused_record(plan: Plan, sweep: str) -> Record:
    """The row of a cell that was refused before anything was started."""
    assert plan.refusal is not None
    return replace(
        base_record(plan, sweep), status="refused", reason_kind=plan.refusal.kind, reason=plan.refusal.reason
    )


def base_record(plan: Plan, sweep: str) -> Record:
    """What is known of a cell before it runs, as a failed record for the caller to change."""
    environment = {**describe_code(), "replay": replay_command(plan.overrides, plan.flags)}
    return Record(
        id=plan.id,
        sweep=sweep,
        status="failed",
        cell=plan.name,
        backend=plan.work.backend,
        choices=plan.choices,
        notes=plan.notes,
        environment=environment,
        timing=Timing(),
    )


class FreshProcess:
    """A worker in an interpreter of its own."""

    def __init__(self, plan: Plan, plan_path: Path) -> None:
        with open(plan_path.with_name("log.txt"), "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "memexp.run.worker", str(plan_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=worker_environment(plan, os.environ),
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

    def _end_group(self) -> None:
        # Whatever the worker started and left behind goes with it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _run_worker(plan: Plan, plan_path: Path) -> int | None:
    """The exit code, minus the number of the signal that ended it, or None where its time was up."""
    process: FreshProcess | WarmProcess | None = None
    try:
        with _interrupts_wait():
            process = _start(plan, plan_path)
        try:
            return process.wait(plan.timeout_seconds)
        except WarmServerGone:
            with _interrupts_wait():
                process = FreshProcess(plan, plan_path)
            return process.wait(plan.timeout_seconds)
    except BaseException:
        if process is not None:
            process.kill()  # an interrupted cell leaves no record, so that resuming runs it
        raise


def _environment(plan: Plan, record: Record) -> dict[str, Any]:
    """What only the parent knows of where a cell ran, and what the worker said of it."""
    inherited = {name: os.environ.get(name) for name in ALLOCATOR_VARIABLES}
    allocator = {"effective": record.effective.get("allocator"), "inherited": inherited}
    return {**base_record(plan, record.sweep).environment, **record.environment, "allocator": allocator}


@contextlib.contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Ctrl-C in the middle of starting a process would leave one that nobody knows of."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    before = {
        sent: signal.signal(sent, lambda number, _: caught.append(number)) for sent in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for sent, handler in before.items():
            signal.signal(sent, handler)
        for number in caught[:1]:
            signal.raise_signal(number)


def _start(plan: Plan, plan_path: Path) -> "FreshProcess | WarmProcess":
    address = server_address()
    if plan.isolation == "warm" and address is not None:
        # Where the server is gone or on another machine, a fresh interpreter gives the same numbers, later.
        with contextlib.suppress(OSError):
            return WarmProcess(address, plan, plan_path)
    return FreshProcess(plan, plan_path)


def _record_of_a_death(plan: Plan, plan_path: Path, outcome: int | None) -> Record:
    record = base_record(plan, sweep=plan_path.parents[2].name)
    log = plan_path.with_name("log.txt")
    if outcome is None:
        return replace(record, status="timeout", reason=f"ended after timeout_seconds={plan.timeout_seconds:g}")
    if outcome < 0:
        name = signal.Signals(-outcome).name
        cause = " (the kernel's out-of-memory killer, or a kill -9)" if name == "SIGKILL" else ""
        return replace(record, status="killed", reason=f"ended by {name}{cause}; see {log.name}")
    return replace(record, status="failed", reason=f"exited with code {outcome} and left no record; {_last_line(log)}")


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    said = [line.strip() for line in lines if line.strip()]
    return f"its log ends: {said[-1][:200]}" if said else "its log is empty"
