"""How long a kernel takes: the larger of its arithmetic over the card's rate and its bytes over the card's bandwidth.

A roofline, with one factor for how much of the peak real kernels reach. Left out: caches, tiles that do not fill the
card, and everything that makes two kernels of the same size differ.
"""

from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from memexp.simulate.cards import Card

# Shares of the data sheet's figure that large kernels reach. With them this stack comes out, in tokens a second, at
# 3,869 for Mistral-7B LoRA and 2,662 for its full fine-tuning on one A100, where fms-acceleration measured 3,324 and
# 3,063. Two LoRA runs on one H100 (NeMo Automodel's documentation: Qwen2.5-7B 14,110, Llama-3-8B 12,473) come out at
# 9,570 and 9,010: Automodel fuses what transformers runs as single ops, so that its rates are not those of this stack.
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
    count = flop_registry.get(func._overloadpacket)
    if count is not None:
        args = [value for value in args if not isinstance(value, torch.dtype)]  # `out_dtype` confuses the counter
        arithmetic = count(*args, **kwargs, out_val=out) / (_rate(tensors, card) * FLOPS_SHARE)
    return max(arithmetic, moved / (card.bytes_per_second * BANDWIDTH_SHARE))


def copy_seconds(nbytes: int, card: Card) -> float:
    """The duration of a copy between host and card."""
    return nbytes / (card.link_bytes_per_second * LINK_SHARE)


def _rate(tensors: list[torch.Tensor], card: Card) -> float:
    dtype = next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float32)
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
