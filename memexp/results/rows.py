"""A comparison table as plain data, which every renderer reads. All text is plain: renderers escape it."""

from dataclasses import dataclass

from memexp.frozen import Frozen

UNKNOWN = "-"
EFFECTS_HEADING = "Effects: the mean over cells that differ in nothing else, and the least and the most"


@dataclass(frozen=True)
class Number(Frozen):
    """One number as people read it. `change` is against the baseline; `better` is None where it is nothing much.

    `raw` is the number itself, in the unit of its measure, to sort by.
    """

    text: str = UNKNOWN
    change: str = ""
    better: bool | None = None
    raw: float | None = None

    def __str__(self) -> str:
        return f"{self.text} ({self.change})" if self.change else self.text


@dataclass(frozen=True)
class Column(Frozen):
    """A column of numbers. Where there is no room for all, those with a high `rank` go first."""

    heading: str
    rank: int = 0


@dataclass(frozen=True)
class Row(Frozen):
    """One cell. `numbers` is empty unless the cell is ok; `remark` says what is special about it, or how it ended."""

    id: str
    status: str
    options: tuple[str, ...]
    numbers: tuple[Number, ...] = ()
    remark: str = ""
    is_baseline: bool = False

    @property
    def is_ok(self) -> bool:
        return self.status == "ok"


@dataclass(frozen=True)
class Table(Frozen):
    """`heading` stands above the rows, `remarks` below, and `effects` below them. `csv` has its own header line and all
    columns, as raw text.
    """

    name: str
    command: str
    heading: tuple[str, ...]
    axes: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    remarks: tuple[str, ...]
    csv: tuple[tuple[str, ...], ...]
    effects: tuple[str, ...] = ()
