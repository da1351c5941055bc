"""Whether a cell fits its card, and by how much: from its record alone."""

from memexp.results.recommend import reserved_bytes
from memexp.results.record import Record


def share_of_card(record: Record) -> float | None:
    """What the allocator reserved at worst over what it may hold on the card. 1.0 leaves no byte.

    Reserved and not allocated: what the allocator holds, no one else has.
    """
    needed, capacity = reserved_bytes(record), record.memory.capacity_bytes
    return needed / capacity if needed is not None and capacity else None


def fits(record: Record, headroom: float) -> bool | None:
    """True or False for a cell that ran, with `headroom` (a fraction) of the card to spare; None for any other."""
    if record.status == "oom":
        return False
    if not record.is_ok:
        return None
    share = share_of_card(record)
    return True if share is None else share <= 1 - headroom
