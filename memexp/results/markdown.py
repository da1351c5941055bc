"""table.md: a table for GitHub and for plain eyes. Everything that Markdown or HTML would act on is escaped."""

import re

from rich.cells import cell_len

from memexp.results.format import visible
from memexp.results.rows import EFFECTS_HEADING, UNKNOWN, Row, Table

_SPECIAL = re.compile(r"[\\`*|\[\]<>]|(?<![^\W_])_|_(?![^\W_])|^[#+-](?=\s)")
_ENTITIES = {"<": "&lt;", ">": "&gt;"}


def markdown(table: Table) -> str:
    """The whole file: title, heading, table, remarks, effects, and the command that made it."""
    parts = [f"# {escape(visible(table.name))}", "  \n".join(escape(line) for line in table.heading)]
    if table.rows:
        parts.append(_grid(table))
    if table.remarks:
        parts.append("\n".join(f"- {escape(remark)}" for remark in table.remarks))
    if table.effects:
        parts += [f"**{escape(EFFECTS_HEADING)}**", "\n".join(f"- {escape(sentence)}" for sentence in table.effects)]
    if table.command:
        parts.append(_code(visible(table.command)))
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text that reads as itself, also inside a table. Underscores within a word are left alone, as Markdown does."""
    return _SPECIAL.sub(lambda match: _ENTITIES.get(match[0], f"\\{match[0]}"), text)


def _grid(table: Table) -> str:
    has_remarks = any(row.remark for row in table.rows)
    header = [*table.axes, *(column.heading for column in table.columns), *([""] if has_remarks else [])]
    lines = [[escape(text) for text in header], *(_cells(table, row, has_remarks) for row in table.rows)]
    widths = [max(3, *(cell_len(line[column]) for line in lines)) for column in range(len(header))]
    # The last column holds sentences, which would pad every other row to their length.
    if has_remarks:
        widths[-1] = 3
    numbers = range(len(table.axes), len(table.axes) + len(table.columns))
    rule = ["-" * (width - 1) + ":" if column in numbers else "-" * width for column, width in enumerate(widths)]
    return "\n".join(_line(line, widths, numbers) for line in (lines[0], rule, *lines[1:]))


def _cells(table: Table, row: Row, has_remarks: bool) -> list[str]:
    numbers = [str(number) for number in row.numbers] if row.is_ok else [UNKNOWN] * len(table.columns)
    texts = [escape(text) for text in (*row.options, *numbers, *([row.remark] if has_remarks else []))]
    return [f"**{text}**" if row.is_baseline and row.is_ok and text else text for text in texts]


def _line(cells: list[str], widths: list[int], numbers: range) -> str:
    padded = []
    for column, (text, width) in enumerate(zip(cells, widths, strict=True)):
        space = " " * max(0, width - cell_len(text))
        padded.append(space + text if column in numbers else text + space)
    return f"| {' | '.join(padded)} |"


def _code(text: str) -> str:
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"
