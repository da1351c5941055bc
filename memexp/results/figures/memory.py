"""What is on the card at each cell's peak, and how high each phase reaches."""

from collections.abc import Sequence

from memexp.results.figures.figure import Figure, capacity
from memexp.results.figures.front import places_on_the_front
from memexp.results.format import GIB
from memexp.results.grid import Grid
from memexp.results.record import CATEGORIES, Record

PHASES = ("load", "forward", "backward", "optimizer", "worst case")
_MOST_CELLS = 24


def by_category(grid: Grid) -> Figure | None:
    """Known where the device was simulated or ledgered; the sizes of a cell add up to its peak."""
    cells = [record for record in grid.ok if any(record.memory.peak_categories.values())]
    rows = [
        (grid.label(record), name.removesuffix("_bytes"), size / GIB)
        for record in _shown(grid, cells)
        for name in CATEGORIES
        if (size := record.memory.peak_categories.get(name))
    ]
    about = f"Bytes allocated when a cell peaks, by what they hold.{_left_out(cells)}"
    fields = {"cell": "cell", "category": "what it is", "size": "GiB"}
    peaks = [(record.memory.peak_allocated_bytes or 0) / GIB for record in cells]
    rules = capacity(grid, peaks)
    return (
        Figure("category", "What is on the card at the peak", about, fields, tuple(rows), rules=rules) if rows else None
    )


def by_phase(grid: Grid) -> Figure | None:
    """Phases follow each other, so that their peaks stand side by side and are never added."""
    cells = [record for record in grid.ok if any(_phase_bytes(record, phase) for phase in PHASES)]
    rows = [
        (grid.label(record), phase, size / GIB)
        for record in _shown(grid, cells)
        for phase in PHASES
        if (size := _phase_bytes(record, phase))
    ]
    about = f"The most allocated in each phase; these peaks do not add up.{_left_out(cells)}"
    fields = {"cell": "cell", "phase": "phase", "size": "GiB"}
    rules = capacity(grid, [row[2] for row in rows])
    return Figure("phase", "How high each phase reaches", about, fields, tuple(rows), rules=rules) if rows else None


def _phase_bytes(record: Record, phase: str) -> int | None:
    found = record.memory.phases.get(phase.replace(" ", "_"))
    return found.get("peak_allocated_bytes") if isinstance(found, dict) else None


def _shown(grid: Grid, cells: Sequence[Record]) -> list[Record]:
    """As many cells as a page has room for, least memory first: the front's, then those of the least memory."""
    places = places_on_the_front(grid)
    chosen = sorted(cells, key=lambda record: (record.id not in places, record.memory.peak_allocated_bytes or 0))
    return sorted(chosen[:_MOST_CELLS], key=lambda record: record.memory.peak_allocated_bytes or 0)


def _left_out(cells: Sequence[Record]) -> str:
    if len(cells) <= _MOST_CELLS:
        return ""
    return f" {_MOST_CELLS} of {len(cells):,} cells: the Pareto front, then those of the least memory."
