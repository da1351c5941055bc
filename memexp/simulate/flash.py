"""The functions of the flash-attn package, as torch's own copies of the same kernels.

`flash_attn_func` takes [batch, length, heads, head size]; `flash_attn_varlen_func` takes all sequences in one row and
where each ends. Read against flash-attn 2.8 (flash_attn_interface.py) and torch 2.13.
"""

from typing import Any

import torch
import torch.nn.functional as F

Window = tuple[int, int]
aten = torch.ops.aten


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> torch.Tensor:
    """Attention over whole rows."""
    lengths = (None, None, q.shape[1], k.shape[1])
    return _attend(q, k, v, lengths, dropout_p, softmax_scale, causal, window_size)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> torch.Tensor:
    """Attention within each of several sequences."""
    lengths = (cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k))
    return _attend(q, k, v, lengths, dropout_p, softmax_scale, causal, window_size)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lengths: tuple[Any, Any, int, int],
    dropout: float,
    scale: float | None,
    causal: bool,
    window: Window,
) -> torch.Tensor:
    head_size = q.shape[-1]
    scale = head_size**-0.5 if scale is None else scale
    if missing := -head_size % 8:
        q, k, v = (F.pad(tensor, (0, missing)) for tensor in (q, k, v))
    q, k, v = (tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (q, k, v))
    sides = {
        name: side for name, side in zip(("window_size_left", "window_size_right"), window, strict=True) if side >= 0
    }
    out: torch.Tensor = aten._flash_attention_forward(q, k, v, *lengths, dropout, causal, False, scale=scale, **sides)[
        0
    ]
    return out[..., :head_size] if missing else out
