"""One way to draw a table's rows as lines of a terminal. Which way fits is for `terminal` to choose.

Only rich's Text is made, never its markup, so that nothing in a record is taken for markup.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from memexp.results.rows import Number, Row, Table

_GAP = 2
_FOLDED_AT = 14
_WIDEST_REASON = 100
_NARROWEST_REASON = 24
_CHANGE_STYLES = {True: "green", False: "red", None: "dim"}
_WORDS = re.compile(r"[^._/, -]*[._/, -]?")


@dataclass(frozen=True)
class _Span:
    text: str
    style: str = ""


_Line = tuple[_Span, ...]
_Cell = tuple[_Line, ...]


class Layout:
    """The numbers of `columns` beside the options. `folded` trades width for height: a change goes below its value."""

    def __init__(self, table: Table, columns: Sequence[int], folded: bool) -> None:
        headings = [table.columns[n].heading for n in columns]
        self._header = [
            *(_option_cell(axis, folded) for axis in table.axes),
            *(_cell(heading.split() if folded else [heading]) for heading in headings),
            _cell([""]),
        ]
        changes = [max((len(_bracketed(r.numbers[n])) for r in table.rows if r.is_ok), default=0) for n in columns]
        self._rows = [(row, _cells(row, columns, changes, folded)) for row in table.rows]
        every = [self._header, *(cells for _, cells in self._rows)]
        self._widths = [
            max(_width(line) for cells in every if column < len(cells) for line in cells[column])
            for column in range(len(self._header))
        ]
        self._numbers = range(len(table.axes), len(table.axes) + len(columns))

    @property
    def width(self) -> int:
        """What the rows need. A reason can be wrapped, but not to a sliver."""
        has_reasons = any(not row.is_ok for row, _ in self._rows)
        return max(self._grid_width, self._start_of_numbers + _NARROWEST_REASON if has_reasons else 0)

    @property
    def _grid_width(self) -> int:
        return sum(self._widths) + _GAP * sum(1 for width in self._widths[1:] if width)

    @property
    def _start_of_numbers(self) -> int:
        return sum(self._widths[: self._numbers.start]) + _GAP * self._numbers.start

    def draw(self, console: Console) -> Iterator[Text]:
        """The heading and every row; a reason runs over all numbers, as far as the console is wide."""
        yield from self._side_by_side(self._header, "bold", bottom=True)
        yield Text("─" * self._grid_width, "dim")
        room = min(_WIDEST_REASON, console.width - self._start_of_numbers)
        seen: set[str] = set()
        for row, cells in self._rows:
            if not row.is_ok:
                cells = [*cells, _reason(row, console, room, is_repeated=row.remark in seen)]
                seen.add(row.remark)
            yield from self._side_by_side(cells, "bold" if row.is_baseline and row.is_ok else "")

    def _side_by_side(self, cells: Sequence[_Cell], style: str, bottom: bool = False) -> Iterator[Text]:
        height = max(map(len, cells))
        for row in range(height):
            line = Text(style=style)
            for column, cell in enumerate(cells):
                here = row - (height - len(cell) if bottom else 0)
                spans = cell[here] if 0 <= here < len(cell) else ()
                # What comes last in a row, a remark or a reason, is not padded.
                space = " " * (self._widths[column] - _width(spans)) if column < len(cells) - 1 else ""
                line.append(" " * _GAP if column else "")
                line.append(space if column in self._numbers else "")
                for span in spans:
                    line.append(span.text, span.style)
                line.append("" if column in self._numbers else space)
            line.rstrip()
            yield line


def _cells(row: Row, columns: Sequence[int], changes: Sequence[int], folded: bool) -> list[_Cell]:
    """The options, and for a cell that is ok its numbers and its remark."""
    options = [_option_cell(text, folded) for text in row.options]
    if not row.is_ok:
        return options
    numbers = [_number_cell(row.numbers[n], width, folded) for n, width in zip(columns, changes, strict=True)]
    remark = _cell(row.remark.split(", ") if folded else [row.remark], style="" if row.is_baseline else "yellow")
    return [*options, *numbers, remark]


def _option_cell(text: str, folded: bool) -> _Cell:
    if not folded:
        return _cell([text])
    parts = [""]
    for word in _WORDS.findall(text):
        for start in range(0, len(word), _FOLDED_AT):
            piece = word[start : start + _FOLDED_AT]
            if len(parts[-1]) + len(piece) > _FOLDED_AT:
                parts.append("")
            parts[-1] += piece
    return _cell(parts)


def _number_cell(number: Number, change_width: int, folded: bool) -> _Cell:
    style = _CHANGE_STYLES[number.better]
    if folded:
        return (*_cell([number.text]), *(_cell([number.change], style) if number.change else ()))
    # Room for a change also where there is none keeps the values of a column in line.
    return ((_Span(number.text), _Span(_bracketed(number).rjust(change_width), style)),)


def _bracketed(number: Number) -> str:
    return f" ({number.change})" if number.change else ""


def _reason(row: Row, console: Console, room: int, is_repeated: bool) -> _Cell:
    style = "yellow" if row.status == "refused" else "red"
    wrapped = Text(row.remark).wrap(console, room)
    if is_repeated and len(wrapped) > 1:
        return _cell([f"{row.remark.partition(':')[0]}, as above"], style)
    return _cell([line.plain for line in wrapped], style)


def _cell(texts: Sequence[str], style: str = "") -> _Cell:
    return tuple((_Span(text, style),) for text in texts)


def _width(line: _Line) -> int:
    return sum(cell_len(span.text) for span in line)
