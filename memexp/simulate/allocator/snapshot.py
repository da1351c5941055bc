"""Blocks as the plain dicts of `torch.cuda.memory_snapshot()`, and back. Stack frames are left empty."""

from collections.abc import Iterable
from typing import Any

from memexp.simulate.allocator.blocks import Block, Pool, State


def segments_of(blocks: Iterable[Block]) -> list[dict[str, Any]]:
    """The segments that hold these mapped blocks, by address; of an expandable segment, one for each mapped stretch."""
    heads = [block for block in blocks if block.prev is None or not block.prev.mapped]
    return [_segment(head) for head in sorted(heads, key=lambda head: head.address)]


def blocks_of(segment: dict[str, Any], pool: Pool) -> list[Block]:
    """The blocks of one segment, linked but in no list. Raises ValueError for a segment that cannot be rebuilt."""
    start = segment["address"]
    if segment.get("is_expandable"):
        raise ValueError(f"segment {start:#x} is expandable; only plain segments can be loaded")
    blocks: list[Block] = []
    end = start
    for view in sorted(segment["blocks"], key=lambda view: int(view["address"])):
        if view["address"] != end or view["state"] == State.AWAITING_FREE:
            raise ValueError(f"segment {start:#x} has a gap, or a block that waits for a stream, at {end:#x}")
        block = Block(pool, segment["stream"], view["address"], view["size"])
        block.state = State(view["state"])
        block.requested_size = view["requested_size"]
        block.link(blocks[-1] if blocks else None, None)
        blocks.append(block)
        end += block.size
    if end != start + segment["total_size"]:
        raise ValueError(f"segment {start:#x} has {segment['total_size']} bytes, its blocks {end - start}")
    return blocks


def _segment(head: Block) -> dict[str, Any]:
    blocks = _mapped_stretch(head)
    active = [block for block in blocks if block.state is not State.INACTIVE]
    return {
        "device": 0,
        "address": head.address,
        "total_size": sum(block.size for block in blocks),
        "allocated_size": sum(block.size for block in active if block.state is State.ALLOCATED),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested_size for block in active),
        "stream": head.stream,
        "segment_type": "small" if head.pool.is_small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": head.expandable is not None,
        "frames": [],
        "blocks": [_block(block) for block in blocks],
    }


def _block(block: Block) -> dict[str, Any]:
    return {
        "address": block.address,
        "size": block.size,
        "requested_size": block.requested_size,
        "state": block.state.value,
        "frames": [],
    }


def _mapped_stretch(head: Block) -> list[Block]:
    stretch: list[Block] = []
    block: Block | None = head
    while block is not None and block.mapped:
        stretch.append(block)
        block = block.next
    return stretch
