"""What a sweep is: its axes, its cells in grid order, and the folder they land in. Written before the first cell runs.

results_dir/<name>/sweep.json  records.jsonl  table.md  table.csv
                   cells/<id>/plan.json  record.json  log.txt  progress.json
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memexp.frozen import Frozen

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True)
class Axis(Frozen):
    """One swept key. `options` are resolved values in the order typed; `default` may be missing among them."""

    name: str
    options: tuple[Any, ...]
    default: Any = None


@dataclass(frozen=True)
class Sweep(Frozen):
    """`cells` are Plan ids in grid order, without repeats: two grid points with one id are one cell."""

    name: str
    axes: tuple[Axis, ...] = ()
    cells: tuple[str, ...] = ()
    fixed: dict[str, Any] = field(default_factory=dict)
    baseline: dict[str, Any] | None = None
    command: str = ""
    schema_version: int = 1

    def __post_init__(self) -> None:
        # A cell's id is the name of its folder, and this may be anybody's file.
        wrong = [cell for cell in self.cells if not isinstance(cell, str) or not _ID.fullmatch(cell)]
        if wrong:
            raise ValueError(f"{wrong[0]!r:.40} is no id of a cell")


class SweepFolder:
    """The paths of one sweep's files. Creates nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sweep_json = path / "sweep.json"
        self.records_jsonl = path / "records.jsonl"
        self.table_md = path / "table.md"
        self.table_csv = path / "table.csv"
        self.report_html = path / "report.html"

    def cell(self, plan_id: str) -> Path:
        return self.path / "cells" / plan_id

    def plan(self, plan_id: str) -> Path:
        return self.cell(plan_id) / "plan.json"

    def record(self, plan_id: str) -> Path:
        return self.cell(plan_id) / "record.json"

    def progress(self, plan_id: str) -> Path:
        return self.cell(plan_id) / "progress.json"
