"""What the charts of a sweep show, as plain numbers. No chart library in here: see `memexp.results.charts`."""

from pathlib import Path

from memexp.results.compare import Comparison
from memexp.results.figures.figure import Figure
from memexp.results.figures.front import speed_against_memory
from memexp.results.figures.lengths import row_lengths
from memexp.results.figures.memory import by_category, by_phase
from memexp.results.figures.technique import effect_figure
from memexp.results.grid import Grid
from memexp.results.repeats import without_repeats

__all__ = ["Figure", "figures"]


def figures(grid: Grid, comparison: Comparison, folder: Path) -> tuple[Figure, ...]:
    """Every figure that has something to show; repeats are one cell, as in the table.

    Row lengths are read from the sweep's folder, where a cell left them.
    """
    rows = without_repeats(grid, comparison)
    found = (
        speed_against_memory(rows),
        by_category(rows),
        by_phase(rows),
        effect_figure(grid, comparison),
        row_lengths(grid, folder),
    )
    return tuple(figure for figure in found if figure is not None)
