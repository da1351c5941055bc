"""From meters to the fields of a record. Nothing is measured in here, and nothing is made up: unknown is None."""

import re
from collections.abc import Sequence

import torch

from memexp.measure.device import DeviceSampler
from memexp.measure.host import host_peak_bytes, pinned_peak_bytes
from memexp.measure.memory import MemoryMeter
from memexp.measure.speed import rates
from memexp.measure.tokens import total
from memexp.results.record import CATEGORIES, Data, Loss, Memory, Oom, Speed
from memexp.run.meters import Meters
from memexp.run.row_lengths import RowLengths, describe_data

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def memory_fields(memory: MemoryMeter, device: DeviceSampler | None, categories: dict[str, int]) -> Memory:
    """Peaks of the device by phase, and of the host for the whole process."""
    return Memory(
        **memory.summary(),
        peak_categories=by_category(categories),
        device_used_peak_bytes=device.device_used_peak_bytes if device is not None else None,
        host_peak_bytes=host_peak_bytes(),
        pinned_peak_bytes=pinned_peak_bytes(),
    )


def by_category(sizes: dict[str, int]) -> dict[str, int | None]:
    """`memory.peak_categories` of a record: every category, None for what is not known."""
    return {name: sizes.get(name) for name in CATEGORIES}


def speed_fields(meters: Meters) -> Speed:
    """Rates over the measured steps that have ended. MFU needs a card's peak, which nobody states here yet: None."""
    seconds = meters.clock.step_seconds
    measured = meters.counts[meters.steps.unmeasured :][: len(seconds)]
    counts = [count for step in measured for count in step]
    return Speed(step_seconds=seconds, phases=meters.clock.phases(), **rates(seconds, counts))


def data_fields(
    meters: Meters, rows_in: int | None, prepared: RowLengths | None, packing: str, max_length: int | None
) -> Data:
    """What the prepared dataset holds and what this run trained on; what was not reached is None."""
    if prepared is None or rows_in is None:
        return Data(rows_in=rows_in)
    before = meters.before
    described = describe_data(rows_in, before.tokens, prepared.tokens, packing, max_length, before.widths)
    counted = total(count for step in meters.counts for count in step)
    per_epoch = meters.steps.per_epoch
    return Data(
        **described,
        real_tokens=counted.real_tokens if counted else None,
        padding_fraction=1 - counted.real_tokens / counted.slots if counted else None,
        steps=len(meters.counts),
        epochs=len(meters.counts) / per_epoch if per_epoch else None,
        steps_per_epoch=per_epoch or None,
        hours_per_epoch=_epoch_hours(meters, described["kept_tokens"]),
    )


def _epoch_hours(meters: Meters, kept_tokens: int) -> float | None:
    """An epoch's tokens by the rate of the measured steps; where tokens are sampled, its steps by their seconds."""
    seconds = meters.clock.step_seconds
    if not seconds:
        return None
    if meters.samples_what_it_trains_on:
        return meters.steps.per_epoch * sum(seconds) / len(seconds) / 3600
    rate = speed_fields(meters).real_tokens_per_second
    return kept_tokens / rate / 3600 if rate else None


def loss_fields(losses: Sequence[float]) -> Loss:
    """A loss that is no finite number is None: JSON has no NaN, and a NaN compares as nothing."""
    finite = tuple(loss if loss == loss and abs(loss) != float("inf") else None for loss in losses)
    return Loss(per_step=finite, first=finite[0] if finite else None, last=finite[-1] if finite else None)


def is_oom(error: BaseException) -> bool:
    """Whether memory ran out, on the device or on the host. The CPU's allocator raises a plain RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator: can't allocate" in str(
        error
    )


def oom_fields(error: BaseException, memory: MemoryMeter) -> Oom:
    """Where memory ran out, and the figures of torch's own message where it has them.

    torch 2.13, CUDACachingAllocator: "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which
    1.20 GiB is free." They are rounded to two digits there.
    """
    said = str(error)
    # A simulated GPU's error carries its figures to the byte.
    requested = (
        getattr(error, "requested_bytes", None) or _bytes_after(r"Tried to allocate ", said) or _bytes_of_cpu(said)
    )
    free = getattr(error, "free_bytes", None)
    free = _bytes_after(r"of which ", said) if free is None else free
    short = requested - free if requested is not None and free is not None else None
    # Its own forward and backward are no step of the training.
    phase = "worst_case" if "worst_case" in memory.open_phases else memory.current_phase
    return Oom(phase, memory.current_step, requested, free, short)


def _bytes_after(words: str, text: str) -> int | None:
    found = re.search(words + r"([\d.]+) (bytes|KiB|MiB|GiB)", text)
    return round(float(found[1]) * _UNITS[found[2]]) if found else None


def _bytes_of_cpu(text: str) -> int | None:
    # torch 2.13: "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1024 bytes."
    found = re.search(r"you tried to allocate (\d+) bytes", text)
    return int(found[1]) if found else None
