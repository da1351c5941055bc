"""Blocks, and the two pools that keep them in the order in which the allocator looks for them."""

from bisect import bisect_left, insort
from collections import defaultdict
from enum import StrEnum


class State(StrEnum):
    """The names that `torch.cuda.memory_snapshot()` uses."""

    ALLOCATED = "active_allocated"
    AWAITING_FREE = "active_awaiting_free"
    INACTIVE = "inactive"


class ExpandableSegment:
    """A range of addresses for one pool and stream, backed by memory a page at a time."""

    __slots__ = ("address", "page_size")

    def __init__(self, address: int, page_size: int) -> None:
        self.address = address
        self.page_size = page_size

    def page_floor(self, address: int) -> int:
        return address - (address - self.address) % self.page_size

    def page_ceiling(self, address: int) -> int:
        return address + (self.address - address) % self.page_size


class Block:
    """A run of bytes in one segment. `prev` and `next` are its neighbours there; a block alone is a whole segment.

    An unmapped block (of an expandable segment only) is inactive addresses without memory behind them.
    """

    __slots__ = (
        "address",
        "cached_at",
        "event_count",
        "expandable",
        "mapped",
        "next",
        "pool",
        "prev",
        "requested_size",
        "size",
        "state",
        "stream",
        "stream_uses",
    )

    def __init__(
        self, pool: "Pool", stream: int, address: int, size: int, expandable: ExpandableSegment | None = None
    ) -> None:
        self.pool = pool
        self.stream = stream
        self.address = address
        self.size = size
        self.expandable = expandable
        self.requested_size = 0
        self.state = State.INACTIVE
        self.mapped = True
        self.prev: Block | None = None
        self.next: Block | None = None
        self.stream_uses: set[int] | None = None
        self.event_count = 0
        self.cached_at = 0

    @property
    def is_split(self) -> bool:
        return self.prev is not None or self.next is not None

    def link(self, prev: "Block | None", following: "Block | None") -> None:
        """Put this block between two neighbours, either of which may be missing."""
        self.prev, self.next = prev, following
        if prev is not None:
            prev.next = self
        if following is not None:
            following.prev = self


class Pool:
    """The inactive blocks of the small or the large pool, by stream: blocks never change their stream or pool.

    `cached[stream]` is sorted by size, then address, so that the first that fits is the best fit at the lowest address;
    `unmapped[stream]` by address. `searches` is the clock by which cached blocks age.
    """

    def __init__(self, is_small: bool, page_size: int) -> None:
        self.is_small = is_small
        self.page_size = page_size
        self.cached: defaultdict[int, list[tuple[int, int, Block]]] = defaultdict(list)
        self.unmapped: defaultdict[int, list[tuple[int, Block]]] = defaultdict(list)
        self.searches = 0

    def cached_blocks(self) -> list[Block]:
        """All cached blocks, by stream, size and address. A copy: the caller may change the pool while it iterates."""
        return [block for _, blocks in sorted(self.cached.items()) for _, _, block in blocks]

    def insert(self, block: Block) -> None:
        block.state = State.INACTIVE
        if block.mapped:
            block.cached_at = self.searches
            insort(self.cached[block.stream], (block.size, block.address, block))
        else:
            insort(self.unmapped[block.stream], (block.address, block))

    def remove(self, block: Block) -> None:
        if block.mapped:
            cached = self.cached[block.stream]
            del cached[bisect_left(cached, (block.size, block.address))]
        else:
            unmapped = self.unmapped[block.stream]
            del unmapped[bisect_left(unmapped, (block.address,))]

    def give_back(self, block: Block) -> None:
        """Merge a block that is in no list with its inactive neighbours and insert the result."""
        for neighbour in (block.prev, block.next):
            if neighbour is not None and neighbour.state is State.INACTIVE and neighbour.mapped is block.mapped:
                self._absorb(block, neighbour)
        self.insert(block)

    def split(self, block: Block, size: int) -> Block:
        """The first `size` bytes of a block that is in no list, as a block of their own; the rest is inserted."""
        first = Block(self, block.stream, block.address, size, block.expandable)
        first.link(block.prev, block)
        block.address += size
        block.size -= size
        self.insert(block)
        return first

    def _absorb(self, block: Block, neighbour: Block) -> None:
        self.remove(neighbour)
        if neighbour is block.prev:
            block.address = neighbour.address
            block.link(neighbour.prev, block.next)
        else:
            block.link(block.prev, neighbour.next)
        block.size += neighbour.size
