"""One record of a cell from those of its ranks: the highest of peaks, the sum of tokens, the mean of losses.

Pure functions on records; each rank counted what it trained on itself. A step of the cell takes as long as its slowest
rank, and rates are tokens of all ranks over those seconds. What is the same for every rank is the first one's.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any, TypeVar

from memexp.results.record import Data, Loss, Memory, Record, Speed, Timing

_Number = TypeVar("_Number", int, float)
_PEAKS = (
    "load_peak_allocated_bytes",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "worst_case_peak_allocated_bytes",
    "device_used_peak_bytes",
    "host_peak_bytes",
    "pinned_peak_bytes",
    "capacity_bytes",
)
_RATES = ("real_tokens_per_second", "loss_tokens_per_second", "slot_tokens_per_second", "samples_per_second")


def merge_ranks(records: Sequence[Record]) -> Record:
    """The record of a cell whose ranks 0, 1, … all ended well; raises IndexError for none."""
    first = records[0]
    speed = _speed([record.speed for record in records])
    return replace(
        first,
        notes=tuple(dict.fromkeys(note for record in records for note in record.notes)),
        memory=_memory([record.memory for record in records]),
        speed=speed,
        data=_data([record.data for record in records], first.speed.real_tokens_per_second, speed),
        loss=_loss([record.loss for record in records]),
        timing=_timing([record.timing for record in records]),
        ranks=tuple(_of_rank(record) for record in records),
    )


def _of_rank(record: Record) -> dict[str, Any]:
    """What differs between ranks and is lost in a highest or a sum."""
    memory = record.memory
    return {
        "peak_allocated_bytes": memory.peak_allocated_bytes,
        "peak_reserved_bytes": memory.peak_reserved_bytes,
        "worst_case_peak_allocated_bytes": memory.worst_case_peak_allocated_bytes,
        "host_peak_bytes": memory.host_peak_bytes,
        "real_tokens": record.data.real_tokens,
        "median_step_seconds": record.speed.median_step_seconds,
    }


def _memory(parts: Sequence[Memory]) -> Memory:
    highest = max(parts, key=lambda part: part.peak_allocated_bytes or 0)
    names = dict.fromkeys(name for part in parts for name in part.phases)
    phases = {name: _highest_fields(part.phases.get(name, {}) for part in parts) for name in names}
    steps = zip_longest(*(part.per_step for part in parts), fillvalue={})
    return replace(
        highest,
        **{name: _known(max, (getattr(part, name) for part in parts)) for name in _PEAKS},
        phases=phases,
        per_step=tuple(_highest_fields(step) for step in steps),
        alloc_retries=_known(sum, (part.alloc_retries for part in parts)),
    )


def _highest_fields(fields: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Numbers by their highest; the number and the phase of a step are the same in each."""
    listed = list(fields)
    names = dict.fromkeys(name for one in listed for name in one)
    return {name: _known(max, (one.get(name) for one in listed)) for name in names}


def _speed(parts: Sequence[Speed]) -> Speed:
    seconds = tuple(max(step) for step in zip(*(part.step_seconds for part in parts), strict=False))
    names = dict.fromkeys(name for part in parts for name in part.phases)

    def rate(field: str) -> float | None:
        own: list[float | None] = [getattr(part, field) for part in parts]
        amounts = [None if one is None else one * sum(part.step_seconds) for one, part in zip(own, parts, strict=True)]
        total = _sum(amounts)
        return total / sum(seconds) if total is not None and seconds else None

    return Speed(
        step_seconds=seconds,
        median_step_seconds=statistics.median(seconds) if seconds else None,
        **{field: rate(field) for field in _RATES},
        phases={name: _highest_fields(part.phases.get(name, {}) for part in parts) for name in names},
    )


def _data(parts: Sequence[Data], rate_of_first: float | None, speed: Speed) -> Data:
    first, hours, rate = parts[0], parts[0].hours_per_epoch, speed.real_tokens_per_second
    tokens, slots = _sum([part.real_tokens for part in parts]), _sum([_slots(part) for part in parts])
    return replace(
        first,
        real_tokens=tokens,
        padding_fraction=1 - tokens / slots if tokens is not None and slots else None,
        hours_per_epoch=hours * rate_of_first / rate if hours and rate_of_first and rate else None,
    )


def _slots(data: Data) -> float | None:
    if data.real_tokens is None or data.padding_fraction is None or data.padding_fraction == 1:
        return None
    return data.real_tokens / (1 - data.padding_fraction)


def _loss(parts: Sequence[Loss]) -> Loss:
    """The mean over ranks, as transformers logs it. None for a step where one rank's is."""
    steps = zip(*(part.per_step for part in parts), strict=False)
    sums = [_sum(step) for step in steps]
    means = tuple(None if total is None else total / len(parts) for total in sums)
    return replace(parts[0], per_step=means, first=means[0] if means else None, last=means[-1] if means else None)


def _timing(parts: Sequence[Timing]) -> Timing:
    return Timing(
        setup_seconds=_known(max, (part.setup_seconds for part in parts)),
        train_seconds=_known(max, (part.train_seconds for part in parts)),
    )


def _known(combine: Callable[[Any], Any], values: Iterable[Any]) -> Any:
    known = [value for value in values if value is not None]
    return combine(known) if known else None


def _sum(values: Sequence[_Number | None]) -> _Number | None:
    """None where one is unknown: a part of the tokens is not the tokens."""
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if len(known) == len(values) else None
