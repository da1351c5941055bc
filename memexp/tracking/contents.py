"""What a W&B run holds, as plain values made from a Record. Pure functions; W&B itself is in `export`."""

from collections.abc import Iterable
from typing import Any

from memexp.results.record import BROKEN, Record

_WHAT_IS_RUN = {"trainer", "model", "data", "backend", "gpu", "logger", "experiment"}
_OFF = {"none", "false", "default", "single"}
_LONGEST_TAG = 64


def run_name(record: Record) -> str:
    """The cell's choices, or the plan's id where nothing was chosen."""
    return record.cell or record.id


def run_tags(record: Record, more: Iterable[str] = ()) -> tuple[str, ...]:
    """The techniques that are on, as "packing=bfd", then the user's own. W&B refuses a run for one tag over 64 letters,
    so a tag is cut there.
    """
    techniques = (
        f"{group}={option}"
        for group, option in record.choices.items()
        if isinstance(option, str) and group not in _WHAT_IS_RUN and option not in _OFF
    )
    return tuple(dict.fromkeys(tag[:_LONGEST_TAG] for tag in (*techniques, *more) if tag))


def history(record: Record) -> list[dict[str, Any]]:
    """One row a step, names under "train/": what memory.per_step holds for it, and that step's loss and seconds.

    Seconds exist for measured steps only, which are the last ones trained. Unknown values are left out of their row.
    """
    trained = len(record.loss.per_step) or sum(row.get("phase") != "worst_case" for row in record.memory.per_step)
    rows: list[dict[str, Any]] = [{"step": index} for index in range(max(trained, len(record.memory.per_step)))]
    for row, memory in zip(rows, record.memory.per_step, strict=False):
        row.update(memory)
    for row, loss in zip(rows, record.loss.per_step, strict=False):
        row["loss"] = loss
    seconds = record.speed.step_seconds
    for row, step_seconds in zip(rows[max(trained - len(seconds), 0) :], seconds, strict=False):
        row["step_seconds"] = step_seconds
    return [{f"train/{name}": value for name, value in row.items() if value is not None} for row in rows]


def exit_code(record: Record) -> int:
    """1 for a cell that broke. Out of memory and refused are answers, and W&B shows them as finished."""
    return int(record.status in BROKEN)
