"""Which cells act alike: other options were asked for, and the built trainers are set up the same on the same tokens.

Only `effective` and the prepared data are compared. Equal numbers alone say nothing, and unequal peaks refute it.
"""

import json
from collections import defaultdict
from collections.abc import Hashable

from memexp.results.compare import is_apart
from memexp.results.format import listing
from memexp.results.grid import THIS_CELL, Grid, grouped, option
from memexp.results.record import Record
from memexp.results.sweep import Axis

_SAME_PEAK = 1.01
_MOST_LABELS = 6


def sentences(grid: Grid) -> list[str]:
    """`padding_free=true and padding_free=false act alike here (packing=bfd)`, for cells that are ok."""
    alike: dict[tuple[str, tuple[str, ...]], list[Record]] = defaultdict(list)
    lines = []
    for cells in grouped(grid.ok, lambda record: _behaviour(grid, record)):
        peaks = [peak for r in cells if (peak := r.memory.peak_allocated_bytes) is not None]
        if len(cells) == 1 or (peaks and max(peaks) > _SAME_PEAK * min(peaks)):
            continue
        varied = [axis for axis in grid.axes if len({option(record, axis) for record in cells}) > 1]
        if len(varied) == 1:
            alike[varied[0], tuple(option(record, varied[0]) for record in cells)] += cells
        else:
            labels = [grid.label(record) for record in cells[:_MOST_LABELS]]
            lines.append(f"{listing(labels, total=len(cells))} act alike here")
    for (axis, texts), cells in alike.items():
        where = grid.describe(cells, [record for record in grid.ok if option(record, axis) in texts])
        place = "" if where.startswith(("every", THIS_CELL)) else f" ({where})"
        lines.append(f"{listing([grid.typed({axis: [text]}) for text in texts])} act alike here{place}")
    return lines


def _behaviour(grid: Grid, record: Record) -> Hashable:
    """Equal for two cells whose trainers are set up the same, as far as `effective` can tell."""
    if not record.effective or record.data.kept_tokens is None:
        return record.id
    beside = tuple(option(record, axis.name) for axis in grid.sweep.axes if not _shows_in_effective(axis, record))
    return beside, json.dumps(record.effective, sort_keys=True, default=str), record.data.kept_tokens


def _shows_in_effective(axis: Axis, record: Record) -> bool:
    """A technique does. A number or a field (`batch_size`, `peft.r`) acts, even where `effective` is silent on it."""
    if is_apart(axis.name) or axis.name == "backend":
        return False
    if axis.name.split(".")[-1] in record.effective:
        return True
    is_number = any(isinstance(value, int | float) and not isinstance(value, bool) for value in axis.options)
    return "." not in axis.name and not is_number
