"""Which configuration for a card: the fastest whose worst case fits, from records alone.

Words are made in `recommend_text`, code in `memexp.script`. What must fit is what PyTorch's allocator reserves at
worst and what a process holds outside of it, within the card's memory less a headroom. Speed is that of the card the
cells ran on: another card may order them otherwise.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from memexp.frozen import Frozen
from memexp.results.compare import (
    DIFFERENT_WORK,
    REPEATS,
    Comparison,
    compare,
    fell_back_techniques,
    is_apart,
    is_swept,
    middle,
    number,
)
from memexp.results.few_rows import ENOUGH_ROWS, FEW_ROWS
from memexp.results.format import fraction_text, listing, one_line
from memexp.results.grid import Grid, option
from memexp.results.outcome import outcome
from memexp.results.record import Memory, Record
from memexp.results.repeats import Configuration, configurations
from memexp.results.verdict import DIFFERENT

HEADROOM = 0.08
GIB = 2**30
# What cards are sold with.
CARD_SIZES = (16, 24, 40, 48, 80, 141)
# A configuration that trains on fewer of the data's tokens than the baseline is fast for another reason.
_LEAST_FRACTION = 0.95
# Fields of the model and of the data are other models and other data.
_OTHER_JOBS = ("backend", "model", "data")


@dataclass(frozen=True)
class Card(Frozen):
    """`total_bytes` is what the driver reports; `context_bytes` of it a process needs outside of the allocator."""

    name: str
    total_bytes: int
    context_bytes: int
    headroom: float = HEADROOM

    @property
    def usable_bytes(self) -> int:
        return int(self.total_bytes * (1 - self.headroom))


@dataclass(frozen=True)
class Candidate(Frozen):
    """A configuration that can be recommended. Of repeats, memory is the highest and speed the median.

    `allocator_bytes` is reserved at worst, or allocated where reserved is unknown (`reserved_is_known`), which is the
    least that it takes. `used_bytes` is what the driver saw in use on the whole card, None where nobody looked or
    others used it too. `hours_per_epoch` is over the tokens that this configuration keeps.
    """

    id: str
    options: dict[str, str]
    allocator_bytes: int
    reserved_is_known: bool
    worst_case_is_known: bool
    used_bytes: int | None
    real_tokens_per_second: float
    hours_per_epoch: float | None
    kept_fraction: float | None
    memory_is_predicted: bool
    speed_is_predicted: bool
    backend: str | None

    def needed_bytes(self, card: Card) -> int:
        return max(self.allocator_bytes + card.context_bytes, self.used_bytes or 0)

    def fits(self, card: Card) -> bool:
        return self.needed_bytes(card) <= card.usable_bytes


@dataclass(frozen=True)
class LeftOut(Frozen):
    """A configuration that is not to be recommended, whatever the card, and why."""

    id: str
    options: dict[str, str]
    reason: str


@dataclass(frozen=True)
class Recommendation(Frozen):
    """`candidates` are fastest first. `best` and `runner_up` fit `card`; `short_bytes` is what the smallest lacks of it
    where nothing fits, None where something does or where there is no candidate.
    """

    card: Card
    candidates: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...]
    best: Candidate | None
    runner_up: Candidate | None
    short_bytes: int | None


def recommend(grid: Grid, card: Card) -> Recommendation:
    """Choose for one card. The records are to be of one job: see `jobs`."""
    candidates, left_out = judge(grid)
    fitting = [candidate for candidate in candidates if candidate.fits(card)]
    least = min((candidate.needed_bytes(card) for candidate in candidates), default=None)
    return Recommendation(
        card=card,
        candidates=candidates,
        left_out=left_out,
        best=fitting[0] if fitting else None,
        runner_up=fitting[1] if len(fitting) > 1 else None,
        short_bytes=least - card.usable_bytes if least is not None and not fitting else None,
    )


def jobs(grid: Grid) -> dict[str, list[str]]:
    """Axes whose options are different jobs (a model, data, a trainer, a card), where more than one was run. Of two
    backends neither speed nor memory compares.
    """
    axes = [axis for axis in grid.axes if is_apart(axis) or axis.split(".")[0] in _OTHER_JOBS]
    found = {axis: list(dict.fromkeys(option(r, axis) for r in grid.records)) for axis in axes}
    return {axis: texts for axis, texts in found.items() if len(texts) > 1}


def matching(records: Sequence[Record], where: Mapping[str, Collection[str]]) -> list[Record]:
    """The records that have one of these options on each of these axes, compared as text."""
    return [record for record in records if all(option(record, axis) in texts for axis, texts in where.items())]


def judge(grid: Grid) -> tuple[tuple[Candidate, ...], tuple[LeftOut, ...]]:
    """Every configuration is one or the other. Candidates come fastest first; of equals, the smaller one."""
    comparison = compare(grid)
    shared = _fell_back_everywhere(grid)
    epoch_tokens = _epoch_tokens(comparison)
    candidates: list[Candidate] = []
    left_out: list[LeftOut] = []
    for configuration in configurations(grid, comparison):
        reason = _why_not(configuration, shared, epoch_tokens)
        record = (configuration.ok or configuration.records)[0]
        options = {axis: option(record, axis) for axis in grid.axes if axis != REPEATS}
        if reason is None:
            candidates.append(_candidate(configuration, options))
        else:
            left_out.append(LeftOut(record.id, options, reason))
    candidates.sort(key=lambda each: (-each.real_tokens_per_second, each.allocator_bytes))
    return tuple(candidates), tuple(left_out)


def reserved_bytes(record: Record) -> int | None:
    """The most that the allocator reserved in any phase, the worst case included; None where that is unknown.

    Of a predicted cell that offloads this is what is reserved where copies between GPU and host end late.
    """
    late = record.simulation.peak_reserved_at_most_bytes if record.simulation is not None else None
    return _highest(record.memory, "peak_reserved_bytes", record.memory.peak_reserved_bytes, late)


def allocated_bytes(memory: Memory) -> int | None:
    """The most that tensors took in any phase, the worst case included; None where that is unknown."""
    return _highest(memory, "peak_allocated_bytes", memory.peak_allocated_bytes, memory.worst_case_peak_allocated_bytes)


def _highest(memory: Memory, name: str, *more: int | None) -> int | None:
    phases = [phase.get(name) for phase in memory.phases.values() if isinstance(phase, dict)]
    return max((size for size in (*phases, *more) if size is not None), default=None)


def _candidate(configuration: Configuration, options: dict[str, str]) -> Candidate:
    ok = configuration.ok
    reserved = [reserved_bytes(record) for record in ok]
    known = [size for size in reserved if size is not None]
    allocated = [size for record in ok if (size := allocated_bytes(record.memory)) is not None]
    kind = "reserved" if known else "allocated"
    rate = middle([number(record, "real_tokens_per_second") for record in ok])
    assert rate is not None
    used = [r.memory.device_used_peak_bytes for r in ok if not r.environment.get("foreign_processes")]
    return Candidate(
        id=ok[0].id,
        options=options,
        allocator_bytes=max(known or allocated),
        reserved_is_known=bool(known),
        worst_case_is_known=all(record.memory.worst_case_peak_allocated_bytes is not None for record in ok),
        used_bytes=max((size for size in used if size is not None), default=None),
        real_tokens_per_second=rate,
        hours_per_epoch=middle([record.data.hours_per_epoch for record in ok]),
        kept_fraction=ok[0].data.kept_fraction,
        memory_is_predicted=any(record.is_predicted(f"memory.peak_{kind}_bytes") for record in ok),
        speed_is_predicted=any(record.is_predicted("speed.real_tokens_per_second") for record in ok),
        backend=ok[0].backend,
    )


def _why_not(configuration: Configuration, shared: set[str], epoch_tokens: float | None) -> str | None:
    """The first reason against a configuration; None for a candidate."""
    oom = next((record for record in configuration.records if record.status == "oom"), None)
    if oom is not None or not configuration.ok:
        return outcome(oom or configuration.records[0])
    fell_back = [name for record in configuration.ok for name in fell_back_techniques(record) if name not in shared]
    if fell_back:
        return f"fell back: trained without {one_line(listing(list(dict.fromkeys(fell_back))))}"
    for record in configuration.ok:
        verdict = _loss_verdict(record)
        if verdict is not None:
            return f"loss verdict: {verdict}"
    if any(DIFFERENT_WORK in cell.flags for cell in configuration.cells):
        return "different work: it trained on another number of tokens; budget.tokens=N gives each cell as many"
    if any(FEW_ROWS in cell.flags for cell in configuration.cells):
        return f"timed on fewer than {ENOUGH_ROWS} rows, which are too few for a speed that compares: type more steps"
    kept = configuration.ok[0].data.kept_tokens
    if kept is not None and epoch_tokens is not None and kept < epoch_tokens * _LEAST_FRACTION:
        return f"different work: it trains on {fraction_text(kept / epoch_tokens)} of the baseline's tokens"
    if all(allocated_bytes(record.memory) is None for record in configuration.ok):
        return "its peak memory is unknown"
    if not middle([number(record, "real_tokens_per_second") for record in configuration.ok]):
        return "its speed is unknown"
    return None


def _loss_verdict(record: Record) -> str | None:
    loss = record.loss
    if loss.verdict == DIFFERENT:
        return DIFFERENT
    if loss.max_abs_difference is not None and loss.tolerance is not None and loss.max_abs_difference > loss.tolerance:
        return f"off by {loss.max_abs_difference:.3g}, more than {loss.tolerance:.3g}"
    if record.backend != "simulate" and loss.per_step and loss.per_step[-1] is None:
        return "it is no finite number at the last step"
    return None


def _fell_back_everywhere(grid: Grid) -> set[str]:
    """Techniques that every cell asked for, and none got, set no cells apart."""
    found = [set(fell_back_techniques(record)) for record in grid.ok]
    return {name for name in set.intersection(*found) if not is_swept(grid, name)} if found else set()


def _epoch_tokens(comparison: Comparison) -> float | None:
    """The tokens of an epoch at the baseline, else in the cell that keeps most."""
    base = middle([record.data.kept_tokens for baseline in comparison.baselines for record in baseline.ok])
    kept = [cell.record.data.kept_tokens for cell in comparison.cells if cell.record.is_ok]
    return base if base is not None else max((count for count in kept if count is not None), default=None)
