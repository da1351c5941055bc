"""A figure: a small table of plain numbers with a title, which a chart draws and a reader can open as text."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from memexp.frozen import Frozen
from memexp.results.format import GIB, bytes_text
from memexp.results.grid import Grid
from memexp.results.record import Record

_IN_SIGHT = 1.6


@dataclass(frozen=True)
class Figure(Frozen):
    """`fields` has a heading for each column of `rows`, in their order; sizes are in GiB.

    `about` says in words what is drawn, and `notes` what to see in it. `rules` are lines to draw, name and value.
    """

    key: str
    title: str
    about: str
    fields: dict[str, str]
    rows: tuple[Any, ...]
    notes: tuple[str, ...] = ()
    rules: dict[str, float] = field(default_factory=dict)

    def values(self) -> list[dict[str, Any]]:
        """The rows by field, as a chart library takes them."""
        return [dict(zip(self.fields, row, strict=True)) for row in self.rows]

    def names(self, field: str) -> list[str]:
        """What one column holds, each once, in the order of the rows."""
        return list(dict.fromkeys(str(value[field]) for value in self.values()))


def card_name(records: Sequence[Record]) -> str:
    """What `memory.capacity_bytes` is the size of: a simulated card's is what its CUDA context leaves the allocator."""
    return "card less CUDA context" if any(record.backend == "simulate" for record in records) else "card"


def capacity(grid: Grid, sizes: Sequence[float]) -> dict[str, float]:
    """The card's memory as a rule, unless cards differ, or it is so far off that all marks would shrink to a corner."""
    capacities = {record.memory.capacity_bytes for record in grid.ok if record.memory.capacity_bytes}
    if len(capacities) != 1 or not sizes:
        return {}
    (size,) = capacities
    return {f"{card_name(grid.ok)}: {bytes_text(size)}": size / GIB} if size / GIB < _IN_SIGHT * max(sizes) else {}
