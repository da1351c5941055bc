"""Whether two records of one cell agree: the same machine at another time, or another machine altogether.

Between machines and versions memory is held to 1% and speed to 15%, which is what prime-rl's regression checks came to;
what runs of one sweep are held to is their own spread (`repeats`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from memexp.frozen import Frozen
from memexp.results.compare import percent_change
from memexp.results.format import bytes_text, change_text, option_text, rate_text, visible
from memexp.results.record import Record
from memexp.results.software import versions_of

TOLERANCE_PERCENT = {"memory": 1.0, "speed": 15.0}
COMPARED = (
    "memory.peak_allocated_bytes",
    "memory.peak_reserved_bytes",
    "memory.worst_case_peak_allocated_bytes",
    "speed.real_tokens_per_second",
)
# What of a record's environment may explain another number, in the order of a sentence.
_FACTS = ("gpu", "driver", "python", "memexp", "commit")
_COMMIT_DIGITS = 8


@dataclass(frozen=True)
class Difference(Frozen):
    """A number that moved beyond its tolerance, or is known on one side alone. `field` is dotted, as in a record."""

    field: str
    before: float | None
    after: float | None
    percent: float | None

    @property
    def section(self) -> str:
        return self.field.partition(".")[0]

    def __str__(self) -> str:
        name = _NAMES[self.field]
        if self.before is None or self.after is None:
            return f"{name} {_text(self.field, self.before)} before, {_text(self.field, self.after)} now"
        change = f" ({change_text(self.percent)})" if self.percent is not None else ""
        return f"{name} {_text(self.field, self.before)} before, {_text(self.field, self.after)} now{change}"


def differences(before: Record, after: Record) -> tuple[Difference, ...]:
    """Peaks and speed that do not agree. For two ok records: others have no numbers to compare."""
    return tuple(
        Difference(field, first, second, percent)
        for field in COMPARED
        for first, second in [(_number(before, field), _number(after, field))]
        for percent in [percent_change(second, first)]
        if not _agrees(field, first, second, percent)
    )


def environment_changes(before: Record, after: Record) -> dict[str, tuple[str, str]]:
    """Versions, card and so on that are known on both sides and differ: name to (before, now)."""
    first, second = dict(_facts(before)), dict(_facts(after))
    return {name: (first[name], second[name]) for name in first if name in second and first[name] != second[name]}


def changes_text(changes: dict[str, tuple[str, str]]) -> str:
    """`trl 1.16.0 before, 1.17.0 now; torch …`, safe to print."""
    return visible("; ".join(f"{name} {before} before, {now} now" for name, (before, now) in changes.items()))


_NAMES = {
    "memory.peak_allocated_bytes": "peak allocated",
    "memory.peak_reserved_bytes": "peak reserved",
    "memory.worst_case_peak_allocated_bytes": "worst-case peak",
    "speed.real_tokens_per_second": "real tokens/s",
}


def _agrees(field: str, before: float | None, after: float | None, percent: float | None) -> bool:
    if before is None or after is None:
        return before is after
    return percent is not None and abs(percent) <= TOLERANCE_PERCENT[field.partition(".")[0]]


def _number(record: Record, field: str) -> float | None:
    section, name = field.split(".")
    value: float | None = getattr(getattr(record, section), name)
    return value


def _text(field: str, value: float | None) -> str:
    if value is None:
        return "unknown"
    return bytes_text(value) if field.endswith("_bytes") else rate_text(value)


def _facts(record: Record) -> Iterator[tuple[str, str]]:
    facts = versions_of(record.environment) | {name: record.environment.get(name) for name in _FACTS}
    for name, value in facts.items():
        if value is not None:
            text = option_text(value)
            yield name, text[:_COMMIT_DIGITS] if name == "commit" else text
