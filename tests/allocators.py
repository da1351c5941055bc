"""Short ways to make a simulated allocator and to read it, in MiB."""

from typing import Any

from memexp.simulate.allocator import AllocatorSettings, CachingAllocator

MIB = 1 << 20
EXPANDABLE = "expandable_segments:True"


def new_allocator(capacity_mib: float = 1024, conf: str = "", **options: Any) -> CachingAllocator:
    return CachingAllocator(int(capacity_mib * MIB), AllocatorSettings.parse(conf), **options)


def allocated(allocator: CachingAllocator) -> float:
    return allocator.statistics.allocated_bytes.current / MIB


def reserved(allocator: CachingAllocator) -> float:
    return allocator.statistics.reserved_bytes.current / MIB


def active(allocator: CachingAllocator) -> float:
    return allocator.statistics.active_bytes.current / MIB


def mib(allocator: CachingAllocator, size: float, stream: int = 0) -> int:
    return allocator.malloc(int(size * MIB), stream)
