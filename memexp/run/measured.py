"""measured.json: what a worker leaves for its parent, who adds what only a parent knows and makes it the cell's record.

Of several ranks each leaves its own beside it, which the parent merges.
"""

from contextlib import suppress
from pathlib import Path

from memexp.results.record import Record
from memexp.results.strict import read_strictly


def measured_path(plan_path: Path) -> Path:
    """Where the record of a worker lies, beside its plan."""
    return plan_path.with_name("measured.json")


def measured_by_rank(plan_path: Path, rank: int) -> Path:
    """Where a rank leaves its own: `measured.rank1.json`."""
    return measured_path(plan_path).with_suffix(f".rank{rank}.json")


def read_measured(path: Path) -> Record | None:
    """The record in one of these files; None where there is none, or none that is whole."""
    with suppress(OSError, ValueError, TypeError, RecursionError):
        return read_strictly(Record, path)
    return None
