"""Memory that CUDA's kernels take beside their outputs, which no tensor shows.

Each correction has a switch of its own: `SWITCHES["embedding_backward"] = False` shows what it is worth. Sizes are
functions of shapes and dtypes alone, read in the named sources. What is missing is named by `is_memory_known`.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from memexp.simulate.cards import Card

SWITCHES = {
    "cublas_workspaces": True,
    "flash_backward": True,
    "efficient_backward": True,
    "embedding_backward": True,
    "nonzero": True,
    "reductions": True,
}

_MATMULS = frozenset(
    {
        "mm",
        "addmm",
        "addmm_",
        "bmm",
        "baddbmm",
        "baddbmm_",
        "addmv",
        "addmv_",
        "mv",
        "dot",
        "_scaled_mm",
        "_addmm_activation",
    }
)
# Ops of which part of the memory is not modelled: radix sorts and the plans of cuDNN.
_PARTLY_UNKNOWN = frozenset(
    {
        "sort",
        "topk",
        "argsort",
        "unique",
        "_unique2",
        "unique_consecutive",
        "unique_dim",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_cudnn_attention_backward",
        "convolution_backward",
        "cudnn_convolution",
    }
)
_KNOWN_NAMESPACES = ("aten", "prims", "memexp")

Scratch = Callable[..., tuple[int, ...]]
_functions: dict[str, tuple[str, Scratch]] = {}


def scratch_bytes(func: Any, args: Any, kwargs: dict[str, Any], out: Any, card: Card) -> tuple[int, ...]:
    """The blocks that `func` takes while it runs on these meta tensors, all at once."""
    switch, function = _functions.get(func._overloadpacket.__name__, (None, None))
    if function is None or not SWITCHES[str(switch)]:
        return ()
    return tuple(size for size in function(*args, **kwargs, out=out, card=card) if size)


def takes_workspace(func: Any) -> bool:
    """Whether the op runs on cuBLAS, whose handle keeps a workspace for each thread and stream."""
    return SWITCHES["cublas_workspaces"] and func._overloadpacket.__name__ in _MATMULS and func.namespace == "aten"


def is_memory_known(func: Any) -> bool:
    """Whether all that this op takes on a GPU is modelled. Operators of other libraries are not known."""
    return func.namespace in _KNOWN_NAMESPACES and func._overloadpacket.__name__ not in _PARTLY_UNKNOWN


def _scratch(switch: str, *names: str) -> Callable[[Scratch], Scratch]:
    def register(function: Scratch) -> Scratch:
        _functions.update(dict.fromkeys(names, (switch, function)))
        return function

    return register


def _round_up(value: int, multiple: int) -> int:
    return math.ceil(value / multiple) * multiple


def flash_backward_bytes(rows: int, heads: int, key_rows: int, key_heads: int, head_size: int) -> tuple[int, ...]:
    """csrc/flash_attn/flash_api.cpp, `mha_bwd`: softmax_d and dq_accum in fp32, and dk and dv before groups are summed.

    `rows` counts the queries of all sequences, each sequence rounded up to 128.
    """
    rounded_size = _round_up(head_size, 32 if head_size <= 128 else 64)
    expanded = 0 if heads == key_heads else key_rows * heads * head_size * 2
    return rows * heads * 4, rows * heads * rounded_size * 4, expanded, expanded


@_scratch("flash_backward", "_scaled_dot_product_flash_attention_backward")
def _flash_backward(grad: Any, query: Any, key: Any, *_: Any, out: Any, card: Card, **__: Any) -> tuple[int, ...]:
    batch, heads, length, head_size = query.shape
    rows = batch * _round_up(length, 128)
    return flash_backward_bytes(rows, heads, batch * key.shape[2], key.shape[1], head_size)


@_scratch("flash_backward", "_flash_attention_backward")
def _flash_package_backward(
    grad: Any, query: Any, key: Any, value: Any, o: Any, lse: Any, ends: Any, *_: Any, out: Any, card: Card, **__: Any
) -> tuple[int, ...]:
    """The same kernel on [batch, length, heads, size], or on one row of sequences with room for 128 more each."""
    heads, head_size = query.shape[-2:]
    if ends is None:
        rows = query.shape[0] * _round_up(query.shape[1], 128)
    else:
        rows = query.shape[0] + 128 * (ends.shape[0] - 1)
    key_rows = key.shape[0] * key.shape[1] if ends is None else key.shape[0]
    return flash_backward_bytes(rows, heads, key_rows, key.shape[-2], head_size)


@_scratch("efficient_backward", "_scaled_dot_product_efficient_attention_backward")
def _efficient_backward(grad: Any, query: Any, key: Any, *_: Any, out: Any, card: Card, **__: Any) -> tuple[int, ...]:
    """native/transformers/cuda/attention_backward.cu: delta in fp32, and the workspace that accumulates in fp32."""
    batch, heads, length, head_size = query.shape
    rows = batch * heads * _round_up(length, 32)
    accumulator = rows * head_size * 4 if query.element_size() == 2 else 0
    return rows * 4, accumulator


@_scratch("embedding_backward", "embedding_dense_backward")
def _embedding_backward(
    grad: Any, indices: Any, rows: int, padding: int, scale: bool, *, out: Any, card: Card
) -> tuple[int, ...]:
    """native/cuda/EmbeddingBackwardKernel.cu: above 3,072 indices they are sorted, and rows are summed in fp32."""
    count = indices.numel()
    if count <= 3072 and not scale:
        return ()
    index_bytes = count * indices.element_size()
    accumulated = count * grad.shape[-1] * max(grad.element_size(), 4)
    return (*(index_bytes,) * 6, 512, 512, accumulated)


@_scratch("nonzero", "nonzero")
def _nonzero(condition: Any, *, out: Any, card: Card) -> tuple[int, ...]:
    """native/cuda/Nonzero.cu: one count and the scan's temporary storage."""
    return 512, _round_up(condition.numel() // 256 + 1, 512)


@_scratch("reductions", "sum", "mean", "amax", "amin", "max", "min", "linalg_vector_norm", "all", "any", "norm")
def _reduction(self: Any, *args: Any, out: Any, card: Card, **_: Any) -> tuple[int, ...]:
    """native/cuda/Reduce.cuh, for a reduction to one value: partial results of each block, and a semaphore.

    Blocks of a reduction to few values are bounded by the card's multiprocessors. Reductions along one dimension of a
    strided layout, which can take much more, are not modelled.
    """
    outputs = [value for value in (out if isinstance(out, list | tuple) else (out,)) if isinstance(value, torch.Tensor)]
    if not outputs or outputs[0].numel() != 1 or self.numel() < 1 << 16:
        return ()
    blocks = min(math.ceil(self.numel() / (512 * 4 * 4)), card.multiprocessors * 4)
    return blocks * 8, 4
