"""A device that fills up, and settings that change what happens then: answers computed by hand."""

import pytest
from allocators import EXPANDABLE, MIB, active, allocated, mib, new_allocator, reserved

from memexp.simulate.allocator import EventLog, OutOfMemoryError


def test_a_full_device_gets_its_cached_segments_back_before_it_fails() -> None:
    allocator = new_allocator(capacity_mib=30)
    allocator.free(mib(allocator, 20))
    mib(allocator, 24)
    assert (reserved(allocator), allocator.statistics.num_alloc_retries, allocator.statistics.num_ooms) == (24, 1, 0)


def test_a_segment_in_use_anywhere_stays_reserved_in_a_retry() -> None:
    allocator = new_allocator(capacity_mib=30)
    mib(allocator, 5)
    with pytest.raises(OutOfMemoryError):
        mib(allocator, 16)
    assert reserved(allocator) == 20


def test_out_of_memory_says_what_was_asked_and_what_was_left() -> None:
    log = EventLog()
    allocator = new_allocator(capacity_mib=30, log=log)
    mib(allocator, 12)
    with pytest.raises(OutOfMemoryError) as caught:
        mib(allocator, 5)
    error = caught.value
    assert (error.requested_bytes, error.segment_bytes, error.free_bytes) == (5 * MIB, 20 * MIB, 18 * MIB)
    assert (error.allocated_bytes, error.reserved_bytes, error.capacity_bytes) == (12 * MIB, 12 * MIB, 30 * MIB)
    assert str(error) == (
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 30.00 MiB of which 18.00 MiB "
        "is free. Of the allocated memory 12.00 MiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but "
        "unallocated."
    )
    assert (allocator.statistics.num_alloc_retries, allocator.statistics.num_ooms) == (1, 1)
    assert list(log)[-1][:3] == ("oom", 18 * MIB, 5 * MIB)


def test_the_allocator_works_on_after_running_out() -> None:
    allocator = new_allocator(capacity_mib=30)
    address = mib(allocator, 20)
    with pytest.raises(OutOfMemoryError):
        mib(allocator, 20)
    allocator.free(address)
    mib(allocator, 30)
    assert reserved(allocator) == 30


def test_a_memory_fraction_is_a_limit_below_the_capacity() -> None:
    allocator = new_allocator(capacity_mib=100, conf="per_process_memory_fraction:0.5")
    mib(allocator, 40)
    with pytest.raises(OutOfMemoryError, match=r"50\.00 MiB allowed") as caught:
        mib(allocator, 12)
    assert caught.value.free_bytes == 60 * MIB


@pytest.mark.parametrize("conf", ["", EXPANDABLE])
def test_a_full_device_waits_for_other_streams_before_it_fails(conf: str) -> None:
    allocator = new_allocator(capacity_mib=40, conf=conf, event_timing="pessimistic")
    address = mib(allocator, 30)
    allocator.record_stream(address, 7)
    allocator.free(address)
    mib(allocator, 38)
    assert active(allocator) == 38


def test_an_oversize_block_serves_only_large_requests_and_whole() -> None:
    allocator = new_allocator(conf="max_split_size_mb:40")
    oversize = mib(allocator, 64)
    allocator.free(oversize)
    mib(allocator, 5)
    assert reserved(allocator) == 64 + 20
    assert mib(allocator, 44) != oversize, "64 MiB is 20 MiB more than 44, which is too much to waste"
    assert mib(allocator, 45) == oversize
    assert allocated(allocator) == 5 + 44 + 64


