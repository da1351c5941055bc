"""Whether a cell fits its card, and by how much: from its record alone."""

from memexp.results.record import Record

OK, OOM = "ok", "oom"


def needed_bytes(record: Record) -> int | None:
    """What the allocator held at most, the worst case included. None where nothing of it was measured.

    Reserved and not allocated: what the allocator holds, no one else has. The load is left out, as in `peak_…`.
    """
    phases = [record.memory.phases.get(name) or {} for name in ("warmup", "measured", "worst_case")]
    known = [phase["peak_reserved_bytes"] for phase in phases if phase.get("peak_reserved_bytes") is not None]
    return max(known, default=None)


def share_of_card(record: Record) -> float | None:
    """`needed_bytes` over what the allocator may hold on the card. 1.0 leaves no byte."""
    needed, capacity = needed_bytes(record), record.memory.capacity_bytes
    return needed / capacity if needed is not None and capacity else None


def fits(record: Record, headroom: float) -> bool | None:
    """True or False for a cell that ran, with `headroom` (a fraction) of the card to spare; None for any other."""
    if record.status == OOM:
        return False
    if record.status != OK:
        return None
    share = share_of_card(record)
    return True if share is None else share <= 1 - headroom
