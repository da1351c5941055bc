"""`scaled_dot_product_attention` as CUDA would run it: how the chosen kernel is called, what it keeps for backward.

The kernels are torch's own ops, with their own autograd formulas, so that what is saved is what torch saves. How they
are called is native/transformers/attention.cpp of torch 2.13. Left out: nested tensors.
"""

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from memexp.simulate.attention_choice import AttentionCall, choose_kernel
from memexp.simulate.autocast import cast_tensor
from memexp.simulate.tensors import DEVICE_TYPE, is_simulated

if TYPE_CHECKING:
    from memexp.simulate.cards import Card

_sdpa = F.scaled_dot_product_attention
aten = torch.ops.aten


def attend(
    card: "Card",
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """`scaled_dot_product_attention` on the card; on other devices torch's own."""
    if not is_simulated(query):
        return _sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if torch.is_autocast_enabled(DEVICE_TYPE):
        dtype = torch.get_autocast_dtype(DEVICE_TYPE)
        query, key, value = (cast_tensor(tensor, dtype) for tensor in (query, key, value))
        attn_mask = None if attn_mask is None else cast_tensor(attn_mask, dtype)
    call = AttentionCall(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
    kernel = choose_kernel(card, call)
    if kernel == "math":
        return _math(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    mask = _additive(attn_mask, query)
    if kernel == "flash":
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if kernel == "cudnn":
        out: Any = aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, call.trains, dropout_p, is_causal, False, scale=scale
        )
        return out[0]  # type: ignore[no-any-return]
    out = aten._scaled_dot_product_efficient_attention(
        query, key, value, _padded(mask, query, key), call.trains, dropout_p, is_causal, scale=scale
    )
    return out[0]  # type: ignore[no-any-return]


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: float, is_causal: bool, scale: float | None
) -> torch.Tensor:
    """Head sizes that are no multiple of 8 are padded, as `pad_last_dim` does."""
    head_size = query.shape[-1]
    if missing := -head_size % 8:
        query, key, value = (F.pad(tensor, (0, missing)) for tensor in (query, key, value))
        scale = head_size**-0.5 if scale is None else scale
    out = aten._scaled_dot_product_flash_attention(query, key, value, dropout, is_causal, False, scale=scale)[0]
    return out[..., :head_size] if missing else out  # type: ignore[no-any-return]


def _math(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    out = aten._scaled_dot_product_attention_math(
        query, key, value, mask, dropout, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return out[0]  # type: ignore[no-any-return]


def _additive(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """`convert_boolean_attn_mask`: the kernels add their mask, so that a bool one becomes one of the query's dtype."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))


def _padded(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
    """`pad_bias`: rows of the mask are aligned to 16 elements. Then one mask does for all heads, by a stride of 0."""
    if mask is None:
        return None
    if missing := -mask.shape[-1] % 16:
        mask = F.pad(mask, (0, missing))[..., : mask.shape[-1]]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
