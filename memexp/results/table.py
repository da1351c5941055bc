"""The comparison table of a sweep: built from records, written as table.md and table.csv, printed in a terminal.

Columns that say the same in every row, or nothing, leave the table for one line above it.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from memexp.results.compare import REPEATS, Compared, compare
from memexp.results.csv_table import csv_rows, csv_text
from memexp.results.effect_sentences import effect_sentences
from memexp.results.effects import effects
from memexp.results.format import spread_text, visible
from memexp.results.grid import THIS_CELL, Grid, option
from memexp.results.heading import heading
from memexp.results.markdown import markdown
from memexp.results.measures import MEASURES, Measure, worst_case_matters
from memexp.results.oom_sentences import oom_sentences
from memexp.results.outcome import outcome
from memexp.results.phases import phase_sentences
from memexp.results.record import Record
from memexp.results.remarks import remarks
from memexp.results.repeats import is_repeated, summarised
from memexp.results.rows import UNKNOWN, Column, Number, Row, Table
from memexp.results.store import write_atomically
from memexp.results.sweep import Sweep, SweepFolder
from memexp.results.terminal import lines

_FEW_EFFECTS = 6


def make_table(
    sweep: Sweep, records: Sequence[Record], missing: Sequence[str] = (), damaged: Sequence[Path] = ()
) -> Table:
    """One row a configuration, in grid order: a cell, or the median of its repeats. `missing` and `damaged` are those
    of `Stored`, and are named below the table.
    """
    grid = Grid(sweep, records)
    comparison = compare(grid)
    measures = [m for m in MEASURES if grid.ok and (not m.is_worst_case or worst_case_matters(grid.ok))]
    shown = summarised(grid, comparison)
    numbers = {m: [m.show(cell) for cell in shown if _is_ok(cell)] for m in measures}
    columns = [m for m in measures if not _leaves(m, numbers[m])]
    gone = {m.heading: numbers[m][0].text for m in measures if m not in columns}
    marked = {record.id for baseline in comparison.baselines if baseline.others for record in baseline.records}
    swept = [axis for axis in grid.axes if axis != REPEATS]
    axes = [axis for axis in swept if len(shown) < 2 or len(_options(grid, axis)) > 1]
    return Table(
        name=sweep.name,
        command=sweep.command,
        heading=(*heading(grid, missing), *_repeats(grid, shown), *_same_for_all(grid, swept, axes, gone)),
        axes=tuple(visible(axis) for axis in axes),
        columns=tuple(Column(measure.heading, measure.rank) for measure in columns),
        rows=tuple(_row(grid, cell, axes, columns, cell.record.id in marked) for cell in shown),
        remarks=(*remarks(grid, comparison, missing, damaged), *oom_sentences(grid), *phase_sentences(grid)),
        csv=csv_rows(grid, comparison),
        effects=effect_sentences(effects(grid, comparison)),
    )


def write_tables(folder: SweepFolder, table: Table) -> None:
    """Replace table.md and table.csv, each as a whole. Raises OSError that names the file."""
    write_atomically(folder.table_md, markdown(table))
    write_atomically(folder.table_csv, csv_text(table))


def print_table(table: Table, console: Console, whole: bool = False) -> None:
    """Print the table as wide as the console is. Nothing in it is taken for markup or for a control sequence.

    Effects are printed where they are few, else only as part of the `whole`, and a line says where they are.
    """
    if not whole and len(table.effects) > _FEW_EFFECTS:
        elsewhere = f"What each option does in the mean, and where that depends on another: {len(table.effects)} lines"
        table = replace(table, effects=(), remarks=(*table.remarks, f"{elsewhere} at the end of table.md"))
    console.print(Text("\n").join(lines(table, console)), soft_wrap=True)


def _row(grid: Grid, cell: Compared, axes: Sequence[str], columns: Sequence[Measure], is_marked: bool) -> Row:
    record = cell.record
    words = ["baseline"] if is_marked else []
    words += [f"{technique} fell back" for technique in cell.fell_back]
    words += cell.flags
    words += _lost_repeats(cell)
    if not _is_ok(cell):
        words = [outcome(record) + (" (baseline)" if is_marked else "")]
    return Row(
        id=record.id,
        status=record.status,
        options=tuple(grid.short(axis, option(record, axis)) for axis in axes),
        numbers=tuple(measure.show(cell) for measure in columns) if _is_ok(cell) else (),
        remark=visible(", ".join(words)),
        is_baseline=is_marked,
    )


def _leaves(measure: Measure, numbers: Sequence[Number]) -> bool:
    """A single row keeps its main numbers, since there is nothing to compare them with."""
    texts = {number.text for number in numbers}
    return texts == {UNKNOWN} or (len(texts) == 1 and (len(numbers) > 1 or measure.is_fraction))


def _repeats(grid: Grid, shown: Sequence[Compared]) -> list[str]:
    if not is_repeated(grid):
        return []
    said = f"Each row: the median of {grid.typed({REPEATS: _options(grid, REPEATS)})}"
    if any(spread_text(percent) for cell in shown for percent in cell.spread_percent.values()):
        return [f"{said}, ± the furthest of them"]
    if grid.ok and all(record.backend == "simulate" for record in grid.ok):
        return [f"{said}, which agree: predictions differ between seeds only where the order of the rows does"]
    return [said]


def _lost_repeats(cell: Compared) -> list[str]:
    """`1 of 3 repeats failed`: a median of what is left hides what went wrong."""
    others = [record for record in cell.repeats if not record.is_ok]
    if not others or not _is_ok(cell):
        return []
    return [f"{len(others)} of {len(cell.repeats)} repeats not ok: {outcome(others[0])}"]


def _same_for_all(grid: Grid, swept: Sequence[str], axes: Sequence[str], gone: dict[str, str]) -> list[str]:
    """`Every cell: packing=bfd, kept 100%, peak reserved unknown`, in two lines where not every cell has numbers."""
    options = [grid.typed({axis: _options(grid, axis)}) for axis in swept if axis not in axes]
    numbers = [f"{name} {'unknown' if text == UNKNOWN else text}" for name, text in gone.items()]
    everything = THIS_CELL if len(grid.records) == 1 else "every cell"
    if len(grid.ok) == len(grid.records):
        parts = [(everything, options + numbers)]
    else:
        parts = [(everything, options), ("every ok cell", numbers)]
    return [f"{whom.capitalize()}: {', '.join(what)}" for whom, what in parts if what]


def _options(grid: Grid, axis: str) -> list[str]:
    return list(dict.fromkeys(option(record, axis) for record in grid.records))


def _is_ok(cell: Compared) -> bool:
    return cell.record.is_ok
