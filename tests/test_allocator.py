"""Answers computed by hand from the allocator's rules: 512-byte blocks, 2 MiB small and 20 MiB large segments."""

import pytest
from allocators import EXPANDABLE, MIB, active, allocated, mib, new_allocator, reserved


@pytest.mark.parametrize(
    ("size", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 1, 10 * MIB, 10 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (13 * MIB, 14 * MIB, 14 * MIB),
    ],
)
def test_a_request_takes_a_rounded_block_of_a_new_segment(size: int, block: int, segment: int) -> None:
    allocator = new_allocator()
    allocator.malloc(size)
    assert allocator.statistics.allocated_bytes.current == block
    assert allocator.statistics.reserved_bytes.current == segment
    assert allocator.statistics.requested_bytes.current == size


def test_a_tail_of_up_to_1_mib_counts_as_allocated() -> None:
    allocator = new_allocator()
    mib(allocator, 11.5)
    assert (allocated(allocator), reserved(allocator)) == (12, 12)


def test_the_last_part_of_a_20_mib_segment_keeps_its_tail() -> None:
    allocator = new_allocator()
    first, second = mib(allocator, 5), mib(allocator, 14)
    assert second == first + 5 * MIB
    assert (allocated(allocator), reserved(allocator)) == (20, 20)


def test_expandable_segments_split_every_tail_so_that_less_is_allocated() -> None:
    allocator = new_allocator(conf=EXPANDABLE)
    mib(allocator, 5)
    mib(allocator, 14)
    assert (allocated(allocator), reserved(allocator)) == (19, 20)


def test_a_small_segment_holds_4096_small_blocks_and_no_more() -> None:
    allocator = new_allocator()
    for _ in range(4096):
        allocator.malloc(1)
    assert (allocated(allocator), reserved(allocator)) == (2, 2)
    allocator.malloc(1)
    assert reserved(allocator) == 4


def test_small_requests_never_use_large_segments() -> None:
    allocator = new_allocator()
    mib(allocator, 5)
    allocator.malloc(512)
    assert reserved(allocator) == 22


def test_divisions_round_up_within_a_power_of_two() -> None:
    allocator = new_allocator(conf="roundup_power2_divisions:[1:4,2:0]")
    allocator.malloc(1200 * 1024)
    assert allocator.statistics.allocated_bytes.current == 1280 * 1024
    mib(allocator, 2.3)
    assert allocator.statistics.allocated_bytes.current == 1280 * 1024 + 4711 * 512


def test_the_smallest_fit_wins_and_of_equal_ones_the_lowest_address() -> None:
    allocator = new_allocator()
    big, low, high = mib(allocator, 40), mib(allocator, 30), mib(allocator, 30)
    for address in (big, high, low):
        allocator.free(address)
    assert mib(allocator, 30) == low
    assert mib(allocator, 30) == high
    assert mib(allocator, 30) == big


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_freed_neighbours_become_one_block(order: tuple[int, ...]) -> None:
    allocator = new_allocator()
    addresses = [mib(allocator, 6) for _ in range(3)]
    for index in order:
        allocator.free(addresses[index])
    (segment,) = allocator.segments()
    assert [(block["size"], block["state"]) for block in segment["blocks"]] == [(20 * MIB, "inactive")]


def test_a_block_is_reused_on_its_own_stream_only() -> None:
    allocator = new_allocator()
    address = mib(allocator, 30, stream=1)
    allocator.free(address)
    assert mib(allocator, 30, stream=2) != address
    assert mib(allocator, 30, stream=1) == address
    assert reserved(allocator) == 60


def test_empty_cache_keeps_segments_that_are_partly_in_use() -> None:
    allocator = new_allocator()
    whole, part = mib(allocator, 30), mib(allocator, 5)
    mib(allocator, 6)
    allocator.free(whole)
    allocator.free(part)
    allocator.empty_cache()
    assert (allocated(allocator), reserved(allocator)) == (6, 20)


def test_a_block_used_on_another_stream_stays_active_until_the_next_malloc() -> None:
    allocator = new_allocator()
    address = mib(allocator, 30)
    allocator.record_stream(address, 7)
    allocator.free(address)
    assert (allocated(allocator), active(allocator)) == (0, 30)
    assert allocator.segments()[0]["blocks"][0]["state"] == "active_awaiting_free"
    assert mib(allocator, 30) == address


def test_a_pessimist_reuses_such_a_block_only_after_its_stream_is_done() -> None:
    allocator = new_allocator(event_timing="pessimistic")
    address = mib(allocator, 30)
    for stream in (7, 8):
        allocator.record_stream(address, stream)
    allocator.free(address)
    assert mib(allocator, 30) != address
    allocator.synchronize(8)
    assert mib(allocator, 30) != address
    allocator.synchronize(7)
    assert mib(allocator, 30) == address


def test_a_block_that_waits_is_not_merged_with_its_neighbours() -> None:
    allocator = new_allocator(event_timing="pessimistic")
    first, second = mib(allocator, 6), mib(allocator, 14)
    allocator.record_stream(first, 7)
    allocator.free(first)
    allocator.free(second)
    assert [block["state"] for block in allocator.segments()[0]["blocks"]] == ["active_awaiting_free", "inactive"]
    allocator.synchronize()
    assert mib(allocator, 15) == first, "both parts are one block again"


def test_recording_the_own_stream_delays_nothing() -> None:
    allocator = new_allocator(event_timing="pessimistic")
    address = mib(allocator, 30, stream=3)
    allocator.record_stream(address, 3)
    allocator.free(address)
    assert active(allocator) == 0


def test_a_reused_block_forgets_the_streams_it_was_used_on() -> None:
    allocator = new_allocator()
    address = mib(allocator, 30)
    allocator.record_stream(address, 7)
    allocator.free(address)
    assert mib(allocator, 30) == address
    allocator.free(address)
    assert active(allocator) == 0


def test_peaks_start_again_at_the_current_level() -> None:
    allocator = new_allocator()
    statistics = allocator.statistics
    keep, drop = mib(allocator, 30), mib(allocator, 50)
    allocator.free(drop)
    assert (statistics.allocated_bytes.peak, statistics.reserved_bytes.peak) == (80 * MIB, 80 * MIB)
    statistics.reset_peak()
    assert (statistics.allocated_bytes.peak, statistics.active_bytes.peak) == (30 * MIB, 30 * MIB)
    assert (statistics.requested_bytes.peak, statistics.reserved_bytes.peak) == (30 * MIB, 80 * MIB)
    allocator.free(keep)
    assert statistics.allocated_bytes.peak == 30 * MIB


def test_no_bytes_are_the_null_pointer_and_cost_nothing() -> None:
    allocator = new_allocator()
    assert allocator.malloc(0) == 0
    allocator.free(0)
    assert reserved(allocator) == 0
    with pytest.raises(ValueError, match="cannot allocate -1 bytes"):
        allocator.malloc(-1)


def test_an_address_can_be_freed_once() -> None:
    allocator = new_allocator(event_timing="pessimistic")
    address = mib(allocator, 1)
    allocator.record_stream(address, 7)
    allocator.free(address)
    for use in (allocator.free, lambda address: allocator.record_stream(address, 7)):
        with pytest.raises(ValueError, match=f"nothing is allocated at address {address:#x}"):
            use(address)


def test_an_unknown_event_timing_is_refused() -> None:
    with pytest.raises(ValueError, match="optimistic or pessimistic, not 'late'"):
        new_allocator(event_timing="late")
