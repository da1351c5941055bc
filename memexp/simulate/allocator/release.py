"""The three ways in which cached memory goes back to the device. Only segments that are wholly inactive can go."""

from bisect import bisect_left

from memexp.simulate.allocator.blocks import Block, Pool
from memexp.simulate.allocator.device import Device
from memexp.simulate.allocator.expandable import unmap


def release_all(pool: Pool, device: Device) -> None:
    """Free every segment of one block, then unmap every whole page of the expandable ones."""
    cached = pool.cached_blocks()
    for block in cached:
        if block.expandable is None and not block.is_split:
            _free_segment(block, device)
    for block in cached:
        if block.expandable is not None:
            unmap(block, device)


def release_oversize(pool: Pool, stream: int, size: int, max_split_size: int, device: Device) -> bool:
    """Free the smallest cached segment of at least `size` and `max_split_size`, else oversize ones, the largest first.

    True if that much was freed. What was freed stays freed either way.
    """
    wanted = max(size, max_split_size)
    cached = pool.cached[stream]
    index = bisect_left(cached, (wanted,))
    if index < len(cached) and cached[index][2].expandable is None:
        _free_segment(cached[index][2], device)
        return True
    released = 0
    for block_size, _, block in reversed(cached[:index]):
        if released >= wanted or block_size < max_split_size:
            break
        if block.expandable is None:
            _free_segment(block, device)
            released += block_size
    return released >= wanted


def collect_garbage(pool: Pool, target_bytes: int, device: Device) -> None:
    """Free whole segments that went unused for at least the mean age, again and again until `target_bytes` are free.

    Age is counted in searches of the pool, and a round that began is finished, so that more than the target may go.
    """
    candidates = [block for block in pool.cached_blocks() if not block.is_split]
    while candidates and target_bytes > 0:
        mean_age = sum(pool.searches - block.cached_at for block in candidates) / len(candidates)
        old = [b for b in candidates if b.expandable is None and pool.searches - b.cached_at >= mean_age]
        if not old:
            return
        candidates = [b for b in candidates if b not in old]
        for block in old:
            target_bytes -= block.size
            _free_segment(block, device)


def _free_segment(block: Block, device: Device) -> None:
    block.pool.remove(block)
    device.free(block.address, block.size, block.stream)
