"""Where the cells of a sweep stand on its axes, and how a set of them is named in a sentence."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property

from memexp.results.format import listing, option_text, visible
from memexp.results.record import Record
from memexp.results.sweep import Sweep

ABSENT = "-"
THIS_CELL = "this cell"
_LONGEST_OPTION = 32
_MOST_OPTIONS_NAMED = 4


class Grid:
    """The records of one sweep in grid order. Options are compared as text, so that False and "false" are one."""

    def __init__(self, sweep: Sweep, records: Iterable[Record]) -> None:
        order = {plan_id: position for position, plan_id in enumerate(sweep.cells)}
        self.sweep = sweep
        self.records = sorted(records, key=lambda record: order.get(record.id, len(order)))
        self.axes = tuple(axis.name for axis in sweep.axes)

    @cached_property
    def ok(self) -> list[Record]:
        return [record for record in self.records if record.is_ok]

    def label(self, record: Record) -> str:
        """`packing=bfd offload=true`: the cell as it is typed."""
        return self.typed({axis: [option(record, axis)] for axis in self.axes})

    def typed(self, options: dict[str, list[str]]) -> str:
        """`packing=bfd,wrapped offload=true`, or `this cell` where nothing is swept."""
        words = [f"{axis}={','.join(self.short(axis, text) for text in texts)}" for axis, texts in options.items()]
        return visible(" ".join(words)) or THIS_CELL

    def describe(self, cells: Sequence[Record], among: Sequence[Record]) -> str:
        """Name `cells`, some of `among`, by the options that set them apart, or one by one where those do not."""
        if len(cells) == len(among):
            return self._everything(among)
        taken = {axis: list(dict.fromkeys(option(record, axis) for record in cells)) for axis in self.axes}
        telling = {axis: texts for axis, texts in taken.items() if len(texts) < self._spread(among)[axis]}
        selected = [r for r in among if all(option(r, axis) in texts for axis, texts in telling.items())]
        if len(selected) != len(cells) or max(map(len, telling.values()), default=0) > _MOST_OPTIONS_NAMED:
            return listing([self.label(record) for record in cells[: _MOST_OPTIONS_NAMED + 1]], total=len(cells))
        return self.typed(telling)

    def short(self, axis: str, text: str) -> str:
        """The option in about 32 characters at most. A number tells apart the long options of an axis."""
        return self._shortened.get((axis, text)) or visible(text)

    def legend(self) -> list[tuple[str, str, str]]:
        """(axis, what tables say, the whole option) for every option that is too long for a table."""
        return [(axis, short, visible(text)) for (axis, text), short in self._shortened.items()]

    def _everything(self, among: Sequence[Record]) -> str:
        if len(self.records) == 1:
            return THIS_CELL
        return "every cell" if len(among) == len(self.records) else f"every {among[0].status} cell"

    def _spread(self, among: Sequence[Record]) -> dict[str, int]:
        return {axis: len({option(record, axis) for record in among}) for axis in self.axes}

    @cached_property
    def _shortened(self) -> dict[tuple[str, str], str]:
        found: dict[tuple[str, str], str] = {}
        half = _LONGEST_OPTION // 2 - 3
        for axis in self.axes:
            options = dict.fromkeys(option(record, axis) for record in self.records)
            long = [text for text in options if len(visible(text)) > _LONGEST_OPTION]
            for number, text in enumerate(long, start=1):
                found[axis, text] = f"{visible(text)[:half]}…{visible(text)[-half:]} [{number}]"
        return found


def option(record: Record, axis: str) -> str:
    """The record's option on one axis as text; `-` where the record does not say."""
    return option_text(record.choices[axis]) if axis in record.choices else ABSENT


def grouped(records: Iterable[Record], key: Callable[[Record], Hashable]) -> list[list[Record]]:
    """The records with equal keys together, in the order in which the keys appear."""
    groups: dict[Hashable, list[Record]] = defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    return list(groups.values())
