"""PyTorch's CUDA caching allocator in pure Python, exact to the address, without torch and usable alone.

Start with `CachingAllocator(capacity_bytes, AllocatorSettings.parse("expandable_segments:True"))`, then call `malloc`
and `free` and read `statistics.reserved_bytes.peak`.
"""

from memexp.simulate.allocator.caching import CachingAllocator
from memexp.simulate.allocator.errors import OutOfMemoryError
from memexp.simulate.allocator.events import Event, EventLog
from memexp.simulate.allocator.settings import AllocatorSettings
from memexp.simulate.allocator.statistics import Gauge, Statistics
from memexp.simulate.allocator.waiting import EventTiming

__all__ = [
    "AllocatorSettings",
    "CachingAllocator",
    "Event",
    "EventLog",
    "EventTiming",
    "Gauge",
    "OutOfMemoryError",
    "Statistics",
]
