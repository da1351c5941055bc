"""The table in a terminal of any width: in full, else with each change below its value, else with fewer columns, else
one block a cell.
"""

import os
import re
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.text import Text

from memexp.results.format import listing, visible
from memexp.results.grid import THIS_CELL
from memexp.results.layout import Layout
from memexp.results.rows import EFFECTS_HEADING, Table

_FEWEST_COLUMNS = 2
_BEFORE_TEXT = re.compile(r"- |  \S+( \S+)*  +|  ")


def lines(table: Table, console: Console) -> Iterator[Text]:
    """The whole table line by line, none wider than the console."""
    yield from _wrap(console, visible(table.name), style="bold")
    for line in table.heading:
        yield from _wrap(console, line, style="dim")
    if table.rows:
        yield Text()
        yield from _rows(table, console)
    if table.remarks:
        yield Text()
    for remark in table.remarks:
        yield from _wrap(console, remark, indent="- ")
    if table.effects:
        yield Text()
        yield from _wrap(console, EFFECTS_HEADING, style="bold")
    for sentence in table.effects:
        yield from _wrap(console, sentence, indent="- ")


def _rows(table: Table, console: Console) -> Iterator[Text]:
    if not (table.axes or table.columns):  # a single run of which nothing was measured
        for row in table.rows:
            yield from _wrap(console, row.remark)
        return
    everything = range(len(table.columns))
    by_rank = sorted(everything, key=lambda n: table.columns[n].rank)
    fewer = [sorted(by_rank[:count]) for count in range(len(by_rank) - 1, _FEWEST_COLUMNS - 1, -1)]
    for columns, folded in [(everything, False), (everything, True), *((chosen, True) for chosen in fewer)]:
        layout = Layout(table, columns, folded)
        if layout.width <= console.width:
            yield from layout.draw(console)
            left_out = [table.columns[n].heading for n in everything if n not in columns]
            if left_out:
                yield from _wrap(console, f"No room here for {listing(left_out)}: see table.md.", style="dim")
            return
    yield from _blocks(table, console)


def print_lines(lines: Iterable[str], console: Console) -> None:
    """As wide as the console where somebody looks at it or says how wide it is; in a pipe, a line is a line."""
    for line in lines:
        for part in hanging(console, line) if has_a_width(console) else [Text(line)]:
            console.print(part, soft_wrap=True)


def has_a_width(console: Console) -> bool:
    """False for a pipe or a file, unless somebody says how wide it is: rich takes them to have 80 columns."""
    return console.is_terminal or "COLUMNS" in os.environ


def hanging(console: Console, line: str, style: str = "") -> Iterator[Text]:
    """A line that is more than the console is wide, broken at words; the rest hangs below where its text begins, behind
    a dash, a label in columns (`  by phase     load …`), or two spaces.
    """
    found = _BEFORE_TEXT.match(line)
    before = found[0] if found else ""
    text = line.removeprefix(before)
    first = [*_wrap(console, text, style, indent=before)] if len(before) < console.width // 2 else []
    yield from first or _wrap(console, line, style)


def _blocks(table: Table, console: Console) -> Iterator[Text]:
    width = max((len(column.heading) for column in table.columns), default=0)
    for row in table.rows:
        options = " ".join(f"{axis}={text}" for axis, text in zip(table.axes, row.options, strict=True))
        yield from _wrap(console, options or THIS_CELL, style="bold" if row.is_baseline else "")
        for column, number in zip(table.columns, row.numbers, strict=False):
            yield from hanging(console, f"  {column.heading:{width}}  {number}")
        if row.remark:
            yield from _wrap(console, row.remark, indent="  ")


def _wrap(console: Console, text: str, style: str = "", indent: str = "") -> Iterator[Text]:
    """Lines that fit, the first behind `indent` and the others below its end."""
    for number, line in enumerate(Text(text, style).wrap(console, max(1, console.width - len(indent)))):
        line.rstrip()
        yield Text(indent if number == 0 else " " * len(indent)).append_text(line)
