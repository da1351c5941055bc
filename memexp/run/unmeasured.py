"""Records of cells of which nothing was measured: what is known before a cell runs, and of one that never told more.

A worker fills in the first with what it measures. The others are its parent's: of a cell that was refused, whose job
was lost, or whose process died.
"""

import signal
from dataclasses import replace
from pathlib import Path

from memexp.plan.plan import Plan
from memexp.results.record import Record, Timing
from memexp.results.store import write_record
from memexp.results.strict import read_strictly
from memexp.run.environment import describe_cell


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


def refused_record(plan: Plan, sweep: str) -> Record:
    """The row of a cell that was refused before anything was started."""
    assert plan.refusal is not None
    refusal = plan.refusal
    record = replace(base_record(plan, sweep), status="refused", reason_kind=refusal.kind, reason=refusal.reason)
    return replace(record, environment=describe_cell(plan))


def record_of_a_lost_job(plan_path: Path, said: str) -> None:
    """Write the row of a cell whose job on a cluster ended and left nothing. One that has its record keeps it.

    `environment.lost` marks it: resuming the sweep runs it again, since what ended it was not its own.
    """
    path = plan_path.with_name("record.json")
    if path.exists():
        return
    plan = read_strictly(Plan, plan_path)
    record = replace(base_record(plan, sweep=plan_path.parents[2].name), status="killed", reason=said)
    write_record(path, replace(record, environment={**describe_cell(plan), "lost": said}))


def record_of_a_death(plan: Plan, plan_path: Path, outcome: int | None) -> Record:
    """The row of a cell whose process left none. `outcome` is its exit code, minus the number of the signal that ended
    it, or None where its time was up.
    """
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
