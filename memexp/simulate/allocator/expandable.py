"""Expandable segments: one range of addresses a pool and stream, grown by mapping pages and shrunk by unmapping them.

The address range is 1.125 times the device, as in torch. Sharing between processes and devices is not modelled.
"""

from memexp.simulate.allocator.blocks import Block, ExpandableSegment, Pool, State
from memexp.simulate.allocator.device import Device
from memexp.simulate.allocator.settings import round_up


def grow(pool: Pool, stream: int, size: int, device: Device) -> Block | None:
    """An inactive block of at least `size` that is in no list, made by mapping pages at the lowest address that can be.

    None where the device has too little memory left; pages mapped before that came out stay mapped and cached.
    """
    block = _lowest_run(pool, stream, size) or _new_segment(pool, stream, device)
    if not block.mapped and not _map(block, min(size, block.size), device):
        return None
    while block.size < size:
        following = block.next
        assert following is not None, "a run that was found long enough ended early"
        if not _map(following, min(size - block.size, following.size), device):
            return None
        block = following
    pool.remove(block)
    return block


def expanded_size(block: Block) -> int:
    """The size that a cached block can grow to: with it, the addresses without memory right after it."""
    following = block.next
    return block.size + (following.size if following is not None and not following.mapped else 0)


def unmap(block: Block, device: Device) -> None:
    """Give back the whole pages inside a cached block; what is left of it before and after stays cached.

    A segment of which no page is mapped any more is forgotten.
    """
    segment, pool = block.expandable, block.pool
    assert segment is not None, "only blocks of expandable segments have pages"
    first, last = segment.page_ceiling(block.address), segment.page_floor(block.address + block.size)
    if first >= last:
        return
    pool.remove(block)
    if first > block.address:
        before = Block(pool, block.stream, block.address, first - block.address, segment)
        before.link(block.prev, block)
        pool.insert(before)
    if last < block.address + block.size:
        after = Block(pool, block.stream, last, block.address + block.size - last, segment)
        after.link(block, block.next)
        pool.insert(after)
    block.address, block.size, block.mapped = first, last - first, False
    pool.give_back(block)
    device.unmap(first, last - first, block.stream)
    if not block.is_split:
        pool.remove(block)


def _lowest_run(pool: Pool, stream: int, size: int) -> Block | None:
    for _, unmapped in pool.unmapped[stream]:
        previous = unmapped.prev
        start = previous if previous is not None and previous.state is State.INACTIVE else unmapped
        if _run_reaches(start, size):
            return start
    return None


def _run_reaches(start: Block, size: int) -> bool:
    block: Block | None = start
    while size > 0 and block is not None and block.state is State.INACTIVE:
        size -= block.size
        block = block.next
    return size <= 0


def _new_segment(pool: Pool, stream: int, device: Device) -> Block:
    size = round_up(device.capacity_bytes + device.capacity_bytes // 8, pool.page_size)
    address = device.new_address(size)
    block = Block(pool, stream, address, size, ExpandableSegment(address, pool.page_size))
    block.mapped = False
    pool.insert(block)
    return block


def _map(block: Block, size: int, device: Device) -> bool:
    """Map whole pages at the start of an unmapped block and cache them, merged with their neighbours, in its place."""
    pool = block.pool
    size = round_up(size, pool.page_size)
    if not device.map(block.address, size, block.stream):
        return False
    pool.remove(block)
    if size < block.size:
        rest = Block(pool, block.stream, block.address + size, block.size - size, block.expandable)
        rest.mapped = False
        rest.link(block, block.next)
        pool.insert(rest)
        block.size = size
    block.mapped = True
    pool.give_back(block)
    return True
