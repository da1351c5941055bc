"""Which records of a sweep stand when it is started again, and what has changed since they were made."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from memexp.results.format import listing
from memexp.results.record import Record
from memexp.results.software import differences

CHANGED = "changed"  # a choice of `rerun` beside the statuses


def stands(record: Record, rerun: Collection[str], now: Mapping[str, Any]) -> bool:
    """Whether a cell need not run again. `rerun` holds statuses and `changed`; `now` is the environment of today.

    A refusal never stands but for its data: what was missing may be there by now, and rows that were none still are.
    Nor does the row of a job that a cluster lost.
    """
    if record.environment.get("lost") or (record.status == "refused" and record.reason_kind != "invalid_data"):
        return False
    return record.status not in rerun and not (CHANGED in rerun and differences(record.environment, now))


def changed_since(records: Sequence[Record], now: Mapping[str, Any]) -> str | None:
    """One line where finished cells ran on other versions or other code than the next ones will."""
    changes = [differences(record.environment, now) for record in records if record.status != "refused"]
    cells = sum(bool(change) for change in changes)
    if not cells:
        return None
    what = listing(list(dict.fromkeys(name for change in changes for name in change)))
    who = "1 finished cell ran" if cells == 1 else f"{cells:,} finished cells ran"
    return f"Changed since {who}: {what}. rerun={CHANGED} runs {'it' if cells == 1 else 'them'} again."
