"""What single kernels take beside their outputs: each correction has a switch, and its size a second source.

Sizes of reductions are those that others measured on real cards, and those of torch's own `setReduceConfig`, compiled
from torch 2.13's header and run on the same layouts. All others are by hand from the sources named in the code.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from memexp.simulate import CARDS, SimulatedGPU, prepare
from memexp.simulate.flash import flash_attn_func
from memexp.simulate.flash3 import flash_attn_func as flash_attn_3_func
from memexp.simulate.scratch import SWITCHES, KernelCall, is_memory_known, scratch_bytes

prepare()
aten = torch.ops.aten
BF16, FP32, INT64 = torch.bfloat16, torch.float32, torch.int64
Run = Callable[[], Any]


def call(func: Any, *args: Any, card: str = "h100_80gb", **kwargs: Any) -> KernelCall:
    return KernelCall(func, args, kwargs, func(*args, **kwargs), CARDS[card])


def meta(*shape: int, dtype: torch.dtype = FP32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    ("func", "rows", "published"),
    [
        (aten.max.dim, 2048, 553_648_128),
        (aten.sum.dim_IntList, 2048, 138_412_032),
        (aten.max.dim, 512, 164_626_432),
        (aten.amax.default, 512, 41_156_608),
    ],
)
def test_a_reduction_of_strided_logits_takes_what_was_measured_on_a_card(func: Any, rows: int, published: int) -> None:
    """Sizes from memory snapshots of an H100; the first with its shape, the others with the shapes that give them."""
    logits = meta(10_000, rows).t()
    dims = 1 if func is aten.max.dim else [1]
    assert scratch_bytes(call(func, logits, dims))[0] == published


@pytest.mark.parametrize(
    ("shape", "dims", "card", "expected"),
    [
        ((1024, 1024), [0], "h100_80gb", (8_388_608, 32)),  # published as well
        ((8192, 4096), [0], "h100_80gb", (138_412_032, 128)),
        ((8192, 4096), [0], "a100_80gb", (113_246_208, 128)),
        ((8192, 4096), [0], "rtx4090_24gb", (100_663_296, 128)),
        ((8192, 4096), [0], "t4_16gb", (20_971_520, 128)),
        ((4, 2048, 896), [0, 1], "h100_80gb", (58_720_256, 28)),
        ((1 << 22,), [0], "h100_80gb", (2048, 4)),
        ((4096, 128), [0], "a100_80gb", (4_194_304, 4)),
        ((3001, 1001), [0], "h100_80gb", ()),
        ((64, 2048, 7), [1], "h100_80gb", ()),
    ],
)
@pytest.mark.parametrize("dtype", [FP32, BF16], ids=["fp32", "bf16"])
def test_partial_sums_are_those_of_torchs_own_header(
    shape: tuple[int, ...], dims: list[int], card: str, expected: tuple[int, ...], dtype: torch.dtype
) -> None:
    assert scratch_bytes(call(aten.sum.dim_IntList, meta(*shape, dtype=dtype), dims, card=card)) == expected


def test_a_reduction_beyond_32_bits_falls_into_parts() -> None:
    """2.4 billion numbers: two halves, each in 2,374 blocks of 512 threads that add 256 values each, at 4 bytes."""
    assert scratch_bytes(call(aten.sum.default, meta(4, 1024, 151_936))) == (9496, 4)


def test_a_maximum_of_two_tensors_is_no_reduction() -> None:
    assert scratch_bytes(call(aten.max.other, meta(1 << 22), meta(1 << 22))) == ()


def test_a_sum_of_conditions_is_over_a_copy_in_int64() -> None:
    assert scratch_bytes(call(aten.sum.default, meta(4, 1000, dtype=torch.bool))) == (4 * 1000 * 8,)


def reduction(device: torch.device) -> tuple[Run, int]:
    x = torch.empty(1024, 1024, device=device)
    return lambda: x.sum(0), 8_388_608 + 32


def matmul(device: torch.device) -> tuple[Run, int]:
    x = torch.empty(8, 8, device=device)
    return lambda: x @ x, 32 << 20


def embedding(device: torch.device) -> tuple[Run, int]:
    """4,096 indices of 1,000 rows: in pieces of ten, 409 and one a row; each an index, and a row of sums in fp32."""
    indices = torch.zeros(4096, dtype=INT64, device=device)
    gradient = torch.empty(4096, 64, dtype=BF16, device=device)
    pieces = 409 + 1000
    expected = 3 * 4096 * 8 + 2 * 1000 * 8 + 2 * 8 + pieces * 8 + pieces * 64 * 4
    return lambda: aten.embedding_dense_backward(gradient, indices, 1000, -1, False), expected


def sort(device: torch.device) -> tuple[Run, int]:
    """One row of 5,000: their positions, and a second place for keys and positions."""
    x = torch.empty(5000, device=device)
    return lambda: x.sort(), 5000 * 8 + 5000 * (4 + 8)


def topk(device: torch.device) -> tuple[Run, int]:
    """One row in 196 blocks of 1,024: counts of 256 digits each in 16 bits, and two more; their sum; one value."""
    x = torch.empty(200_000, device=device)
    return lambda: x.topk(10), 196 * (256 * 2 + 2 * 4) + 256 * 4 + 4 + 2 * 4 + 2 * 4


def scan(device: torch.device) -> tuple[Run, int]:
    """A copy in int64, and a state of 16 bytes for each of 3 tiles and of 32 before them."""
    mask = torch.ones(4096, dtype=torch.bool, device=device)
    return lambda: mask.cumsum(0), 4096 * 8 + 35 * 16


def nonzero(device: torch.device) -> tuple[Run, int]:
    mask = torch.zeros(4096, dtype=torch.bool, device=device)
    return lambda: mask.nonzero(), 512 + 512


def index_put(device: torch.device) -> tuple[Run, int]:
    """Positions, a range, both sorted, and cub's second place for both."""
    weight, values = torch.empty(1000, 64, device=device), torch.empty(4096, 64, device=device)
    indices = torch.zeros(4096, dtype=INT64, device=device)
    return lambda: weight.index_put_((indices,), values, accumulate=True), (4 + 2) * 4096 * 8


