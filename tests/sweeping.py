"""Run sweeps from tests as a user does, on rows of stated lengths, and read what they leave behind."""

import csv
import io
import json
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memexp.cli import main

# Eight documents, 56 tokens, none longer than 16: nothing is ever cut.
LENGTHS = (5, 9, 13, 3, 7, 11, 3, 5)


@dataclass(frozen=True)
class Swept:
    """What one command did: its exit code, what it printed, and the folder of its sweep (None where it made none)."""

    code: int
    out: str
    err: str
    folder: Path | None

    @property
    def records(self) -> list[dict[str, Any]]:
        assert self.folder is not None
        return [json.loads(line) for line in (self.folder / "records.jsonl").read_text().splitlines()]

    @property
    def rows(self) -> list[dict[str, str]]:
        assert self.folder is not None
        return list(csv.DictReader(io.StringIO((self.folder / "table.csv").read_text())))

    @property
    def table(self) -> str:
        assert self.folder is not None
        return (self.folder / "table.md").read_text()

    def by(self, axis: str) -> dict[Any, dict[str, Any]]:
        """Records by their option of one axis."""
        return {record["choices"][axis]: record for record in self.records}


def sweep(results: Path, *arguments: str) -> Swept:
    """`python -m memexp ARGUMENTS` in this process, into `results`, on the CPU; W&B only where a `logger` is named."""
    before = set(results.glob("*"))
    out, err = io.StringIO(), io.StringIO()
    logger = () if any(argument.startswith("logger=") for argument in arguments) else ("logger=none",)
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["backend=cpu", f"results_dir={results}", *logger, *arguments])
    new = sorted(set(results.glob("*")) - before)
    named = [results / argument.removeprefix("sweep=") for argument in arguments if argument.startswith("sweep=")]
    found = [*new, *(path for path in named if path.exists()), *before]
    folder = found[0] if found else None
    return Swept(code, out.getvalue(), err.getvalue(), folder)


def write_rows(path: Path, lengths: Sequence[int] = LENGTHS) -> Path:
    """Pre-tokenised rows of these lengths, token ids that mean nothing."""
    rows = [
        {"input_ids": (ids := [4 + (7 * i + j) % 200 for j in range(length)]), "labels": ids}
        for i, length in enumerate(lengths)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
