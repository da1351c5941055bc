"""Repeats: cells that differ in their seed alone are one configuration, with a median and a spread.

A spread is how far the furthest repeat lies from the median. Of three repeats a standard deviation would promise more
than they can tell.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from memexp.results.compare import METRICS, REPEATS, Compared, Comparison, middle, number, percent_change
from memexp.results.grid import Grid, grouped, option
from memexp.results.record import Record

# A change of so few percent is none, however close together the repeats lie. Memory: what prime-rl allows between runs
# of one job. No such figure for speed holds on every machine, so there the measured spread decides alone.
FLOOR_PERCENT = {"memory": 1.0, "speed": 0.0, "data": 0.0}
_WORST_CASE = "worst_case_peak_allocated_bytes"


@dataclass(frozen=True)
class Configuration:
    """The cells of one configuration, in grid order. Never empty; more than one are repeats."""

    cells: tuple[Compared, ...]

    @property
    def records(self) -> list[Record]:
        return [cell.record for cell in self.cells]

    @property
    def ok(self) -> list[Record]:
        return [cell.record for cell in self.cells if cell.record.is_ok]


def is_repeated(grid: Grid) -> bool:
    """Whether the sweep is over seeds, so that its rows are configurations and not cells."""
    return REPEATS in grid.axes


def configurations(grid: Grid, comparison: Comparison) -> list[Configuration]:
    """The cells of a sweep, repeats together, in grid order. Without repeats each is a configuration of its own."""
    if not is_repeated(grid):
        return [Configuration((cell,)) for cell in comparison.cells]
    beside = [axis for axis in grid.axes if axis != REPEATS]
    cells = {cell.record.id: cell for cell in comparison.cells}
    groups = grouped(grid.records, lambda record: tuple(option(record, axis) for axis in beside))
    return [Configuration(tuple(cells[record.id] for record in group)) for group in groups]


def summarised(grid: Grid, comparison: Comparison) -> list[Compared]:
    """One row a configuration: medians over the repeats that are ok, compared with the median of their baseline.

    The record of a row is the first repeat's with those medians in it, so that what shows a cell shows a configuration.
    """
    if not is_repeated(grid):
        return list(comparison.cells)
    return [_summary(configuration) for configuration in configurations(grid, comparison)]


def without_repeats(grid: Grid, comparison: Comparison) -> Grid:
    """The same sweep with one record a configuration, its medians in it, and no axis of seeds."""
    axes = tuple(axis for axis in grid.sweep.axes if axis.name != REPEATS)
    return Grid(replace(grid.sweep, axes=axes), [cell.record for cell in summarised(grid, comparison)])


def spread_percent(values: Sequence[float | None]) -> float | None:
    """How far the furthest value lies from the median, in percent of it; None for fewer than two values."""
    known, median = [value for value in values if value is not None], middle(values)
    if len(known) < 2 or not median:
        return None
    return 100 * max(abs(value - median) for value in known) / abs(median)


def _summary(configuration: Configuration) -> Compared:
    ok, cells = configuration.ok, configuration.cells
    first = next((cell for cell in cells if cell.record.is_ok), cells[0])
    if not ok:
        return replace(first, repeats=tuple(configuration.records))
    comparable = {m for m in METRICS if any(cell.vs_baseline[m] is not None for cell in cells)}
    spreads = {m: spread_percent(_values(ok, m)) for m in METRICS}
    changes = {
        m: percent_change(middle(_values(ok, m)), middle(_values(first.against, m))) if m in comparable else None
        for m in METRICS
    }
    return replace(
        first,
        record=_middle(first.record, ok),
        vs_baseline=changes,
        is_baseline=any(cell.is_baseline for cell in cells),
        fell_back=tuple(dict.fromkeys(name for cell in cells for name in cell.fell_back)),
        flags=tuple(dict.fromkeys(flag for cell in cells for flag in cell.flags)),
        repeats=tuple(configuration.records),
        spread_percent={**spreads, _WORST_CASE: spread_percent([r.memory.worst_case_peak_allocated_bytes for r in ok])},
        no_difference=frozenset(m for m in METRICS if _is_noise(m, changes[m], spreads[m], first.against)),
    )


def _is_noise(metric: str, change: float | None, spread: float | None, base: Sequence[Record]) -> bool:
    """Whether a change is no larger than the repeats on both sides differ among themselves."""
    beside = spread_percent(_values(base, metric))
    if change is None or spread is None or beside is None:
        return False
    return abs(change) <= max(FLOOR_PERCENT[METRICS[metric]], spread + beside)


def _middle(record: Record, repeats: Sequence[Record]) -> Record:
    """The record with the medians of what tables show."""

    def medians(section: str) -> dict[str, Any]:
        return {metric: middle(_values(repeats, metric)) for metric, found in METRICS.items() if found == section}

    worst = middle([repeat.memory.worst_case_peak_allocated_bytes for repeat in repeats])
    peaks = {**medians("memory"), _WORST_CASE: worst}
    whole: dict[str, Any] = {name: None if value is None else round(value) for name, value in peaks.items()}
    return replace(
        record,
        memory=replace(record.memory, **whole),
        speed=replace(record.speed, **medians("speed")),
        data=replace(record.data, **medians("data")),
    )


def _values(records: Sequence[Record], metric: str) -> list[float | None]:
    return [number(record, metric) for record in records]
