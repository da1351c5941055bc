"""Which kernel `scaled_dot_product_attention` runs on a card: the first in the order of priority that takes the call.

The order and the conditions are those of native/transformers/cuda/sdp_utils.cpp of torch 2.13. Left out: nested
tensors, FlashAttention 3 as torch's own choice, and heads of 256 on cuDNN, which need a cuDNN above 9.22.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.attention import SDPBackend

if TYPE_CHECKING:
    from memexp.simulate.cards import Card

# What torch 2.13 for CUDA 13 requires (nvidia-cudnn-cu13==9.20.0.48); a CUDA build says its own.
_CUDNN_OF_THE_WHEEL = 92000
_CUDNN_PREFERRED_ABOVE = 91500
_HALVES = (torch.float16, torch.bfloat16)


class AttentionCall(NamedTuple):
    """The arguments that the choice depends on, after autocast. `grouped` is `enable_gqa`."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None = None
    dropout: float = 0.0
    is_causal: bool = False
    grouped: bool = False

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Head sizes of query, key and value."""
        return self.query.shape[-1], self.key.shape[-1], self.value.shape[-1]

    @property
    def trains(self) -> bool:
        return torch.is_grad_enabled() and any(t.requires_grad for t in self[:3])


def choose_kernel(card: "Card", call: AttentionCall) -> str:
    """`cudnn`, `flash`, `efficient` or `math`. Raises torch's own error where all that take the call are disabled."""
    for backend in _priority(card):
        name, is_enabled, takes = _KERNELS[backend]
        if is_enabled() and takes(card, call):
            return name
    raise RuntimeError("No available kernel. Aborting execution.")


def _priority(card: "Card") -> list[SDPBackend]:
    """cuDNN comes first on Hopper and data-centre Blackwell, unless the user has set an order of their own."""
    order = [SDPBackend(number) for number in torch._C._get_sdp_priority_order()]
    order = [backend for backend in order if backend in _KERNELS]
    cudnn_version = torch.backends.cudnn.version() or _CUDNN_OF_THE_WHEEL  # type: ignore[no-untyped-call]
    prefers_cudnn = card.capability[0] in (9, 10) and cudnn_version > _CUDNN_PREFERRED_ABOVE
    prefers_cudnn = prefers_cudnn and os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1"
    if prefers_cudnn and order == list(_KERNELS):
        order.insert(0, order.pop())
    return order


def _is_fusable(call: AttentionCall, takes_groups: bool) -> bool:
    """What every kernel but `math` asks: dense tensors of four dimensions, aligned heads, rows of stride 1."""
    tensors = call[:3]
    if any(tensor.dim() != 4 or 0 in tensor.shape for tensor in tensors):
        return False
    heads = [tensor.shape[1] for tensor in tensors]
    divide_evenly = all(heads[0] % others == 0 for others in heads[1:])
    same_heads = len(set(heads)) == 1 or (call.grouped and takes_groups and divide_evenly)
    rows = [*tensors, call.mask] if call.mask is not None else tensors
    return (
        same_heads
        and len({tensor.shape[0] for tensor in tensors}) == 1
        and all(tensor.stride(-1) == 1 or tensor.shape[-1] == 1 for tensor in rows)
    )


def _takes_cudnn(card: "Card", call: AttentionCall) -> bool:
    query_size, key_size, value_size = call.sizes
    rows, key_rows = call.query.shape[-2], call.key.shape[-2]
    limit = 192 if card.capability[0] in (9, 10) and (query_size, value_size) == (192, 128) else 128
    must_repeat = torch.are_deterministic_algorithms_enabled() and not (
        torch.is_deterministic_algorithms_warn_only_enabled()
    )
    return (
        _is_fusable(call, takes_groups=True)
        and card.capability >= (8, 0)
        and call.query.dtype in _HALVES
        and not must_repeat
        and not (call.mask is not None and call.mask.requires_grad)
        and (call.dropout * 16).is_integer()
        and not (call.dropout and rows == 1)
        and key_rows != 1
        and query_size == key_size
        and max(query_size, value_size) <= limit
        and query_size % 8 == value_size % 8 == 0
    )


def _takes_flash(card: "Card", call: AttentionCall) -> bool:
    head_size = call.sizes[0]
    small_card = card.capability in ((8, 6), (8, 9)) or card.capability[0] == 12
    backward_works = head_size <= 192 or (head_size > 224 and not call.dropout)
    return (
        _is_fusable(call, takes_groups=True)
        and call.key.shape[1] == call.value.shape[1]
        and card.capability >= (8, 0)
        and call.query.dtype in _HALVES
        and call.mask is None
        and len(set(call.sizes)) == 1
        and head_size <= 256
        and (backward_works or not (small_card and call.trains))
        and not (call.is_causal and call.query.shape[-2] != call.key.shape[-2])
    )


def _takes_efficient(card: "Card", call: AttentionCall) -> bool:
    query_size, key_size, value_size = call.sizes
    dtypes = (*_HALVES, torch.float32) if card.capability >= (8, 0) else (torch.float16, torch.float32)
    alignment = 8 if call.query.dtype in _HALVES else 4 if card.capability >= (8, 0) else 1
    return (
        _is_fusable(call, takes_groups=False)
        and call.query.dtype in dtypes
        and query_size == key_size
        and query_size % alignment == value_size % alignment == 0
    )


def _takes_math(card: "Card", call: AttentionCall) -> bool:
    return True


_backends: Any = torch.backends.cuda
# In torch's own order where cuDNN is not preferred.
_KERNELS: dict[SDPBackend, tuple[str, Callable[[], bool], Callable[["Card", AttentionCall], bool]]] = {
    SDPBackend.FLASH_ATTENTION: ("flash", _backends.flash_sdp_enabled, _takes_flash),
    SDPBackend.EFFICIENT_ATTENTION: ("efficient", _backends.mem_efficient_sdp_enabled, _takes_efficient),
    SDPBackend.MATH: ("math", _backends.math_sdp_enabled, _takes_math),
    SDPBackend.CUDNN_ATTENTION: ("cudnn", _backends.cudnn_sdp_enabled, _takes_cudnn),
}