def multinomial(device: torch.device) -> tuple[Run, int]:
    probabilities = torch.empty(4, 1000, device=device)
    return lambda: probabilities.multinomial(1), 4 * 1000 * 4


def layer_norm(device: torch.device) -> tuple[Run, int]:
    """70,000 rows of 64: 2,188 partial sums of the weight's gradient and of the bias's, then summed in 18 blocks."""
    x, weight = torch.empty(70_000, 64, dtype=BF16, device=device), torch.empty(64, dtype=BF16, device=device)
    moment = torch.empty(70_000, 1, device=device)
    expected = 2 * 2188 * 64 * 2 + 64 * 18 * 16 * 4 * 4 + 4
    return lambda: aten.native_layer_norm_backward(x, x, [64], moment, moment, weight, weight, [True] * 3), expected


def foreach_norm(device: torch.device) -> tuple[Run, int]:
    """The larger of two tensors has four chunks of 65,536."""
    tensors = [torch.empty(3 * 65_536 + 1, device=device), torch.empty(10, device=device)]
    return lambda: torch._foreach_norm(tensors, 2), 2 * 4 * 4


def leaves(device: torch.device, *shape: int) -> list[torch.Tensor]:
    return [torch.empty(shape, dtype=BF16, device=device, requires_grad=True) for _ in range(3)]


def flash(device: torch.device) -> tuple[Run, int]:
    arguments = leaves(device, 2, 512, 4, 64)
    out = flash_attn_func(*arguments, causal=True)
    gradient = torch.empty_like(out)
    return lambda: torch.autograd.grad(out, arguments, gradient), 2 * 512 * 4 * (4 + 64 * 4)


def flash_3(device: torch.device) -> tuple[Run, int]:
    arguments = leaves(device, 2, 512, 4, 64)
    out = flash_attn_3_func(*arguments, causal=True)
    gradient = torch.empty_like(out)
    return lambda: torch.autograd.grad(out, arguments, gradient), 2 * 512 * 4 * (2 * 4 + 64 * 4) + 4 * 4 * 2 * 4


def cudnn(device: torch.device) -> tuple[Run, int]:
    """What the frontend asks for: dq and one sum a row, in fp32. What its plan takes is not known."""
    query, key, value = leaves(device, 2, 4, 512, 64)
    return lambda: F.scaled_dot_product_attention(query, key, value).sum().backward(), 2 * 4 * 512 * (64 + 1) * 4


