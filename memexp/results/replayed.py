"""Whether a cell that ran again came out as before: its losses, tokens and peaks, and what else may differ.

Losses and tokens are the same to the last digit or they are not; peaks agree within 1%, speed within 15%. Speed alone
never makes a replay fail: it is the machine's as much as the cell's.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from memexp.frozen import Frozen
from memexp.results.agreement import Difference, changes_text, differences, environment_changes
from memexp.results.outcome import outcome
from memexp.results.record import Record


@dataclass(frozen=True)
class Replayed(Frozen):
    """`same` are the things that match exactly, `other` one sentence for each that does not, `speed` only a remark."""

    same: tuple[str, ...]
    other: tuple[str, ...]
    speed: tuple[Difference, ...]
    environment: dict[str, tuple[str, str]]

    @property
    def matches(self) -> bool:
        return not self.other


def replayed(before: Record, after: Record) -> Replayed:
    """Compare the record that lay beside the plan with that of the replay."""
    environment = environment_changes(before, after)
    if before.status != after.status:
        said = f"it was {outcome(before) or 'ok'}, and is {outcome(after) or 'ok'} now"
        return Replayed((), (said,), (), environment)
    if not before.is_ok:
        return Replayed((f"it ended as before: {outcome(before)}",), (), (), environment)
    moved = differences(before, after)
    other = [*_losses(before, after), *_tokens(before, after)]
    other += [str(each) for each in moved if each.section == "memory"]
    return Replayed(
        tuple(_same(before, after)), tuple(other), tuple(e for e in moved if e.section == "speed"), environment
    )


def replayed_lines(found: Replayed) -> Iterator[str]:
    """Plain lines, the verdict first."""
    if found.matches:
        yield f"Matches: {', '.join(found.same) or 'peaks within 1%'}"
    else:
        yield f"Does not match: {'; '.join(found.other)}"
        if found.same:
            yield f"  the same: {', '.join(found.same)}"
    for each in found.speed:
        yield f"  speed is another: {each}"
    if found.environment:
        yield f"  the environment is another: {changes_text(found.environment)}"


def _same(before: Record, after: Record) -> Iterator[str]:
    losses = before.loss.per_step
    if losses == after.loss.per_step and any(loss is not None for loss in losses):
        yield f"{len(losses)} losses to the last digit"
    if before.data.real_tokens is not None and before.data.real_tokens == after.data.real_tokens:
        yield f"{before.data.real_tokens:,} real tokens"
    peaks = ("peak_allocated_bytes", "peak_reserved_bytes", "worst_case_peak_allocated_bytes")
    pairs = [(getattr(before.memory, name), getattr(after.memory, name)) for name in peaks]
    known = [(first, second) for first, second in pairs if first is not None]
    if known and all(first == second for first, second in known):
        yield "peaks to the byte"


def _losses(before: Record, after: Record) -> Iterator[str]:
    first, second = before.loss.per_step, after.loss.per_step
    if first == second:
        return
    if len(first) != len(second):
        yield f"{len(first)} losses before, {len(second)} now"
        return
    gaps = [abs(a - b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    step = next(n for n, (a, b) in enumerate(zip(first, second, strict=True), start=1) if a != b)
    largest = f", at most {max(gaps):.3g} apart" if gaps else ""
    yield f"losses differ from step {step} on{largest}"


def _tokens(before: Record, after: Record) -> Iterator[str]:
    if before.data.real_tokens != after.data.real_tokens:
        yield f"real tokens {before.data.real_tokens} before, {after.data.real_tokens} now"
