"""table.csv: one row a cell for machines. Raw numbers, empty where unknown; a null option is the text null.

Text is exact, with commas, quotes and newlines quoted. So an option or reason that starts with `=` is data as it was,
and a spreadsheet has to import the file as text. Numbers stand only in rows that are ok: a cell that ran out of memory
has a last peak, not a result, and it would look small.
"""

import csv
import io
from collections.abc import Sequence

from memexp.results.compare import METRICS, Compared, Comparison, number
from memexp.results.format import option_text
from memexp.results.grid import Grid
from memexp.results.outcome import outcome
from memexp.results.rows import Table


def csv_rows(grid: Grid, comparison: Comparison) -> tuple[tuple[str, ...], ...]:
    """The header line and one row a cell, as raw text."""
    header = (*grid.axes, "status", "reason", *METRICS, *(f"{metric}_vs_baseline" for metric in METRICS))
    return (header, *(_row(grid, cell) for cell in comparison.cells))


def csv_text(table: Table) -> str:
    """The file's text, with plain newlines between the rows."""
    return "".join(_line(row) for row in table.csv)


def _line(row: Sequence[str]) -> str:
    file = io.StringIO()
    # The writer quotes a lone carriage return only where its own line ends have one.
    csv.writer(file, lineterminator="\r\n").writerow(row)
    return file.getvalue().removesuffix("\r\n") + "\n"


def _row(grid: Grid, cell: Compared) -> tuple[str, ...]:
    record = cell.record
    options = (option_text(record.choices[axis]) if axis in record.choices else "" for axis in grid.axes)
    numbers = [number(record, metric) if record.is_ok else None for metric in METRICS]
    changes = [cell.vs_baseline[metric] for metric in METRICS]
    reason = record.reason or outcome(record)
    return (*options, record.status, reason, *(_raw(value) for value in (*numbers, *changes)))


def _raw(value: float | None) -> str:
    return "" if value is None else repr(value)
