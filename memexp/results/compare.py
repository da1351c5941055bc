"""Each cell against its baseline: which cell that is, the differences in percent, and whether the two compare at all.

What is said of it in words is in `remarks`; the verdict on losses is not made here.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Self

from memexp.results.few_rows import FEW_ROWS, rows_timed, timed_on_few_rows
from memexp.results.format import option_text
from memexp.results.grid import Grid, option
from memexp.results.record import Record
from memexp.results.sweep import Sweep

METRICS = {
    "peak_allocated_bytes": "memory",
    "peak_reserved_bytes": "memory",
    "real_tokens_per_second": "speed",
    "median_step_seconds": "speed",
    "kept_fraction": "data",
    "padding_fraction": "data",
}
DIFFERENT_WORK = "different work"
REPEATS = "seed"
_APART = ("model", "model.path", "data", "data.path", "data.name", "trainer", "gpu")
_SAME_WORK_PERCENT = 1.0


@dataclass(frozen=True)
class Baseline:
    """What one group of cells is compared with: the records that stand at `options`. Of repeats it is the median.

    `fell_back` names swept techniques that these records asked for and did not get, so that they are no baseline.
    `others` counts the cells that are compared with it.
    """

    group: dict[str, str]
    options: dict[str, str]
    records: tuple[Record, ...] = ()
    fell_back: tuple[str, ...] = ()
    others: int = 0

    @property
    def ok(self) -> list[Record]:
        return [record for record in self.records if record.is_ok]

    @property
    def usable(self) -> bool:
        return bool(self.ok) and not self.fell_back


@dataclass(frozen=True)
class Compared:
    """One cell. `vs_baseline` is in percent; None where a number is unknown, or where the two do not compare.

    `against` are the baseline's ok records. Of a configuration that was repeated (`memexp.results.repeats`) `repeats`
    are all its records, and `spread_percent` and `no_difference` say how much they differ among themselves.
    """

    record: Record
    vs_baseline: dict[str, float | None]
    is_baseline: bool = False
    fell_back: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    against: tuple[Record, ...] = ()
    repeats: tuple[Record, ...] = ()
    spread_percent: dict[str, float | None] = field(default_factory=dict)
    no_difference: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Comparison:
    """Every cell in grid order, and one baseline for each group of cells."""

    cells: tuple[Compared, ...]
    baselines: tuple[Baseline, ...]


def compare(grid: Grid) -> Comparison:
    """Compare every record with its baseline.

    A baseline stands at each axis's default, or at its first option where the default is not among them. There is one
    for each combination of `model`, `data`, `trainer` and `gpu`, and repeats share one: the median of those that are
    ok. `Sweep.baseline` overrides the axes that it names.
    """
    apart, target = _apart_axes(grid.sweep), _target(grid.sweep)
    groups: dict[tuple[str, ...], list[Record]] = defaultdict(list)
    for record in grid.records:
        groups[tuple(option(record, axis) for axis in apart)].append(record)
    compared: dict[str, Compared] = {}
    baselines: list[Baseline] = []
    for key, records in groups.items():
        there = tuple(r for r in records if all(option(r, axis) == text for axis, text in target.items()))
        fell_back = tuple(name for r in there for name in fell_back_techniques(r) if is_swept(grid, name))
        group = dict(zip(apart, key, strict=True))
        baselines.append(Baseline(group, target, there, fell_back, others=len(records) - len(there)))
        compared |= _compare_group(grid, baselines[-1], records)
    return Comparison(tuple(compared[record.id] for record in grid.records), tuple(baselines))


def number(record: Record, metric: str) -> float | None:
    """One of METRICS as recorded, whatever the record's status; None for NaN and infinity too."""
    value: float | None = getattr(getattr(record, METRICS[metric]), metric)
    return value if value is not None and math.isfinite(value) else None


