"""The terminal's view of token lengths: a histogram and a table. Reads the worker's answer alone."""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from rich.console import Console

from memexp.results.format import fraction_text

_BINS = 16
_BAR_WIDTH = 40
_CELL = 5  # characters of the widest percentage
_TAIL = 0.99  # of the rows lie below the last bin


def show(answer: dict[str, Any], title: str, console: Console) -> None:
    """Print what `memexp.lengths.count` wrote."""
    lengths: list[tuple[int, int]] = answer["lengths"]
    rows, tokens = sum(count for _, count in lengths), sum(length * count for length, count in lengths)
    console.print(title, markup=False)
    console.print(
        f"{rows:,} {'row' if rows == 1 else 'rows'}, {tokens:,} tokens: shortest {lengths[0][0]:,}, "
        f"median {quantile(lengths, 0.5):,}, mean {tokens / rows:,.0f}, 95% within {quantile(lengths, 0.95):,}, "
        f"longest {lengths[-1][0]:,}\n",
        markup=False,
    )
    for line in histogram_lines(lengths, console.width):
        console.print(line, markup=False)
    for line in ("", *table_lines(answer["cuts"])):
        console.print(line, markup=False)
    console.print(
        "\nEmpty slots hold no token. Without packing a batch is as long as its longest row, rows in the data's order; "
        "packed rows have max_length slots. packing=none and bfd lose what is cut, bfd_split and wrapped keep it in "
        "another row.",
        markup=False,
    )


def quantile(lengths: Sequence[tuple[int, int]], fraction: float) -> int:
    """The length that this fraction of the rows does not exceed. `lengths` are (tokens, rows), shortest first."""
    needed = fraction * sum(count for _, count in lengths)
    reached = accumulate(count for _, count in lengths)
    return next(length for (length, _), count in zip(lengths, reached, strict=True) if count >= needed)


def bins(lengths: Sequence[tuple[int, int]], at_most: int = _BINS) -> list[tuple[int, int | None, int]]:
    """(first, last, rows) of bins of one width; one more is open where a long tail would squeeze the rest."""
    edge = max(quantile(lengths, _TAIL), 1)
    width = _round_width(edge / at_most)
    count = math.ceil(edge / width)
    totals = [0] * (count + 1)
    for length, rows in lengths:
        totals[min(max(length - 1, 0) // width, count)] += rows
    closed = [(index * width + 1, (index + 1) * width, totals[index]) for index in range(count)]
    return [*closed, (count * width + 1, None, totals[-1])] if totals[-1] else list(closed)


def histogram_lines(lengths: Sequence[tuple[int, int]], columns: int = 100) -> list[str]:
    """One line a bin: its tokens, its share of the rows as a bar, and the share of rows up to its end.

    In fewer `columns` the bars are shorter; the figures are not.
    """
    parts = bins(lengths)
    highest, total = max(rows for *_, rows in parts), sum(rows for *_, rows in parts)
    names = [_range(first, last) for first, last, _ in parts]
    width = max(len(name) for name in (*names, "tokens"))
    longest = max(1, min(_BAR_WIDTH, columns - width - len("  123456789    up to here")))
    lines = [f"{'tokens':>{width}}  {'rows':>9}  {'':{longest}}  up to here"]
    for name, (_, _, rows), reached in zip(names, parts, accumulate(rows for *_, rows in parts), strict=True):
        bar = "█" * round(longest * rows / highest) or ("▏" if rows else "")
        lines.append(f"{name:>{width}}  {rows:>9,}  {bar:{longest}}  {fraction_text(reached / total):>10}")
    return lines


def _range(first: int, last: int | None) -> str:
    if last is None:
        return f"{first:,}+"
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _round_width(width: float) -> int:
    """1, 2, 5 or 10 times a power of ten, or a little more than asked for."""
    power = 10 ** math.floor(math.log10(max(width, 1)))
    return int(next(step * power for step in (1, 2, 5, 10) if step * power >= width))


def table_lines(cuts: Sequence[dict[str, Any]]) -> list[str]:
    """One line a max_length: what it cuts, and the empty slots of a batch without packing and of packed rows."""
    sizes, packings = list(cuts[0]["padding"]), list(cuts[0]["packings"])
    groups = [("cut", ["rows", "tokens"]), ("empty, batch of", sizes), ("empty, packed", packings)]
    rows = [
        [
            [cut["rows_cut_fraction"], cut["tokens_cut_fraction"]],
            list(cut["padding"].values()),
            [cut["packings"][name]["empty_fraction"] for name in packings],
        ]
        for cut in cuts
    ]
    lines = [f"{'':10}", f"{'max_length':>10}", *(f"{cut['max_length']:>10,}" for cut in cuts)]
    for index, (title, names) in enumerate(groups):
        heading = "".join(f"{name:>{max(len(name), _CELL) + 1}}" for name in names)
        lines[0] += f"  {title:>{len(heading)}}"
        lines[1] += f"  {heading}"
        for number, row in enumerate(rows):
            cells = zip(row[index], names, strict=True)
            lines[number + 2] += "  " + "".join(
                f"{fraction_text(value):>{max(len(name), _CELL) + 1}}" for value, name in cells
            )
    return lines
