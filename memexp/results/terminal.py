"""The table in a terminal of any width: in full, else with each change below its value, else with fewer columns, else
one block a cell.
"""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from memexp.results.format import listing, visible
from memexp.results.layout import Layout
from memexp.results.rows import EFFECTS_HEADING, Table

_FEWEST_COLUMNS = 2


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


def _blocks(table: Table, console: Console) -> Iterator[Text]:
    for row in table.rows:
        options = " ".join(f"{axis}={text}" for axis, text in zip(table.axes, row.options, strict=True))
        yield from _wrap(console, options, style="bold" if row.is_baseline else "")
        numbers = [f"{column.heading} {number}" for column, number in zip(table.columns, row.numbers, strict=False)]
        yield from _wrap(console, ", ".join([*numbers, *([row.remark] if row.remark else [])]), indent="  ")


def _wrap(console: Console, text: str, style: str = "", indent: str = "") -> Iterator[Text]:
    """Lines that fit, the first behind `indent` and the others below its end."""
    for number, line in enumerate(Text(text, style).wrap(console, max(1, console.width - len(indent)))):
        line.rstrip()
        yield Text(indent if number == 0 else " " * len(indent)).append_text(line)
