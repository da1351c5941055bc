"""What a GPU's allocator would reserve for tensors of the CPU, by hand from its rules.

Up to 1 MiB a tensor goes into a segment of 2 MiB with others; below 10 MiB into one of 20 MiB; above that it has its
own, rounded up to 2 MiB. Of a cached block the rest is split off where more than 1 MiB is left.
"""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch

from memexp.measure.live_bytes import LiveBytes
from memexp.measure.reserved import ReservedBytes

MIB = 1 << 20


def of_size(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8)


def test_reserved_grows_by_segments_and_is_kept_for_reuse() -> None:
    with LiveBytes() as meter:
        held = [of_size(1000), of_size(1 * MIB)]
        assert meter.reserved_bytes() == 2 * MIB
        held.append(of_size(3 * MIB))
        assert meter.reserved_bytes() == (2 + 20) * MIB
        held.append(of_size(17 * MIB + 1))  # a byte too long for what is left of the 20 MiB
        assert meter.reserved_bytes() == (2 + 20 + 18) * MIB
        held.clear()
        assert (meter.allocated_bytes(), meter.reserved_bytes()) == (0, 40 * MIB)
        kept = [of_size(15 * MIB), of_size(4 * MIB), of_size(12 * MIB)]  # 18 MiB fit best, then 20, then its rest
        assert meter.reserved_bytes() == 40 * MIB
        kept.append(of_size(14 * MIB))
        assert meter.peak_reserved_bytes() == 54 * MIB


def test_views_and_writes_in_place_reserve_nothing() -> None:
    with LiveBytes() as meter:
        x = torch.zeros(3 * MIB)
        kept = (x[10:], x.view(3, MIB), x.detach(), x.add_(1), x.split(MIB), torch.nn.Parameter(x))
        assert meter.peak_reserved_bytes() == 12 * MIB
        del kept


@pytest.mark.parametrize(("before", "after", "reserved"), [(4, 24, 20 + 24), (24, 12, 24 + 12), (12, 0, 12)])
def test_a_resized_storage_needs_old_and_new_at_once(before: int, after: int, reserved: int) -> None:
    with LiveBytes() as meter:
        x = of_size(before * MIB)
        x.untyped_storage().resize_(after * MIB)
        assert (meter.allocated_bytes(), meter.reserved_bytes()) == (after * MIB, reserved * MIB)


def test_gradients_that_meet_are_added_in_place() -> None:
    """A dispatch mode makes autograd add out of place; on a GPU the sum takes no block of its own."""
    with LiveBytes() as meter:
        x = torch.ones(3 * MIB, requires_grad=True)  # 12 MiB, and so is all that follows
        y = x * 2 + x * 3  # for a moment both products and their sum are there
        assert meter.reserved_bytes() == 4 * 12 * MIB
        y.backward(torch.ones_like(y))  # x, y, its gradient, and one for each product
        assert meter.reserved_bytes() == 5 * 12 * MIB


def test_a_new_peak_starts_at_what_is_reserved_and_cached() -> None:
    with LiveBytes() as meter:
        x = of_size(12 * MIB)
        del x
        meter.reset_peak()
        assert meter.peak_reserved_bytes() == 12 * MIB


@pytest.mark.parametrize(
    ("conf", "reserved"),
    [("", 20 + 22), ("expandable_segments:True", 20 + 20), ("roundup_power2_divisions:4", 20 + 24)],
)
def test_the_allocator_settings_count(conf: str, reserved: int) -> None:
    """An expandable segment grows by pages of 20 MiB, and rounding to quarters of 16 MiB makes 24 of 21."""
    with LiveBytes(alloc_conf=conf) as meter:
        x = of_size(4 * MIB)
        del x
        kept = of_size(21 * MIB)
        assert meter.allocated_bytes() == kept.nbytes
        assert meter.reserved_bytes() == reserved * MIB


def test_settings_that_torch_refuses_are_refused() -> None:
    with pytest.raises(ValueError, match="expandable"):
        ReservedBytes("expandable:True")


def test_a_death_in_the_middle_of_the_replay_waits_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector may run anywhere, inside the simulated allocator too."""

    class Cycle:
        def __init__(self) -> None:
            self.itself, self.tensor = self, of_size(12 * MIB)

    gc.disable()
    try:
        with LiveBytes() as meter:
            reserved = meter._reserved
            malloc: Callable[..., int] = reserved._allocator.malloc

            def malloc_and_collect(*arguments: int) -> int:
                address = malloc(*arguments)
                gc.collect()
                return address

            monkeypatch.setattr(reserved._allocator, "malloc", malloc_and_collect)
            gone = weakref.ref(Cycle().tensor)
            kept = of_size(12 * MIB)
            assert meter.reserved_bytes() == 24 * MIB
            assert gone() is None
            again = of_size(12 * MIB)
            assert meter.reserved_bytes() == 24 * MIB
            assert meter.allocated_bytes() == kept.nbytes + again.nbytes
    finally:
        gc.enable()


def test_a_job_of_many_ops_does_not_fill_the_queue() -> None:
    with LiveBytes() as meter:
        for _ in range(10_000):
            of_size(100)
        assert len(meter._reserved._waiting) < 10_000
        assert meter.reserved_bytes() == 2 * MIB