def efficient(device: torch.device) -> tuple[Run, int]:
    arguments = leaves(device, 2, 4, 512, 64)
    mask = torch.empty(2, 1, 512, 512, dtype=BF16, device=device)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION):
        out = F.scaled_dot_product_attention(*arguments, mask)
    gradient = torch.empty_like(out)
    return lambda: torch.autograd.grad(out, arguments, gradient), 2 * 512 * 4 * (4 + 64 * 4)


CORRECTIONS = {
    "cublas_workspaces": matmul,
    "reductions": reduction,
    "embedding_backward": embedding,
    "sort": sort,
    "topk": topk,
    "scan": scan,
    "nonzero": nonzero,
    "index_put": index_put,
    "multinomial": multinomial,
    "layer_norm_backward": layer_norm,
    "foreach_norm": foreach_norm,
    "flash_backward": flash,
    "flash_3": flash_3,
    "efficient_backward": efficient,
    "cudnn_backward": cudnn,
}


def requested_peak(correction: Callable[[torch.device], tuple[Run, int]]) -> tuple[int, int]:
    """Bytes that were asked for at the peak of the run, beyond those before it; and what is expected of scratch."""
    with SimulatedGPU("h100_80gb") as gpu:
        run, expected = correction(gpu.device)
        before = gpu.memory_stats()["requested_bytes.all.current"]
        gpu.reset_peak_memory_stats()
        run()
        return gpu.memory_stats()["requested_bytes.all.peak"] - before, expected


@pytest.mark.parametrize("switch", SWITCHES)
def test_each_correction_adds_what_its_switch_takes_away(switch: str, scratch_switches: dict[str, bool]) -> None:
    on, expected = requested_peak(CORRECTIONS[switch])
    scratch_switches[switch] = False
    off, _ = requested_peak(CORRECTIONS[switch])
    assert on - off == expected


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4, 4096), 4096 * 8),  # in place
        ((4, 5000), 2 * 20_000 * 8 + 20_000 * 4 + 20_000 * (8 + 8)),  # all rows at once, then by row
        ((200, 5000), 1_000_000 * 8 + 1_000_000 * (4 + 8)),  # each row by itself
    ],
)
def test_a_sort_takes_another_way_by_the_number_and_length_of_rows(shape: tuple[int, int], expected: int) -> None:
    assert sum(scratch_bytes(call(aten.sort.default, meta(*shape)))) == expected


@pytest.mark.parametrize(
    ("shape", "k", "expected"),
    [
        # 64 x 151,936 over 132 x 6 blocks of 256 threads: 48 each, so that 13 blocks share a row.
        ((64, 151_936), 50, 64 * (2 + 2 * 4 + 2 * 4 + 256 * 4) + 64 * 13 * (256 * 2 + 2 * 4)),
        ((20, 19_999), 50, 0),  # a block a row
        ((21, 9_999), 50, 0),
        ((4_096, 128), 8, 0),  # experts of a router
        # More is kept than is sorted in place, and takes more than what selects it.
        ((1, 200_000), 5_000, 5_000 * (8 + 2) + 5_000 * 8 + 5_000 * (2 + 8)),
    ],
)
def test_a_selection_takes_counts_of_digits_where_several_blocks_share_a_row(
    shape: tuple[int, int], k: int, expected: int
) -> None:
    """By hand, from `get_items_per_thread` and `mbtopk::launch`, on an H100."""
    assert sum(scratch_bytes(call(aten.topk.default, meta(*shape, dtype=BF16), k))) == expected


def test_a_few_indices_are_not_sorted() -> None:
    gradient, indices = meta(3072, 64), meta(3072, dtype=INT64)
    assert scratch_bytes(call(aten.embedding_dense_backward.default, gradient, indices, 1000, -1, False)) == ()


def test_an_op_is_named_only_where_what_cub_alone_knows_can_show() -> None:
    """The caching allocator itself lets a block be larger by a MiB."""
    assert is_memory_known(call(aten.sort.default, meta(50_000)))
    assert not is_memory_known(call(aten.sort.default, meta(500_000)))
    assert is_memory_known(call(aten.sort.default, meta(10_000, 4096)))
