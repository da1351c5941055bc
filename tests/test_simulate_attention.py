"""Attention on the simulated GPU: which kernel, what it keeps, what it takes for a while. Sizes by hand."""

import pytest
import torch
import torch.nn.functional as F

from memexp.simulate import CARDS, SimulatedGPU, flash3, prepare
from memexp.simulate.attention import choose_kernel
from memexp.simulate.flash import flash_attn_func, flash_attn_varlen_func

prepare()
BF16, FP32, FP16 = torch.bfloat16, torch.float32, torch.float16
BATCH, HEADS, LENGTH, SIZE = 2, 4, 512, 64
SMALL = 16 * 512  # random seeds and the like: a few blocks


@pytest.mark.parametrize(
    ("card", "dtype", "head_size", "mask", "expected"),
    [
        ("a100_80gb", BF16, 64, False, "flash"),
        ("a100_80gb", FP16, 256, False, "flash"),
        ("a100_80gb", BF16, 320, False, "efficient"),
        ("a100_80gb", BF16, 64, True, "efficient"),
        ("a100_80gb", FP32, 64, False, "efficient"),
        ("a100_80gb", FP32, 65, False, "math"),
        ("h100_80gb", BF16, 64, False, "cudnn"),
        ("h100_80gb", BF16, 64, True, "cudnn"),
        ("h100_80gb", BF16, 256, False, "flash"),
        ("h100_80gb", FP32, 64, False, "efficient"),
        ("rtx4090_24gb", BF16, 128, False, "flash"),
        ("t4_16gb", FP16, 64, False, "efficient"),
        ("t4_16gb", BF16, 64, False, "math"),
    ],
)
def test_the_kernel_is_the_one_that_cuda_chooses(
    card: str, dtype: torch.dtype, head_size: int, mask: bool, expected: str
) -> None:
    query = torch.empty(1, 2, 8, head_size, dtype=dtype, device="meta")
    attn_mask = torch.empty(1, 1, 8, 8, dtype=torch.bool, device="meta") if mask else None
    assert choose_kernel(CARDS[card], query, query, query, attn_mask, enable_gqa=False) == expected


def test_grouped_heads_need_a_kernel_that_takes_them() -> None:
    query, key = (torch.empty(1, heads, 8, 64, dtype=BF16, device="meta") for heads in (4, 2))
    assert choose_kernel(CARDS["a100_80gb"], query, key, key, None, enable_gqa=True) == "flash"
    mask = torch.empty(1, 1, 8, 8, dtype=torch.bool, device="meta")
    assert choose_kernel(CARDS["a100_80gb"], query, key, key, mask, enable_gqa=True) == "math"


def test_a_disabled_kernel_is_not_chosen() -> None:
    query = torch.empty(1, 2, 8, 64, dtype=BF16, device="meta")
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert choose_kernel(CARDS["a100_80gb"], query, query, query, None, enable_gqa=False) == "math"


def inputs(gpu: SimulatedGPU, dtype: torch.dtype = BF16) -> list[torch.Tensor]:
    return [
        torch.empty(BATCH, HEADS, LENGTH, SIZE, dtype=dtype, device=gpu.device, requires_grad=True) for _ in range(3)
    ]


@pytest.mark.parametrize("card", ["a100_80gb", "h100_80gb"])
def test_fused_attention_keeps_its_output_and_one_number_a_row(card: str) -> None:
    with SimulatedGPU(card) as gpu:
        q, k, v = inputs(gpu)
        before = gpu.memory_allocated()
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        kept = gpu.memory_allocated() - before
        rows = BATCH * HEADS * LENGTH
        assert out.shape == q.shape
        assert 0 <= kept - (rows * SIZE * 2 + rows * 4) <= SMALL


def test_the_math_kernel_keeps_the_scores() -> None:
    with SimulatedGPU("a100_80gb") as gpu, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        q, k, v = inputs(gpu)
        before = gpu.memory_allocated()
        F.scaled_dot_product_attention(q, k, v)
        assert gpu.max_memory_allocated() - before > 2 * BATCH * HEADS * LENGTH * LENGTH * 2


def test_flash_backward_accumulates_in_fp32() -> None:
    """Gradients of q, k and v, that of the output, dq_accum in fp32 and softmax_d."""
    with SimulatedGPU("a100_80gb") as gpu:
        q, k, v = inputs(gpu)
        out = F.scaled_dot_product_attention(q, k, v)
        gradient = torch.empty_like(out)
        before = gpu.memory_allocated()
        gpu.reset_peak_memory_stats()
        out.backward(gradient)
        rows = BATCH * HEADS * LENGTH
        expected = 3 * rows * SIZE * 2 + rows * SIZE * 4 + rows * 4
        assert gpu.max_memory_allocated() - before == pytest.approx(expected, abs=SMALL)


