"""How long a kernel takes: the larger of its arithmetic over the card's rate and its bytes over the card's bandwidth.

A roofline, with one factor for how much of the peak real kernels reach. Left out: caches, tiles that do not fill the
card, and everything that makes two kernels of the same size differ.
"""

from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from memexp.simulate.cards import Card

# Shares of the data sheet's figure that large kernels reach. With them this stack comes out, in tokens a second, at
# 3,838 for Mistral-7B LoRA and 3,208 for its full fine-tuning on one A100, where fms-acceleration measured 3,324 and
# 3,063. Two LoRA runs on one H100 (NeMo Automodel's documentation: Qwen2.5-7B 14,110, Llama-3-8B 12,473) come out at
# 11,521 and 10,528: Automodel fuses what transformers runs as single ops, so that its rates are not those of this
# stack. `make published` prints them anew.
FLOPS_SHARE = 0.72
BANDWIDTH_SHARE = 0.85
LINK_SHARE = 0.80
LAUNCH_SECONDS = 6e-6  # host time to issue one op from Python; measured figures on current machines are 5 to 10


def seconds_of(func: Any, args: Any, kwargs: dict[str, Any], out: Any, card: Card) -> float:
    """The duration of one op on meta tensors."""
    tensors = list(_tensors((args, tuple(kwargs.values()))))
    moved = sum(_bytes(tensor) for tensor in tensors)
    known = {tensor.untyped_storage()._cdata for tensor in tensors}
    moved += sum(_bytes(tensor) for tensor in _tensors(out) if tensor.untyped_storage()._cdata not in known)
    arithmetic = 0.0
    if func._overloadpacket in flop_registry:
        arithmetic = _flops(func, args, kwargs, out) / (_rate(tensors, card) * FLOPS_SHARE)
    return max(arithmetic, moved / (card.bytes_per_second * BANDWIDTH_SHARE))


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
