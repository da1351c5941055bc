"""PyTorch's CUDA caching allocator for one device, as a plain Python object.

Rules of c10/cuda/CUDACachingAllocator.cpp of torch 2.13 (DeviceCachingAllocator). Left out: private pools (CUDA graphs,
`torch.cuda.MemPool`), sharing between processes, callbacks that free memory, and locking: one thread at a time.
"""

import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from memexp.simulate.allocator.blocks import Block, Pool, State
from memexp.simulate.allocator.device import Device
from memexp.simulate.allocator.errors import OutOfMemoryError
from memexp.simulate.allocator.events import EventLog
from memexp.simulate.allocator.expandable import expanded_size, grow
from memexp.simulate.allocator.release import collect_garbage, release_all, release_oversize
from memexp.simulate.allocator.settings import MIN_BLOCK_BYTES, SMALL_MAX_BYTES, SMALL_SEGMENT_BYTES, AllocatorSettings
from memexp.simulate.allocator.snapshot import blocks_of, segments_of
from memexp.simulate.allocator.statistics import Statistics
from memexp.simulate.allocator.waiting import EventTiming, WaitingBlocks


class CachingAllocator:
    """`malloc` and `free` by address; `statistics` holds what `torch.cuda.memory_stats()` would show.

    `capacity_bytes` is all that this allocator may hold: subtract first what the context and other processes take.

    `event_timing` says when the streams of `record_stream` are done with a freed block, which on a GPU is a matter of
    time: "optimistic" by the next `malloc`, "pessimistic" not before `synchronize`, `empty_cache` or a full device. The
    truth lies between the two.

    `new_address` gives the address for a new range of so many bytes; the default counts up. `log` receives every event.
    """

    def __init__(
        self,
        capacity_bytes: int,
        settings: AllocatorSettings | None = None,
        *,
        event_timing: EventTiming = "optimistic",
        new_address: Callable[[int], int] | None = None,
        log: EventLog | None = None,
    ) -> None:
        self.settings = settings = settings or AllocatorSettings()
        self.statistics = Statistics()
        self.log = log
        self._device = Device(capacity_bytes, self.statistics.reserved_bytes, log, new_address)
        self._small = Pool(is_small=True, page_size=SMALL_SEGMENT_BYTES)
        self._large = Pool(is_small=False, page_size=settings.large_segment_size_bytes)
        self._active: dict[int, Block] = {}
        self._waiting = WaitingBlocks(event_timing)
        fraction = settings.per_process_memory_fraction
        self._allowed_bytes = int(fraction * capacity_bytes) if fraction < 1 else None
        self._collects_garbage = self._allowed_bytes is not None and settings.garbage_collection_threshold > 0
        self._max_split_size = settings.max_split_size_bytes or sys.maxsize

    def malloc(self, size: int, stream: int = 0) -> int:
        """The address of a block for `size` bytes, owned by `stream`; 0 for no bytes, as torch's null pointer.

        Raises OutOfMemoryError where the device is too full, and ValueError for a negative size.
        """
        if size <= 0:
            return _null(size)
        if self._waiting.ready:
            self._free_ready_blocks()
        rounded = self.settings.round_size(size)
        pool = self._small if rounded <= SMALL_MAX_BYTES else self._large
        block = self._find_cached(pool, rounded, stream) or self._take_from_device(pool, rounded, stream)
        if block is None:
            raise self._out_of_memory(size, rounded, stream)
        if self._should_split(block, rounded):
            block = pool.split(block, rounded)
        block.state = State.ALLOCATED
        block.requested_size = size
        self._active[block.address] = block
        self.statistics.count_allocation(block.size, size)
        if self.log is not None:
            self.log.record("alloc", block.address, size, stream)
        return block.address

    def free(self, address: int) -> None:
        """Take back what `malloc` gave. It counts as free at once, but is reused only when its other streams are done.

        Address 0 is ignored. Raises ValueError for an address that is not allocated.
        """
        if address == 0:
            return
        block = self._allocated_block(address)
        self.statistics.allocated_bytes.decrease(block.size)
        if self.log is not None:
            self.log.record("free_requested", address, block.requested_size, block.stream)
        if block.stream_uses:
            self._waiting.add(block)
        else:
            self._complete_free(block)

    def record_stream(self, address: int, stream: int) -> None:
        """Keep the block from being reused, once freed, until `stream` is done; its own stream needs no such care.

        Raises ValueError for an address that is not allocated.
        """
        block = self._allocated_block(address)
        if stream != block.stream:
            block.stream_uses = (block.stream_uses or set()) | {stream}

    def synchronize(self, stream: int | None = None) -> None:
        """Let the work of one stream, or of all, be done. What waited for it is reusable from the next `malloc` on."""
        self._waiting.synchronize(stream)

    def empty_cache(self) -> None:
        """Wait for all streams and give back every segment, and every page of an expandable one, that is not in use."""
        self.synchronize()
        self._free_ready_blocks()
        release_all(self._large, self._device)
        release_all(self._small, self._device)

    def segments(self) -> list[dict[str, Any]]:
        """The state in the layout of `torch.cuda.memory_snapshot()`, without stack frames."""
        return segments_of(chain(self._active.values(), self._small.cached_blocks(), self._large.cached_blocks()))

    def load(self, segments: Iterable[dict[str, Any]]) -> None:
        """Add segments as `segments` gives them, such as the state in which a recorded trace begins.

        Addresses must be free here. Raises ValueError for expandable segments, for blocks that wait for a stream, and
        for blocks that do not fill their segment.
        """
        for segment in segments:
            pool = self._small if segment["segment_type"] == "small" else self._large
            blocks = blocks_of(segment, pool)
            self.statistics.reserved_bytes.increase(segment["total_size"])
            for block in blocks:
                if block.state is State.INACTIVE:
                    pool.insert(block)
                else:
                    self._active[block.address] = block
                    self.statistics.count_allocation(block.size, block.requested_size)

    def _find_cached(self, pool: Pool, size: int, stream: int) -> Block | None:
        if self._collects_garbage:
            pool.searches += 1
        cached = pool.cached[stream]
        index = bisect_left(cached, (size,))
        if index == len(cached):
            return None
        if self.settings.expandable_segments:
            index = _best_expandable(cached, index)
        block_size, _, block = cached[index]
        if size < self._max_split_size:
            oversize = block_size >= self._max_split_size
        else:
            oversize = block_size >= size + self.settings.max_non_split_rounding_bytes
        if oversize:
            return None
        del cached[index]
        return block

    def _take_from_device(self, pool: Pool, size: int, stream: int) -> Block | None:
        if self._collects_garbage:
            self._collect_garbage()
        block = self._new_block(pool, size, stream)
        if block is None and self._release_oversize(pool, size, stream):
            block = self._new_block(pool, size, stream)
        if block is None:
            self.empty_cache()
            self.statistics.num_alloc_retries += 1
            block = self._new_block(pool, size, stream)
        return block

    def _new_block(self, pool: Pool, size: int, stream: int) -> Block | None:
        segment_size = self.settings.segment_size(size)
        if self._allowed_bytes is not None and self._reserved + segment_size > self._allowed_bytes:
            return None
        if self.settings.expandable_segments:
            return grow(pool, stream, size, self._device)
        address = self._device.malloc(segment_size, stream)
        return None if address is None else Block(pool, stream, address, segment_size)

    def _should_split(self, block: Block, size: int) -> bool:
        remaining = block.size - size
        if block.pool.is_small or self.settings.expandable_segments:
            return remaining >= MIN_BLOCK_BYTES
        return size < self._max_split_size and remaining > SMALL_MAX_BYTES

    def _release_oversize(self, pool: Pool, size: int, stream: int) -> bool:
        if self.settings.max_split_size_bytes is None:
            return False
        return release_oversize(pool, stream, size, self._max_split_size, self._device)

    def _collect_garbage(self) -> None:
        assert self._allowed_bytes is not None, "garbage is collected below a memory fraction only"
        threshold = int(self.settings.garbage_collection_threshold * self._allowed_bytes)
        collect_garbage(self._large, self._reserved - threshold, self._device)

    def _free_ready_blocks(self) -> None:
        for block in self._waiting.take_ready():
            self._complete_free(block)

    def _complete_free(self, block: Block) -> None:
        del self._active[block.address]
        self.statistics.active_bytes.decrease(block.size)
        self.statistics.requested_bytes.decrease(block.requested_size)
        if self.log is not None:
            self.log.record("free_completed", block.address, block.requested_size, block.stream)
        block.pool.give_back(block)

    def _allocated_block(self, address: int) -> Block:
        block = self._active.get(address)
        if block is None or block.state is not State.ALLOCATED:
            raise ValueError(f"nothing is allocated at address {address:#x}")
        return block

    def _out_of_memory(self, requested: int, rounded: int, stream: int) -> OutOfMemoryError:
        self.statistics.num_ooms += 1
        error = OutOfMemoryError(
            requested_bytes=requested,
            segment_bytes=self.settings.segment_size(rounded),
            capacity_bytes=self._device.capacity_bytes,
            allowed_bytes=self._allowed_bytes,
            allocated_bytes=self.statistics.allocated_bytes.current,
            reserved_bytes=self._reserved,
        )
        if self.log is not None:
            self.log.record("oom", error.free_bytes, rounded, stream)
        return error

    @property
    def _reserved(self) -> int:
        return self.statistics.reserved_bytes.current


def _best_expandable(cached: list[tuple[int, int, Block]], index: int) -> int:
    """Step on while the next block, grown as far as it can be, is smaller than this one: best fit by final size."""
    while index + 1 < len(cached) and cached[index][2].expandable is not None:
        if expanded_size(cached[index + 1][2]) >= expanded_size(cached[index][2]):
            break
        index += 1
    return index


def _null(size: int) -> int:
    if size < 0:
        raise ValueError(f"cannot allocate {size} bytes")
    return 0
