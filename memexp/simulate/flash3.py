"""The functions of FlashAttention 3 (`flash_attn_interface`), on operators that have its shapes and no kernel.

Forward keeps the arguments, the output and one fp32 number a row; what backward takes beside is in `scratch`. Read
against Dao-AILab/flash-attention, hopper/flash_attn_interface.py and flash_api.cpp of August 2026, on sm90. Left out:
fp8, key-value caches, splits and packed queries, none of which training uses. The operators' namespace of their own
keeps out of the way of the package's; their name is one that TRL's selective checkpointing looks for.
"""

import functools
from typing import Any

import torch
from torch.library import Library
from torch.utils.flop_counter import flop_registry, register_flop_formula

Window = tuple[int, int]
_MAX_HEAD_SIZE = 256
_ENDS = "Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, int max_seqlen_q, int max_seqlen_k, bool is_causal, bool is_local"
_LIBRARIES: list[Library] = []
aten = torch.ops.aten


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> torch.Tensor:
    """Attention over whole rows, [batch, length, heads, head size]."""
    return _attend(q, k, v, None, None, q.shape[1], k.shape[1], causal, window_size)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> torch.Tensor:
    """Attention within each of several sequences in one row, which end at `cu_seqlens`."""
    return _attend(q, k, v, cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k), causal, window_size)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ends_q: torch.Tensor | None,
    ends_k: torch.Tensor | None,
    longest_q: int,
    longest_k: int,
    causal: bool,
    window: Window,
) -> torch.Tensor:
    if q.shape[-1] % 8 or q.shape[-1] > _MAX_HEAD_SIZE:
        raise RuntimeError(
            f"FlashAttention 3 takes head sizes that are multiples of 8 up to {_MAX_HEAD_SIZE}, not {q.shape[-1]}"
        )
    left = window[0] if window[0] < longest_k - 1 else -1
    right = 0 if causal else window[1] if window[1] < longest_q - 1 else -1
    causal = left < 0 and right == 0
    register_operators()
    out: torch.Tensor = _FlashAttention3.apply(  # type: ignore[no-untyped-call]
        q, k, v, ends_q, ends_k, longest_q, longest_k, causal, not causal and max(left, right) >= 0
    )
    return out


class _FlashAttention3(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, ends_q: Any, ends_k: Any, *rest: Any) -> Any:
        q, k, v = (tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (q, k, v))
        out, logsumexp = torch.ops.memexp.flash_attn_3_forward(q, k, v, ends_q, ends_k, *rest)
        ctx.save_for_backward(q, k, v, out, logsumexp, ends_q, ends_k)
        ctx.rest = rest
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        gradient = gradient if gradient.stride(-1) == 1 else gradient.contiguous()
        q, k, v, out, logsumexp, ends_q, ends_k = ctx.saved_tensors
        gradients = torch.ops.memexp.flash_attn_3_backward(gradient, q, k, v, out, logsumexp, ends_q, ends_k, *ctx.rest)
        return (*gradients, *(None,) * 6)


@functools.cache
def register_operators() -> None:
    """Tell torch, once for a process."""
    make: Any = Library  # it has no types
    library = make("memexp", "FRAGMENT")
    _LIBRARIES.append(library)
    library.define(f"flash_attn_3_forward(Tensor query, Tensor key, Tensor value, {_ENDS}) -> (Tensor, Tensor)")
    library.define(
        "flash_attn_3_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, Tensor logsumexp, "
        f"{_ENDS}) -> (Tensor, Tensor, Tensor)"
    )
    library.impl("flash_attn_3_forward", _forward_shapes, "Meta")
    library.impl("flash_attn_3_backward", _backward_shapes, "Meta")
    register_flop_formula(torch.ops.memexp.flash_attn_3_forward, get_raw=True)(_forward_flops)
    register_flop_formula(torch.ops.memexp.flash_attn_3_backward, get_raw=True)(_backward_flops)


def _forward_shapes(q: Any, k: Any, v: Any, ends_q: Any, *_: Any) -> Any:
    heads = q.shape[-2]
    shape = (heads, q.shape[0]) if ends_q is not None else (q.shape[0], heads, q.shape[1])
    return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(shape, dtype=torch.float32)


def _backward_shapes(gradient: Any, q: Any, k: Any, v: Any, *_: Any) -> Any:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _forward_flops(q: Any, k: Any, v: Any, *rest: Any, **kwargs: Any) -> int:
    """As of FlashAttention 2: the products are the same."""
    flops: int = flop_registry[aten._flash_attention_forward](*_heads_first(q, k, v), *rest, **kwargs)
    return flops


def _backward_flops(gradient: Any, q: Any, k: Any, v: Any, out: Any, *rest: Any, **kwargs: Any) -> int:
    tensors = _heads_first(gradient, q, k, v, out)
    flops: int = flop_registry[aten._flash_attention_backward](*tensors, *rest, **kwargs)
    return flops


def _heads_first(*tensors: Any) -> list[Any]:
    return [tensor.transpose(1, 2) if tensor.dim() == 4 else tensor for tensor in tensors]
