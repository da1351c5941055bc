"""What must hold after any sequence of calls, whatever the settings; the sums are taken over the segments' view."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memexp.simulate.allocator import AllocatorSettings, CachingAllocator, EventLog, OutOfMemoryError

MIB = 1 << 20
CAPACITY_BYTES = 150 * MIB

SIZES = st.one_of(
    st.integers(1, 4096), st.integers(1, 3 * MIB), st.integers(MIB, 40 * MIB), st.sampled_from([5 * MIB, 10 * MIB])
)
STREAMS = st.integers(0, 2)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), SIZES, STREAMS),
        st.tuples(st.just("malloc"), SIZES, STREAMS),
        st.tuples(st.just("free"), st.integers(0, 99), st.none()),
        st.tuples(st.just("record_stream"), st.integers(0, 99), STREAMS),
        st.tuples(st.just("synchronize"), st.none() | STREAMS, st.none()),
        st.tuples(st.just("empty_cache"), st.none(), st.none()),
    ),
    max_size=50,
)
PLAIN = st.builds(
    AllocatorSettings,
    large_segment_size_bytes=st.sampled_from([20 * MIB, 12 * MIB]),
    max_split_size_bytes=st.sampled_from([None, 20 * MIB, 40 * MIB]),
    roundup_power2_divisions=st.sampled_from([(0,) * 16, (4,) * 16]),
    garbage_collection_threshold=st.sampled_from([0.0, 0.4]),
    per_process_memory_fraction=st.sampled_from([1.0, 0.7]),
)
EXPANDABLE = st.builds(
    AllocatorSettings,
    expandable_segments=st.just(True),
    large_segment_size_bytes=st.sampled_from([20 * MIB, 12 * MIB]),
    roundup_power2_divisions=st.sampled_from([(0,) * 16, (4,) * 16]),
)
TIMINGS = st.sampled_from(["optimistic", "pessimistic"])


@pytest.mark.parametrize("kind", [PLAIN, EXPANDABLE], ids=["plain", "expandable"])
def test_any_sequence_of_calls_keeps_the_allocator_sound(kind: st.SearchStrategy[AllocatorSettings]) -> None:
    @settings(deadline=None, max_examples=150)
    @given(kind, TIMINGS, CALLS)
    def check(chosen: AllocatorSettings, timing: Any, calls: list[tuple[str, Any, Any]]) -> None:
        allocator = CachingAllocator(CAPACITY_BYTES, chosen, event_timing=timing)
        live: dict[int, int] = {}
        for call in calls:
            _apply(allocator, live, *call)
            _check(allocator, live)
        for address in live:
            allocator.free(address)
        allocator.empty_cache()
        assert allocator.segments() == []
        assert allocator.statistics.reserved_bytes.current == 0
        assert allocator.statistics.active_bytes.current == allocator.statistics.requested_bytes.current == 0

    check()


@settings(deadline=None, max_examples=100)
@given(st.one_of(PLAIN, EXPANDABLE), TIMINGS, CALLS)
def test_the_log_alone_tells_what_is_reserved_and_allocated(
    chosen: AllocatorSettings, timing: Any, calls: list[tuple[str, Any, Any]]
) -> None:
    log = EventLog()
    allocator = CachingAllocator(CAPACITY_BYTES, chosen, event_timing=timing, log=log)
    live: dict[int, int] = {}
    for call in calls:
        _apply(allocator, live, *call)
    total = dict.fromkeys(("alloc", "free_completed", "segment_alloc", "segment_free"), 0)
    total |= {"segment_map": 0, "segment_unmap": 0, "free_requested": 0, "oom": 0}
    for event in log:
        total[event.action] += event.size
    given_by_device = total["segment_alloc"] + total["segment_map"] - total["segment_free"] - total["segment_unmap"]
    assert given_by_device == allocator.statistics.reserved_bytes.current
    assert total["alloc"] - total["free_completed"] == allocator.statistics.requested_bytes.current
    assert total["alloc"] - total["free_requested"] == sum(live.values())


def _apply(allocator: CachingAllocator, live: dict[int, int], call: str, argument: Any, stream: int | None) -> None:
    if call == "malloc":
        try:
            address = allocator.malloc(argument, stream or 0)
        except OutOfMemoryError:
            return
        assert address not in live
        live[address] = argument
    elif call in ("free", "record_stream"):
        if live:
            address = list(live)[argument % len(live)]
            if call == "free":
                del live[address]
                allocator.free(address)
            else:
                allocator.record_stream(address, stream or 0)
    elif call == "synchronize":
        allocator.synchronize(argument)
    else:
        allocator.empty_cache()


def _check(allocator: CachingAllocator, live: dict[int, int]) -> None:
    segments = allocator.segments()
    blocks = [block for segment in segments for block in segment["blocks"]]
    held = {block["address"]: block for block in blocks if block["state"] == "active_allocated"}
    assert held.keys() == live.keys()
    assert all(held[address]["size"] >= size == held[address]["requested_size"] for address, size in live.items())

    end = 0
    for segment in segments:
        assert segment["address"] >= end, "segments overlap"
        end = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == end, "blocks overlap or leave a gap"
            assert block["size"] > 0 and block["size"] % 512 == 0
            end += block["size"]
        assert end - segment["address"] == segment["total_size"]
        sizes = dict.fromkeys(("active_allocated", "active_awaiting_free", "inactive"), 0)
        for block in segment["blocks"]:
            sizes[block["state"]] += block["size"]
        assert segment["allocated_size"] == sizes["active_allocated"]
        used = [block["requested_size"] for block in segment["blocks"] if block["state"] != "inactive"]
        assert segment["requested_size"] == sum(used)
        assert segment["active_size"] == segment["total_size"] - sizes["inactive"]
        states = [block["state"] for block in segment["blocks"]]
        assert ("inactive", "inactive") not in pairwise(states), "free neighbours were not merged"

    statistics = allocator.statistics
    active = [block for block in blocks if block["state"] != "inactive"]
    assert statistics.allocated_bytes.current == sum(block["size"] for block in held.values())
    assert statistics.active_bytes.current == sum(block["size"] for block in active)
    assert statistics.requested_bytes.current == sum(block["requested_size"] for block in active)
    assert statistics.reserved_bytes.current == sum(segment["total_size"] for segment in segments)
    assert statistics.allocated_bytes.current <= statistics.reserved_bytes.current <= CAPACITY_BYTES
    assert statistics.reserved_bytes.peak <= CAPACITY_BYTES
