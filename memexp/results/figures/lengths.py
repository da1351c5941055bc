"""How long the rows of the data are in tokens, before anything is cut or packed: what a cell left beside its tokens."""

import json
from pathlib import Path
from statistics import median

from memexp.results.figures.figure import Figure
from memexp.results.format import rate_text, visible
from memexp.results.grid import Grid

_MOST_BINS = 40


def row_lengths(grid: Grid, folder: Path) -> Figure | None:
    """Of the first data set whose lengths were kept. None where there are none, as of data from a hub."""
    for path in sorted(folder.glob("tokens/*.lengths.json")):
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            counts = {int(length): int(rows) for length, rows in kept["rows_by_length"].items()}
            name = visible(str(kept["data"]))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            continue
        if counts:
            return _histogram(grid, name, counts)
    return None


def _histogram(grid: Grid, name: str, counts: dict[int, int]) -> Figure:
    longest, rows = max(counts), sum(counts.values())
    width = max(1, -(-longest // _MOST_BINS))
    bins: dict[int, int] = {}
    for length, count in counts.items():
        bins[length // width * width] = bins.get(length // width * width, 0) + count
    middle = median(length for length, count in counts.items() for _ in range(count))
    limits = {record.choices.get("max_length") for record in grid.records}
    return Figure(
        key="lengths",
        title="Row lengths",
        about=f"{name}: {rows:,} rows, {sum(n * count for n, count in counts.items()):,} tokens before anything is cut "
        f"or packed. Half of the rows have at most {rate_text(middle)} tokens, the longest has {longest:,}.",
        fields={"start": "tokens from", "end": "below", "rows": "rows"},
        rows=tuple((start, start + width, count) for start, count in sorted(bins.items())),
        rules={f"max_length={limit:,}": limit for limit in limits if isinstance(limit, int) and limit <= 1.2 * longest},
    )
