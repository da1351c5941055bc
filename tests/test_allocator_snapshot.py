"""The event log and the view of the segments, against a list written by hand and against torch's own viewer."""

import subprocess
import sys
from itertools import count

import pytest

from memexp.simulate.allocator import AllocatorSettings, CachingAllocator, EventLog

MIB = 1 << 20
BASE = 0x1000_0000


def test_the_log_holds_what_happened_in_the_order_of_torch() -> None:
    log = EventLog(clock=count(100).__next__)
    allocator = CachingAllocator(64 * MIB, event_timing="pessimistic", new_address=lambda size: BASE, log=log)
    address = allocator.malloc(30 * MIB - 5, stream=3)
    allocator.record_stream(address, 4)
    allocator.free(address)
    allocator.empty_cache()
    assert [tuple(event) for event in log] == [
        ("segment_alloc", BASE, 30 * MIB, 3, 100),
        ("alloc", BASE, 30 * MIB - 5, 3, 101),
        ("free_requested", BASE, 30 * MIB - 5, 3, 102),
        ("free_completed", BASE, 30 * MIB - 5, 3, 103),
        ("segment_free", BASE, 30 * MIB, 3, 104),
    ]


def test_expandable_segments_log_the_pages_that_come_and_go() -> None:
    log = EventLog()
    settings = AllocatorSettings(expandable_segments=True)
    allocator = CachingAllocator(64 * MIB, settings, new_address=lambda size: BASE, log=log)
    allocator.free(allocator.malloc(30 * MIB))
    allocator.empty_cache()
    pages = [event[:3] for event in log if event.action.startswith("segment")]
    assert pages == [("segment_map", BASE, 40 * MIB), ("segment_unmap", BASE, 40 * MIB)]


def test_the_log_forgets_the_oldest_events() -> None:
    log = EventLog(max_entries=2)
    allocator = CachingAllocator(64 * MIB, log=log)
    allocator.free(allocator.malloc(1))
    assert [event.action for event in log] == ["free_requested", "free_completed"]


def test_an_expandable_segment_is_shown_as_its_mapped_stretches() -> None:
    allocator = CachingAllocator(200 * MIB, AllocatorSettings(expandable_segments=True), new_address=lambda size: BASE)
    first, middle, last = (allocator.malloc(20 * MIB) for _ in range(3))
    allocator.free(middle)
    allocator.empty_cache()
    shown = [(segment["address"], segment["total_size"], segment["is_expandable"]) for segment in allocator.segments()]
    assert shown == [(first, 20 * MIB, True), (last, 20 * MIB, True)]


def test_a_loaded_state_is_shown_as_it_was_saved() -> None:
    allocator = CachingAllocator(200 * MIB)
    addresses = [allocator.malloc(size) for size in (5 * MIB, 6 * MIB, 1000, 30 * MIB, 13 * MIB)]
    for address in addresses[1::2]:
        allocator.free(address)
    copy = CachingAllocator(200 * MIB)
    copy.load(allocator.segments())
    assert copy.segments() == allocator.segments()
    for gauge in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"):
        assert getattr(copy.statistics, gauge).current == getattr(allocator.statistics, gauge).current
    assert copy.malloc(6 * MIB) == addresses[1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"is_expandable": True}, "is expandable"),
        ({"total_size": 22 * MIB}, "has 23068672 bytes, its blocks 20971520"),
        ({"blocks": []}, "has 20971520 bytes, its blocks 0"),
    ],
)
def test_a_segment_that_cannot_be_rebuilt_is_refused(change: dict[str, object], reason: str) -> None:
    allocator = CachingAllocator(200 * MIB)
    allocator.malloc(5 * MIB)
    (segment,) = allocator.segments()
    fresh = CachingAllocator(200 * MIB)
    with pytest.raises(ValueError, match=reason):
        fresh.load([{**segment, **change}])
    assert fresh.statistics.reserved_bytes.current == 0


VIEW = """
from torch.cuda import _memory_viz as viewer
from memexp.simulate.allocator import CachingAllocator, EventLog, OutOfMemoryError
log = EventLog()
allocator = CachingAllocator(64 << 20, log=log)
allocator.free(allocator.malloc(6 << 20))
allocator.malloc(5 << 20)
try:
    allocator.malloc(60 << 20)
except OutOfMemoryError:
    pass
snapshot = {"segments": allocator.segments(), "device_traces": [log.device_trace()]}
print(viewer.segsum(snapshot), viewer.trace(snapshot))
"""


def test_torchs_memory_viewer_reads_segments_and_events() -> None:
    shown = subprocess.run([sys.executable, "-c", VIEW], capture_output=True, text=True, check=True).stdout
    assert "total_reserved: 20.0MiB" in shown
    assert "total_allocated: 5.0MiB" in shown
    assert "cudaMalloc(" in shown
    assert "raise OutOfMemoryError # 60.0MiB requested, 44.0MiB free in CUDA" in shown
