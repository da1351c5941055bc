"""What a frontier ends with: one row a combination, with the largest size that fits and what stands in the way.

Without speeds: probes are short, and of another size each trains on other rows.
"""

from collections.abc import Sequence
from dataclasses import replace

from memexp.frontier.fit import fits, share_of_card
from memexp.frontier.search import Bounds, Found, found
from memexp.results.format import bytes_text, fraction_text, option_text, visible
from memexp.results.grid import Grid, grouped, option
from memexp.results.heading import heading
from memexp.results.outcome import outcome
from memexp.results.predicted import tilde
from memexp.results.recommend import reserved_bytes
from memexp.results.record import Record
from memexp.results.rows import Column, Number, Row, Table
from memexp.results.sweep import Sweep

_CSV = ("largest", "too_large", "peak_reserved_bytes", "share_of_card", "id", "reason")


def frontier_table(sweep: Sweep, records: Sequence[Record], axis: str, bounds: Bounds, headroom: float) -> Table:
    """One row a combination of the axes other than `axis`. `headroom` is the fraction of the card that stays free."""
    others = [other.name for other in sweep.axes if other.name != axis]
    inner = Grid(replace(sweep, axes=tuple(a for a in sweep.axes if a.name != axis)), records)
    combinations = grouped(records, lambda record: tuple(option(record, other) for other in others))
    rows = [_Combination(cells, axis, bounds, headroom) for cells in combinations]
    spare = f", {fraction_text(headroom)} of the card kept free" if headroom else ""
    above = f"The largest {axis} from {bounds.low} to {bounds.high} that fits{spare}"
    return Table(
        name=sweep.name,
        command=sweep.command,
        heading=(above, *(line for line in heading(inner) if axis not in line.split("=")[0])),
        axes=tuple(others),
        columns=tuple(Column(name, rank) for rank, name in enumerate(_headings(axis))),
        rows=tuple(_row(inner, row, others, axis) for row in rows),
        remarks=_remarks(rows, axis),
        csv=_csv(rows, others),
    )


class _Combination:
    """The probes of one combination. `best` is the record of the largest size that fits, `over` of the next one."""

    def __init__(self, cells: Sequence[Record], axis: str, bounds: Bounds, headroom: float) -> None:
        self.cells, self.bounds = cells, bounds
        sized = {int(record.choices[axis]): record for record in cells if str(record.choices[axis]).isdigit()}
        fitted = {size: known for size, record in sized.items() if (known := fits(record, headroom)) is not None}
        self.found: Found = found(bounds, fitted)
        self.best = sized[self.found.largest] if self.found.largest is not None else None
        self.over = sized[self.found.too_large] if self.found.too_large is not None else None
        self.failed = next((record for record in cells if fits(record, headroom) is None), None)

    @property
    def reached_the_top(self) -> bool:
        return self.found.largest == self.bounds.high


def _headings(axis: str) -> tuple[str, ...]:
    return (f"largest {axis}", "peak reserved", "of the card")


def _row(grid: Grid, row: _Combination, others: Sequence[str], axis: str) -> Row:
    options = tuple(grid.short(other, option(row.cells[0], other)) for other in others)
    if row.best is None:
        nothing = f"not even {row.bounds.low} fits" + (f": {_why(row.over)}" if row.over else "")
        remark = outcome(row.failed) if row.failed is not None else nothing
        status = row.failed.status if row.failed is not None else "oom"
        return Row(id=row.cells[0].id, status=status, options=options, remark=visible(remark))
    about = tilde(row.best, "memory.peak_reserved_bytes")
    needed, share = reserved_bytes(row.best), share_of_card(row.best)
    or_more = " or more" if row.reached_the_top or row.failed is not None else ""
    numbers = (
        Number(f"{row.found.largest:,}{or_more}"),
        Number(about + bytes_text(needed)) if needed is not None else Number(),
        Number(about + fraction_text(share)) if share is not None else Number(),
    )
    remark = f"{row.found.too_large:,}: {_why(row.over)}" if row.over is not None else ""
    if row.failed is not None:
        remark = f"the search ended at {row.failed.choices[axis]}: {outcome(row.failed)}"
    return Row(id=row.best.id, status="ok", options=options, numbers=numbers, remark=visible(remark))


def _why(record: Record | None) -> str:
    """How a size that did not fit ended: out of memory and by how much, or into the part that stays free."""
    if record is None:
        return ""
    if not record.is_ok:
        return outcome(record)
    share = share_of_card(record)
    return f"takes {fraction_text(share)} of the card" if share is not None else "does not fit"


def _remarks(rows: Sequence[_Combination], axis: str) -> tuple[str, ...]:
    said = []
    if any(row.best is not None and row.reached_the_top for row in rows):
        said.append(f"'or more': the upper bound fits. Type a higher one to find where {axis} ends.")
    if axis == "max_length" and any(row.best is not None and row.best.data.cut_rows == 0 for row in rows):
        said.append("No row of this data is longer than the largest max_length: longer rows were not tried.")
    if any(row.best is not None for row in rows):
        said.append(f"Probes are too short to compare speeds: sweep these sizes, {axis}=…,… with budget.tokens=N.")
    return tuple(said)


def _csv(rows: Sequence[_Combination], others: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    lines = [(*others, *_CSV)]
    for row in rows:
        best = row.best
        values = (
            row.found.largest,
            row.found.too_large,
            reserved_bytes(best) if best else None,
            share_of_card(best) if best else None,
            (best or row.cells[0]).id,
            row.failed.reason if row.failed else None,
        )
        lines.append(
            (
                *(option(row.cells[0], other) for other in others),
                *("" if v is None else option_text(v) for v in values),
            )
        )
    return tuple(lines)
