"""Stop a sweep whose first cells all break in the same way: the rest would tell nothing new.

The outcomes are kept in a small file of the sweep's folder, so that the processes of any launcher see it.
"""

import json
import re
from pathlib import Path
from typing import Any

from memexp.results.outcome import outcome
from memexp.results.record import BROKEN, Record
from memexp.results.store import write_atomically

FIRST = 3  # as many have to break alike before `fail_fast=auto` stops


class FailFast:
    """`policy` is auto (the first three break alike), true (any one breaks) or false. Out of memory is no break."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ".outcomes"

    def begin(self, policy: str) -> None:
        """Forget what an earlier run of this sweep saw."""
        write_atomically(self._path, json.dumps({"policy": policy}) + "\n")

    def note(self, record: Record) -> None:
        """Add the outcome of a cell that has just ended."""
        policy, seen = self._read()
        broke = record.status in BROKEN
        if policy in (None, "false") or (policy == "auto" and len(seen) >= FIRST) or (policy == "true" and not broke):
            return
        line = json.dumps({"broke": broke, "said": outcome(record)})
        with self._path.open("a", encoding="utf-8") as file:  # one short write: whole, also beside others'
            file.write(line + "\n")

    def reason_to_stop(self) -> str | None:
        """Why no further cell is to start, or None."""
        policy, seen = self._read()
        if policy == "true" and seen:
            return f"a cell {seen[0]['said']}"
        if policy != "auto" or len(seen) < FIRST:
            return None
        alike = all(cell["broke"] for cell in seen) and len({_without_numbers(cell["said"]) for cell in seen}) == 1
        return f"the first {FIRST} cells all {seen[0]['said']}" if alike else None

    def _read(self) -> tuple[str | None, list[dict[str, Any]]]:
        try:
            lines = [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError):
            return None, []  # a sweep that says nothing goes on
        return (lines[0]["policy"], lines[1:][:FIRST]) if lines else (None, [])


def _without_numbers(text: str) -> str:
    return re.sub(r"\b[0-9a-f]{16}\b|\d+", "#", text)
