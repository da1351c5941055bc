"""How long a kernel takes: the larger of its arithmetic over the card's rate and its bytes over the card's bandwidth.

A roofline, with a share of the data sheet's peak for each kind of kernel. Left out: caches, tiles that do not fill the
card, clocks that fall under load, and everything else that makes two kernels of the same size differ.
"""

from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from memexp.simulate.cards import Card

# Matrix products. Calibrated, the only figure here that is: on two runs of NeMo Automodel on one H100, rebuilt in
# `tools/rebuilt.py` (Qwen2.5-7B and Llama-3-8B with LoRA, 14,110 and 12,473 tokens a second). The best that anyone
# measured for the best shape is higher, as it must be: 0.80 on H100, 0.87 on A100 (stas00/ml-engineering,
# compute/accelerator, "Maximum Achievable Matmul FLOPS").
FLOPS_SHARE = 0.69
# Attention, forward and backward. On Hopper: FlashAttention-3's paper (arXiv 2407.08608, figures 5 and 6), for heads of
# 128 and 4,096 rows on an H100: FlashAttention-2 319 and 310 TFLOPS, cuDNN 518 and 499, of 989. Elsewhere
# FlashAttention-2's own paper (arXiv 2307.08691): up to 73% and 63% on an A100. The memory-efficient kernel is taken
# for the first FlashAttention, of which that paper says 25 to 40%.
_ON_HOPPER = {"flash": (0.32, 0.31), "cudnn": (0.52, 0.50)}
_ATTENTION = {"flash": (0.73, 0.63), "cudnn": (0.73, 0.63), "efficient": (0.33, 0.33)}
# Bytes. An assumption: copies reach a little more, kernels with strides less.
BANDWIDTH_SHARE = 0.85
# PCIe. 55.06 of 63.0 GB/s, nvbandwidth on an H200 (stas00/ml-engineering, network).
LINK_SHARE = 0.87
LAUNCH_SECONDS = 6e-6  # host time to issue one op from Python; measured figures on current machines are 5 to 10


def seconds_of(func: Any, args: Any, kwargs: dict[str, Any], out: Any, card: Card) -> float:
    """The duration of one op on meta tensors."""
    tensors = list(_tensors((args, tuple(kwargs.values()))))
    moved = sum(_bytes(tensor) for tensor in tensors)
    known = {tensor.untyped_storage()._cdata for tensor in tensors}
    moved += sum(_bytes(tensor) for tensor in _tensors(out) if tensor.untyped_storage()._cdata not in known)
    arithmetic = 0.0
    if func._overloadpacket in flop_registry:
        arithmetic = _flops(func, args, kwargs, out) / (_rate(tensors, card) * flops_share(func, card))
    return max(arithmetic, moved / (card.bytes_per_second * BANDWIDTH_SHARE))


def flops_share(func: Any, card: Card) -> float:
    """How much of the card's peak this op's kernel reaches."""
    name = func._overloadpacket.__name__
    if "attention" not in name:
        return FLOPS_SHARE
    shares = {**_ATTENTION, **(_ON_HOPPER if card.capability[0] == 9 else {})}
    kernel = next((kernel for kernel in shares if kernel in name), "flash")
    return shares[kernel]["backward" in name]


def copy_seconds(nbytes: int, card: Card) -> float:
    """The duration of a copy between host and card."""
    return nbytes / (card.link_bytes_per_second * LINK_SHARE)


def _flops(func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> float:
    """As torch counts, put right in three places; sequences that share a row all count as the longest of them."""
    counted = [value for value in args if not isinstance(value, torch.dtype)]  # `out_dtype` confuses the counter
    if func._overloadpacket in _ROWS_FIRST:
        counted = [_heads_first(value) for value in counted]
    flops: float = flop_registry[func._overloadpacket](*counted, **kwargs, out_val=out)
    return flops / 2 if _is_causal(func, args, kwargs) else flops  # kernels skip what a causal mask hides


_ROWS_FIRST = (torch.ops.aten._flash_attention_forward, torch.ops.aten._flash_attention_backward)


def _heads_first(value: Any) -> Any:
    """The counter takes [batch, heads, rows, size] of four dimensions; these kernels have the rows before the heads."""
    return value.transpose(1, 2) if isinstance(value, torch.Tensor) and value.dim() == 4 else value


def _is_causal(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    for index, argument in enumerate(func._schema.arguments):
        if argument.name == "is_causal":
            return bool(args[index] if index < len(args) else kwargs.get("is_causal", argument.default_value))
    return False


def _rate(tensors: list[torch.Tensor], card: Card) -> float:
    """By the factors' dtype: a product of halves that adds to fp32 runs at the rate of halves."""
    dtypes = [tensor.dtype for tensor in tensors if tensor.is_floating_point()]
    dtype = min(dtypes, key=lambda dtype: dtype.itemsize, default=torch.float32)
    if dtype == torch.bfloat16:
        return card.bfloat16_flops
    if dtype == torch.float16:
        return card.half_flops
    return card.tf32_flops if torch.get_float32_matmul_precision() != "highest" else card.float32_flops


def _tensors(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _bytes(tensor: torch.Tensor) -> int:
    """Bytes read or written: no more than there are, where a stride of 0 repeats them."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