@pytest.mark.parametrize(
    ("capacity", "cached", "wanted", "left", "retries"),
    [
        (130, [12, 100], 70, [12], 0),  # the one block that is large enough
        (125, [30, 40, 50], 60, [30], 0),  # the largest ones, until they are
        (100, [12, 64], 70, [], 1),  # 12 MiB is no oversize block: only emptying the whole cache helps
    ],
)
def test_a_full_device_gives_up_oversize_blocks_before_the_whole_cache(
    capacity: int, cached: list[int], wanted: int, left: list[int], retries: int
) -> None:
    allocator = new_allocator(capacity_mib=capacity, conf="max_split_size_mb:20")
    for address in [mib(allocator, size) for size in cached]:
        allocator.free(address)
    mib(allocator, wanted)
    assert sorted(segment["total_size"] // MIB for segment in allocator.segments()) == [*left, wanted]
    assert allocator.statistics.num_alloc_retries == retries


@pytest.mark.parametrize(
    ("fraction", "kept"), [("0.5", 92 - 40 + 42 + 44), ("0.999", 92 + 42 + 44), ("1", 92 + 42 + 44)]
)
def test_garbage_collection_frees_what_was_unused_for_longer_than_the_mean(fraction: str, kept: int) -> None:
    """Half of 400 MiB is allowed and half of that, 100 MiB, is the threshold; 34 MiB have to go, B is older than A."""
    conf = f"garbage_collection_threshold:0.5,per_process_memory_fraction:{fraction}"
    allocator = new_allocator(capacity_mib=400, conf=conf)
    a, b = mib(allocator, 30), mib(allocator, 40)
    mib(allocator, 22)
    allocator.free(b)
    mib(allocator, 42)
    allocator.free(a)
    mib(allocator, 44)
    assert reserved(allocator) == kept
    assert a in [segment["address"] for segment in allocator.segments()]


def test_garbage_collection_frees_a_segment_that_is_as_old_as_the_mean_but_no_part_of_one() -> None:
    conf = "garbage_collection_threshold:0.25,per_process_memory_fraction:0.5"
    allocator = new_allocator(capacity_mib=400, conf=conf)
    part, whole = mib(allocator, 5), mib(allocator, 40)
    mib(allocator, 5)
    allocator.free(part)
    allocator.free(whole)
    mib(allocator, 60)
    assert reserved(allocator) == 20 + 60


def test_garbage_collection_goes_on_with_younger_segments_until_enough_is_free() -> None:
    """94 MiB are 34 over the threshold of 60: the older 12 MiB are not enough, so the younger 40 go as well."""
    allocator = new_allocator(400, "garbage_collection_threshold:0.3,per_process_memory_fraction:0.5")
    older, younger = mib(allocator, 11), mib(allocator, 40)
    allocator.free(older)
    mib(allocator, 42)
    allocator.free(younger)
    mib(allocator, 70)
    assert reserved(allocator) == 42 + 70


def test_expandable_segments_grow_in_place_by_20_mib_pages() -> None:
    allocator = new_allocator(conf=EXPANDABLE)
    first, second = mib(allocator, 12), mib(allocator, 12)
    assert second == first + 12 * MIB
    assert (allocated(allocator), reserved(allocator), len(allocator.segments())) == (24, 40, 1)


def test_the_pages_of_the_large_pool_are_as_large_as_its_segments() -> None:
    allocator = new_allocator(conf=f"{EXPANDABLE},large_segment_size_mb:30")
    mib(allocator, 5)
    assert reserved(allocator) == 30


def test_expandable_segments_of_the_small_pool_grow_by_2_mib() -> None:
    allocator = new_allocator(conf=EXPANDABLE)
    for _ in range(3):
        mib(allocator, 1)
    assert (allocated(allocator), reserved(allocator), len(allocator.segments())) == (3, 4, 1)


def test_empty_cache_unmaps_only_whole_pages_and_they_are_mapped_again() -> None:
    allocator = new_allocator(conf=EXPANDABLE)
    mib(allocator, 5)
    freed = mib(allocator, 30)
    assert reserved(allocator) == 40
    allocator.free(freed)
    allocator.empty_cache()
    assert reserved(allocator) == 20, "the free 15 MiB of the first page cannot go"
    assert mib(allocator, 30) == freed
    assert reserved(allocator) == 40


def test_best_fit_in_an_expandable_segment_counts_what_a_block_can_grow_to() -> None:
    """Free are 6 MiB in the middle and 5 MiB at the end, which can grow: the middle is the better fit for 4 MiB."""
    for conf, wanted in ((EXPANDABLE, "middle"), ("", "end")):
        allocator = new_allocator(conf=conf)
        middle, last = mib(allocator, 6), mib(allocator, 9)
        allocator.free(middle)
        assert mib(allocator, 4) == {"middle": middle, "end": last + 9 * MIB}[wanted]


def test_pages_that_do_not_fit_are_out_of_memory() -> None:
    allocator = new_allocator(capacity_mib=50, conf=EXPANDABLE)
    mib(allocator, 30)
    with pytest.raises(OutOfMemoryError) as caught:
        mib(allocator, 11)
    assert (caught.value.requested_bytes, caught.value.free_bytes) == (11 * MIB, 10 * MIB)
    mib(allocator, 10)


def test_an_expandable_segment_reserves_addresses_for_9_eighths_of_the_device_until_it_is_empty() -> None:
    ranges: list[int] = []

    def next_range(size: int) -> int:
        ranges.append(size)
        return len(ranges) << 40

    allocator = new_allocator(capacity_mib=320, conf=EXPANDABLE, new_address=next_range)
    for _ in range(2):
        allocator.free(mib(allocator, 5))
    assert ranges == [360 * MIB]
    allocator.empty_cache()
    mib(allocator, 5)
    assert ranges == [360 * MIB, 360 * MIB]
