"""Virtual time, with the card's own figures: no test waits for anything."""

from typing import Any

import pytest
import torch

from memexp.simulate import CARDS, SimulatedGPU, prepare
from memexp.simulate.costs import BANDWIDTH_SHARE, FLOPS_SHARE, LAUNCH_SECONDS, LINK_SHARE, flops_share
from memexp.simulate.flash import flash_attn_func, flash_attn_varlen_func

prepare()
CARD = CARDS["a100_80gb"]
MIB = 1 << 20


def test_a_large_product_takes_its_arithmetic() -> None:
    with SimulatedGPU(CARD) as gpu:
        a = torch.empty(8192, 8192, dtype=torch.bfloat16, device=gpu.device)
        before = gpu.elapsed_seconds
        a @ a
        seconds = 2 * 8192**3 / (312e12 * FLOPS_SHARE)
        assert gpu.elapsed_seconds - before == pytest.approx(seconds + LAUNCH_SECONDS, rel=1e-6)


def test_a_product_of_halves_that_adds_to_fp32_runs_at_the_rate_of_halves() -> None:
    """As TRL's fused loss sums its gradients."""
    with SimulatedGPU(CARD) as gpu:
        a = torch.empty(8192, 8192, dtype=torch.bfloat16, device=gpu.device)
        total = torch.empty(8192, 8192, device=gpu.device)
        before = gpu.elapsed_seconds
        torch.addmm(total, a, a, out_dtype=torch.float32, out=total)
        seconds = 2 * 8192**3 / (312e12 * FLOPS_SHARE)
        assert gpu.elapsed_seconds - before == pytest.approx(seconds + LAUNCH_SECONDS, rel=1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shared_row", [False, True])
def test_attention_takes_two_products_and_half_of_them_where_it_is_causal(causal: bool, shared_row: bool) -> None:
    rows, heads, size = 8192, 32, 128
    products = 2 * 2 * heads * rows * rows * size / (2 if causal else 1)
    with SimulatedGPU(CARD) as gpu:
        q = torch.empty(1, rows, heads, size, dtype=torch.bfloat16, device=gpu.device, requires_grad=True)
        ends = torch.tensor([0, rows], dtype=torch.int32).to(gpu.device)
        before = gpu.elapsed_seconds
        if shared_row:
            out = flash_attn_varlen_func(q[0], q[0], q[0], ends, ends, rows, rows, causal=causal)
        else:
            out = flash_attn_func(q, q, q, causal=causal)
        forward = gpu.elapsed_seconds - before
        assert forward == pytest.approx(products / (312e12 * 0.73), rel=0.01)
        out.backward(torch.empty_like(out))
        backward = gpu.elapsed_seconds - before - forward  # its five products, and the sum of three gradients
        assert backward == pytest.approx(2.5 * products / (312e12 * 0.63), rel=0.1)


@pytest.mark.parametrize(
    ("kernel", "forward_flops", "backward_flops"), [("flash", 319e12, 310e12), ("cudnn", 518e12, 499e12)]
)
def test_attention_on_hopper_is_as_fast_as_published(kernel: str, forward_flops: float, backward_flops: float) -> None:
    """FlashAttention-3's paper, figures 5 and 6: head size 128, 4,096 rows, forward with a causal mask."""
    card = CARDS["h100_80gb"]
    forward, backward = (
        getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention{direction}").default
        for direction in ("", "_backward")
    )
    assert card.bfloat16_flops * flops_share(forward, card) == pytest.approx(forward_flops, rel=0.01)
    assert card.bfloat16_flops * flops_share(backward, card) == pytest.approx(backward_flops, rel=0.02)


@pytest.mark.parametrize("op", [torch.ops.aten.mm, torch.ops.aten._scaled_dot_product_efficient_attention])
def test_products_and_older_kernels_stay_below_what_was_measured_at_best(op: Any) -> None:
    """0.803 of an H100 and 0.869 of an A100, over all shapes tried."""
    for name, best in (("h100_80gb", 0.803), ("a100_80gb", 0.869)):
        assert 0.2 < flops_share(op.default, CARDS[name]) < best


def test_an_elementwise_op_takes_its_bytes() -> None:
    with SimulatedGPU(CARD) as gpu:
        a = torch.empty(64 * MIB, device=gpu.device)
        before = gpu.elapsed_seconds
        a * 2
        seconds = 2 * 4 * 64 * MIB / (2.039e12 * BANDWIDTH_SHARE)
        assert gpu.elapsed_seconds - before == pytest.approx(seconds + LAUNCH_SECONDS, rel=1e-6)


def test_views_take_no_time() -> None:
    with SimulatedGPU(CARD) as gpu:
        a = torch.empty(4, 4, device=gpu.device)
        before = gpu.elapsed_seconds
        a.t()[1:].unsqueeze(0).expand(3, -1, -1)
        assert gpu.elapsed_seconds == before


@pytest.mark.parametrize("overlap", [True, False])
def test_a_copy_overlaps_with_compute_unless_an_event_orders_them(overlap: bool) -> None:
    with SimulatedGPU(CARD) as gpu:
        device = torch.get_device_module(gpu.device)
        a = torch.empty(8192, 8192, dtype=torch.bfloat16, device=gpu.device)
        host = torch.empty(64 * MIB, dtype=torch.uint8)
        before = gpu.elapsed_seconds
        side = device.Stream()
        with device.stream(side):
            arrived = host.to(gpu.device, non_blocking=True)
            event = side.record_event()
        if not overlap:
            device.current_stream().wait_event(event)
        a @ a
        copy, product = 64 * MIB / (31.5e9 * LINK_SHARE), 2 * 8192**3 / (312e12 * FLOPS_SHARE)
        expected = max(copy, product) if overlap else copy + product
        assert gpu.elapsed_seconds - before == pytest.approx(expected, rel=0.02)
        assert arrived.device == gpu.device


def test_reading_a_value_waits_for_the_stream() -> None:
    with SimulatedGPU(CARD, warn_of_floats=False) as gpu:
        a = torch.empty(8192, 8192, dtype=torch.bfloat16, device=gpu.device)
        (a @ a)[0, 0].item()
        assert gpu.clock.host_seconds >= 2 * 8192**3 / (312e12 * FLOPS_SHARE)


def test_events_time_what_lies_between_them() -> None:
    with SimulatedGPU(CARD) as gpu:
        device = torch.get_device_module(gpu.device)
        start, end = device.Event(enable_timing=True), device.Event(enable_timing=True)
        a = torch.empty(64 * MIB, device=gpu.device)
        start.record()
        a.fill_(0)
        end.record()
        seconds = 4 * 64 * MIB / (2.039e12 * BANDWIDTH_SHARE) + LAUNCH_SECONDS
        assert start.elapsed_time(end) == pytest.approx(1e3 * seconds, rel=1e-6)


def test_a_block_that_another_stream_uses_is_not_reused_before_the_wait() -> None:
    with SimulatedGPU(CARD, event_timing="pessimistic") as gpu:
        device = torch.get_device_module(gpu.device)
        tensor = torch.empty(4 * MIB, dtype=torch.uint8, device=gpu.device)
        address = tensor.data_ptr()
        tensor.record_stream(device.Stream())
        del tensor
        assert torch.empty(4 * MIB, dtype=torch.uint8, device=gpu.device).data_ptr() != address
        device.synchronize()
        assert torch.empty(4 * MIB, dtype=torch.uint8, device=gpu.device).data_ptr() == address


def test_every_card_is_whole() -> None:
    for name, card in CARDS.items():
        assert name == card.name
        nominal = int(name.rsplit("_", 1)[1].removesuffix("gb")) * 1e9
        assert 0.9 * nominal < card.memory_bytes < 1.08 * nominal
        assert card.half_flops >= card.bfloat16_flops >= card.float32_flops > 1e12
        assert card.bytes_per_second > card.link_bytes_per_second > 1e9


def test_the_workspace_is_larger_on_hopper() -> None:
    assert CARDS["h100_80gb"].cublas_workspace_bytes == 32 * MIB
    assert CARDS["l4_24gb"].cublas_workspace_bytes == 8_519_680