def test_grouped_heads_are_expanded_backward() -> None:
    with SimulatedGPU("a100_80gb") as gpu:
        q = torch.empty(BATCH, LENGTH, HEADS, SIZE, dtype=BF16, device=gpu.device, requires_grad=True)
        k, v = (
            torch.empty(BATCH, LENGTH, HEADS // 2, SIZE, dtype=BF16, device=gpu.device, requires_grad=True)
            for _ in range(2)
        )
        out = flash_attn_func(q, k, v, causal=True)
        gradient = torch.empty_like(out)
        before = gpu.memory_allocated()
        gpu.reset_peak_memory_stats()
        out.backward(gradient)
        rows = BATCH * HEADS * LENGTH
        gradients = rows * SIZE * 2 + 2 * (rows // 2) * SIZE * 2
        scratch = rows * SIZE * 4 + rows * 4 + 2 * rows * SIZE * 2
        assert gpu.max_memory_allocated() - before == pytest.approx(gradients + scratch, abs=SMALL)


def test_sequences_in_one_row_keep_no_padding() -> None:
    with SimulatedGPU("a100_80gb") as gpu:
        ends = torch.tensor([0, 100, 384], dtype=torch.int32, device=gpu.device)
        q, k, v = (torch.empty(384, HEADS, SIZE, dtype=BF16, device=gpu.device, requires_grad=True) for _ in range(3))
        before = gpu.memory_allocated()
        out = flash_attn_varlen_func(q, k, v, ends, ends, 284, 284, causal=True)
        rows = 384 * HEADS
        assert gpu.memory_allocated() - before == pytest.approx(rows * SIZE * 2 + rows * 4, abs=SMALL + HEADS * 4 * 256)
        out.backward(torch.empty_like(out))
        assert q.grad is not None and q.grad.shape == q.shape


def flash_3_arguments(gpu: SimulatedGPU, size: int, key_heads: int) -> list[torch.Tensor]:
    shapes = [(BATCH, 500, heads, size) for heads in (HEADS, key_heads, key_heads)]
    return [torch.empty(shape, dtype=BF16, device=gpu.device, requires_grad=True) for shape in shapes]


def requested(gpu: SimulatedGPU, which: str = "peak") -> int:
    return gpu.memory_stats()[f"requested_bytes.all.{which}"]


def test_flash_attention_3_keeps_its_output_and_one_number_a_row() -> None:
    with SimulatedGPU("h100_80gb") as gpu:
        arguments = flash_3_arguments(gpu, 64, HEADS)
        before = requested(gpu, "current")
        out = flash3.flash_attn_func(*arguments, causal=True)
        rows = BATCH * HEADS * 500
        assert out.shape == arguments[0].shape
        assert requested(gpu, "current") - before == rows * 64 * 2 + rows * 4


@pytest.mark.parametrize(
    ("size", "key_heads", "causal", "tile", "rounded"),
    [(64, HEADS, True, 128, 64), (128, HEADS, True, 64, 128), (128, HEADS // 2, False, 80, 128), (80, 2, True, 64, 96)],
)
def test_flash_attention_3_backward_takes_what_its_source_says(
    size: int, key_heads: int, causal: bool, tile: int, rounded: int
) -> None:
    """hopper/flash_api.cpp on sm90: rows in whole tiles, two numbers a row, dq and grouped dk and dv in fp32."""
    with SimulatedGPU("h100_80gb") as gpu:
        out = flash3.flash_attn_func(*flash_3_arguments(gpu, size, key_heads), causal=causal)
        gradient = torch.empty_like(out)
        before = requested(gpu, "current")
        gpu.reset_peak_memory_stats()
        out.backward(gradient)
        tiles = -(-500 // tile)
        rows, key_rows = BATCH * HEADS * tiles * tile, BATCH * key_heads * 512
        gradients = BATCH * 500 * (HEADS + 2 * key_heads) * size * 2
        grouped = 0 if key_heads == HEADS else 2 * key_rows * rounded * 4
        semaphores = 4 * tiles * BATCH * HEADS
        assert requested(gpu) - before == gradients + 2 * rows * 4 + rows * rounded * 4 + grouped + semaphores


def test_flash_attention_3_pads_a_row_of_sequences_by_a_tile_each() -> None:
    with SimulatedGPU("h100_80gb") as gpu:
        ends = torch.tensor([0, 100, 384], dtype=torch.int32, device=gpu.device)
        q, k, v = (torch.empty(384, HEADS, SIZE, dtype=BF16, device=gpu.device, requires_grad=True) for _ in range(3))
        out = flash3.flash_attn_varlen_func(q, k, v, ends, ends, 284, 284, causal=True)
        gradient = torch.empty_like(out)
        before = requested(gpu, "current")
        gpu.reset_peak_memory_stats()
        out.backward(gradient)
        rows = HEADS * (384 + 2 * 128)
        taken = 2 * rows * 4 + rows * SIZE * 4 + 4 * 3 * 2 * HEADS
        assert requested(gpu) - before == 3 * 384 * HEADS * SIZE * 2 + taken


def test_flash_attention_3_refuses_a_head_size_that_it_has_no_kernel_for() -> None:
    with SimulatedGPU("h100_80gb") as gpu, pytest.raises(RuntimeError, match="multiples of 8"):
        flash3.flash_attn_func(*flash_3_arguments(gpu, 60, HEADS))


def test_a_bool_mask_becomes_one_of_the_querys_dtype_and_is_kept() -> None:
    with SimulatedGPU("a100_80gb") as gpu:
        q, k, v = inputs(gpu)
        mask = torch.ones(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool, device=gpu.device)
        before = gpu.memory_allocated()
        out = F.scaled_dot_product_attention(q, k, v, mask)
        kept = gpu.memory_allocated() - before
        rows = BATCH * HEADS * LENGTH
        assert kept - BATCH * LENGTH * LENGTH * 2 == pytest.approx(rows * SIZE * 2 + rows * 4, abs=SMALL)
        assert out.shape == q.shape


def test_autocast_reaches_attention() -> None:
    with SimulatedGPU("a100_80gb") as gpu, torch.autocast(gpu.device.type, dtype=BF16):
        q, k, v = inputs(gpu, FP32)
        assert F.scaled_dot_product_attention(q, k, v).dtype == BF16


def test_attention_on_the_host_is_torchs_own() -> None:
    with SimulatedGPU():
        q = torch.ones(1, 1, 2, 4)
        assert F.scaled_dot_product_attention(q, q, q).sum().item() == 8
