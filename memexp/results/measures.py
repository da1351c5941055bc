"""The numbers a table can show, in its order of columns: where each is read, its unit, and which way is better."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memexp.results.compare import Compared
from memexp.results.format import bytes_text, change_text, fraction_text, rate_text, seconds_text, spread_text
from memexp.results.predicted import tilde
from memexp.results.record import Record
from memexp.results.rows import Number

_WORST_CASE_MATTERS = 1.05
_NOTHING_MUCH_PERCENT = 1.0


@dataclass(frozen=True)
class Measure:
    """A column. `field` is where a record keeps the number; fractions show no change, being percentages themselves."""

    heading: str
    field: str
    form: Callable[[float], str]
    rank: int
    less_is_better: bool = True

    @property
    def is_fraction(self) -> bool:
        return self.form is fraction_text

    @property
    def is_worst_case(self) -> bool:
        return "worst_case" in self.field

    def show(self, cell: Compared) -> Number:
        section, name = self.field.split(".")
        value: float | None = getattr(getattr(cell.record, section), name)
        if value is None or not math.isfinite(value):
            return Number()
        text = tilde(cell.record, self.field) + self.form(value)
        text += spread_text(cell.spread_percent.get(name))
        change = None if self.is_fraction or _is_its_own(cell) else cell.vs_baseline.get(name)
        if change is None:
            return Number(text, raw=value)
        if name in cell.no_difference:
            return Number(text, "no difference", raw=value)
        notable = abs(change) >= _NOTHING_MUCH_PERCENT
        better = (change < 0) == self.less_is_better if notable else None
        return Number(text, change_text(change), better, raw=value)


MEASURES = (
    Measure("peak allocated", "memory.peak_allocated_bytes", bytes_text, rank=0),
    Measure("peak reserved", "memory.peak_reserved_bytes", bytes_text, rank=3),
    Measure("worst-case peak", "memory.worst_case_peak_allocated_bytes", bytes_text, rank=4),
    Measure("real tokens/s", "speed.real_tokens_per_second", rate_text, rank=1, less_is_better=False),
    Measure("step", "speed.median_step_seconds", seconds_text, rank=5),
    Measure("kept", "data.kept_fraction", fraction_text, rank=2, less_is_better=False),
    Measure("padding", "data.padding_fraction", fraction_text, rank=6),
)


def worst_case_matters(records: Sequence[Record]) -> bool:
    """Whether a full batch of the longest rows needs over 5 percent more than the run did, in any of these cells."""
    peaks = [(r.memory.worst_case_peak_allocated_bytes, r.memory.peak_allocated_bytes) for r in records]
    return any(worst > _WORST_CASE_MATTERS * peak for worst, peak in peaks if worst is not None and peak is not None)


def _is_its_own(cell: Compared) -> bool:
    """A baseline without repeats differs from itself by nothing, which is not worth a word."""
    return cell.is_baseline and not any(cell.vs_baseline.values())
