"""Attention on the simulated GPU: which kernel, what it keeps, what it takes for a while. Sizes by hand."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from memexp.simulate import CARDS, SimulatedGPU, flash3, prepare
from memexp.simulate.attention_choice import AttentionCall, choose_kernel
from memexp.simulate.flash import flash_attn_func, flash_attn_varlen_func

prepare()
BF16, FP32, FP16 = torch.bfloat16, torch.float32, torch.float16
BATCH, HEADS, LENGTH, SIZE = 2, 4, 512, 64
SMALL = 16 * 512  # random seeds and the like: a few blocks


def attention_call(
    dtype: torch.dtype = BF16,
    size: int = 64,
    value_size: int | None = None,
    rows: int = 8,
    key_rows: int | None = None,
    heads: int = 4,
    key_heads: int = 4,
    mask: bool = False,
    requires_grad: bool = False,
    **kwargs: Any,
) -> AttentionCall:
    def tensor(heads: int, rows: int, size: int) -> torch.Tensor:
        return torch.empty(1, heads, rows, size, dtype=dtype, device="meta", requires_grad=requires_grad)

    key_rows = key_rows or rows
    query, key = tensor(heads, rows, size), tensor(key_heads, key_rows, size)
    value = tensor(key_heads, key_rows, value_size or size)
    attn_mask = torch.empty(1, 1, rows, key_rows, dtype=torch.bool, device="meta") if mask else None
    return AttentionCall(query, key, value, attn_mask, **kwargs)


@pytest.mark.parametrize(
    ("card", "arguments", "expected"),
    [
        ("a100_80gb", {}, "flash"),
        ("a100_80gb", {"dtype": FP16, "size": 256}, "flash"),
        ("a100_80gb", {"size": 320}, "efficient"),
        ("a100_80gb", {"mask": True}, "efficient"),
        ("a100_80gb", {"dtype": FP32}, "efficient"),
        ("a100_80gb", {"dtype": torch.float64}, "math"),
        ("a100_80gb", {"dtype": FP32, "size": 65}, "math"),
        ("a100_80gb", {"is_causal": True, "key_rows": 16}, "efficient"),  # flash aligns the mask to the other corner
        ("h100_80gb", {}, "cudnn"),
        ("h100_80gb", {"mask": True}, "cudnn"),
        ("h100_80gb", {"size": 256}, "flash"),
        ("h100_80gb", {"dtype": FP32}, "efficient"),
        ("h100_80gb", {"dropout": 0.125}, "cudnn"),
        ("h100_80gb", {"dropout": 0.1}, "flash"),  # cuDNN knows sixteenths alone
        ("h100_80gb", {"dropout": 0.1, "mask": True}, "efficient"),
        ("h100_80gb", {"size": 192, "value_size": 128}, "cudnn"),  # multi-head latent attention
        ("h100_80gb", {"size": 128, "value_size": 64}, "cudnn"),
        ("a100_80gb", {"size": 192, "value_size": 128}, "efficient"),
        ("h100_80gb", {"rows": 1, "key_rows": 9}, "cudnn"),
        ("h100_80gb", {"rows": 1, "key_rows": 1}, "flash"),
        ("rtx4090_24gb", {"size": 128}, "flash"),
        ("rtx4090_24gb", {"size": 256, "dropout": 0.1}, "flash"),
        ("rtx4090_24gb", {"size": 256, "dropout": 0.1, "requires_grad": True}, "efficient"),
        ("rtx4090_24gb", {"size": 256, "requires_grad": True}, "flash"),
        ("rtx4090_24gb", {"size": 208, "requires_grad": True}, "efficient"),
        ("t4_16gb", {"dtype": FP16}, "efficient"),
        ("t4_16gb", {}, "math"),
        ("t4_16gb", {"dtype": FP32, "size": 65}, "efficient"),
        ("a100_80gb", {"key_heads": 2, "grouped": True}, "flash"),
        ("a100_80gb", {"key_heads": 2, "grouped": True, "mask": True}, "math"),
        ("h100_80gb", {"key_heads": 2, "grouped": True, "mask": True}, "cudnn"),
        ("h100_80gb", {"key_heads": 1}, "math"),  # not asked for as groups: broadcast
        ("h100_80gb", {"key_heads": 3, "grouped": True}, "math"),
    ],
)
def test_the_kernel_is_the_one_that_cuda_chooses(card: str, arguments: dict[str, Any], expected: str) -> None:
    """Each row is one of the conditions of sdp_utils.cpp."""
    assert choose_kernel(CARDS[card], attention_call(**arguments)) == expected


def test_rows_that_are_not_contiguous_have_no_fused_kernel() -> None:
    query = torch.empty(1, 2, 64, 8, dtype=BF16, device="meta").transpose(2, 3)
    assert choose_kernel(CARDS["h100_80gb"], AttentionCall(query, query, query)) == "math"


def test_cudnn_is_left_out_where_results_must_repeat_or_the_environment_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert choose_kernel(CARDS["h100_80gb"], attention_call()) == "flash"
    finally:
        torch.use_deterministic_algorithms(False)
    assert choose_kernel(CARDS["h100_80gb"], attention_call()) == "cudnn"
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    assert choose_kernel(CARDS["h100_80gb"], attention_call()) == "flash"


def test_the_users_word_decides_which_kernels_are_asked_and_in_which_order() -> None:
    card, call = CARDS["h100_80gb"], attention_call()
    with sdpa_kernel(SDPBackend.MATH):
        assert choose_kernel(card, call) == "math"
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION], set_priority=True):
        assert choose_kernel(card, call) == "efficient"
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        assert choose_kernel(CARDS["a100_80gb"], call) == "cudnn"
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No available kernel"):
        choose_kernel(CARDS["t4_16gb"], call)


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