def middle(values: Sequence[float | None]) -> float | None:
    """The median of what is known, None where nothing is."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def percent_change(value: float | None, base: float | None) -> float | None:
    """From `base` to `value`; None where either is unknown, and where something stands against nothing."""
    if value is None or base is None:
        return None
    if base == 0:
        return 0.0 if value == 0 else None
    return 100 * (value - base) / base


def is_apart(axis: str) -> bool:
    """Whether the options of this axis are different jobs, each with a baseline of its own."""
    return axis in _APART


def fell_back_techniques(record: Record) -> tuple[str, ...]:
    """Techniques that this ok cell asked for and TRL trained without, as the record has them: `padding_free=true`."""
    names = record.effective.get("fell_back") or () if record.is_ok else ()
    return (names,) if isinstance(names, str) else tuple(names)


def is_swept(grid: Grid, technique: str) -> bool:
    """Whether a technique, `padding_free=true`, stands on an axis. Also where one of its fields is swept (`peft.r`), or
    the TRL argument (`trainer.args.padding_free`).
    """
    group = technique.partition("=")[0]
    return any(group in (axis, axis.split(".")[0], axis.split(".")[-1]) for axis in grid.axes)


def _apart_axes(sweep: Sweep) -> list[str]:
    named = sweep.baseline or {}
    return [a.name for a in sweep.axes if a.name not in named and is_apart(a.name)]


def _target(sweep: Sweep) -> dict[str, str]:
    target: dict[str, str] = {}
    apart = _apart_axes(sweep)
    for axis in sweep.axes:
        if axis.name not in apart and axis.name != REPEATS:
            texts, default = [option_text(value) for value in axis.options], option_text(axis.default)
            target[axis.name] = default if default in texts or not texts else texts[0]
    return target | {name: option_text(value) for name, value in (sweep.baseline or {}).items()}


def _compare_group(grid: Grid, baseline: Baseline, records: Sequence[Record]) -> dict[str, Compared]:
    base = {metric: middle([number(record, metric) for record in baseline.ok]) for metric in METRICS}
    shared = {name for record in baseline.ok for name in fell_back_techniques(record)}
    # Without a baseline people still compare the rows with each other.
    work = _Work.of(baseline.ok or [record for record in records if record.is_ok][:1])
    members = {record.id for record in baseline.records}
    few = timed_on_few_rows(grid.ok)
    base_is_of_few = any(record.id in few for record in baseline.ok)
    base_rows = {rows_timed(record) for record in baseline.ok}
    against = tuple(baseline.ok)
    compared = {}
    for record in records:
        fell_back = fell_back_techniques(record)
        alike = set(fell_back) == shared and not any(is_swept(grid, name) for name in fell_back)
        comparable = record.is_ok and alike
        same_rows = {rows_timed(record)} == base_rows or not (base_is_of_few or record.id in few)
        shown = {m for m, section in METRICS.items() if comparable and (same_rows or section != "speed")}
        compared[record.id] = Compared(
            record,
            {m: percent_change(number(record, m), base[m]) if m in shown else None for m in METRICS},
            is_baseline=record.id in members,
            fell_back=fell_back,
            flags=_flags(record, work, few),
            against=against,
        )
    return compared


def _flags(record: Record, work: "_Work", few: Collection[str]) -> tuple[str, ...]:
    differs = record.is_ok and work.differs_from(_Work.of([record]))
    return (*((DIFFERENT_WORK,) if differs else ()), *((FEW_ROWS,) if record.id in few else ()))


@dataclass(frozen=True)
class _Work:
    """How much was trained on. On a simulated GPU steps are a sample, cells compare by rates, and no work differs.

    Under a budget of tokens every cell stops within a batch of it, which is the same work however large a batch is.
    """

    tokens: float | None
    budgets: frozenset[Any]
    is_sample: bool

    @classmethod
    def of(cls, cells: Sequence[Record]) -> Self:
        tokens = middle([cell.data.real_tokens for cell in cells])
        budgets = frozenset(cell.choices.get("budget.tokens") for cell in cells)
        return cls(tokens, budgets, any(cell.backend == "simulate" for cell in cells))

    def differs_from(self, other: Self) -> bool:
        one_budget = self.budgets == other.budgets and None not in self.budgets and len(self.budgets) == 1
        if self.is_sample or other.is_sample or one_budget:
            return False
        change = percent_change(other.tokens, self.tokens)
        return change is not None and abs(change) > _SAME_WORK_PERCENT
