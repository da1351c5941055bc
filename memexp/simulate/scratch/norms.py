"""Partial sums of the norms: of layers backward, and of lists of gradients."""

import math

import torch

from memexp.simulate.scratch.call import KernelCall
from memexp.simulate.scratch.layout import reduction_layout
from memexp.simulate.scratch.reductions import Kernel, reduction_bytes

_CHUNK = 65536  # numbers of one tensor that a block of a multi-tensor kernel takes


def _weight_gradients(call: KernelCall) -> tuple[int, ...]:
    """ATen/native/cuda/layer_norm_kernel.cu: of many short rows, partial sums of 32 rows each, which are then summed.

    The weight's and the bias's partial sums live together. Otherwise a block has a column for itself.
    """
    source, weight = call["input"], call["weight"]
    columns = math.prod(call["normalized_shape"])
    rows = source.numel() // max(columns, 1)
    if weight is None or rows <= 64 * 1024 or columns // 32 >= call.card.multiprocessors // 2:
        return ()
    partial_rows = min(32768 // math.ceil(columns / 32), math.ceil(rows / 32))
    wanted = sum(bool(wants) for wants in call["output_mask"][1:])
    shape, dtype = (partial_rows, columns), weight.dtype
    partial = torch.empty(shape, dtype=dtype, device="meta")
    layout = reduction_layout(partial, [partial[0]], [0], dtype.itemsize)
    final = reduction_bytes(layout, Kernel(max(dtype.itemsize, 4), 4, True), dtype.itemsize, call.card)
    return (*(partial.numel() * dtype.itemsize,) * wanted, *final)


def _foreach_norm(call: KernelCall) -> tuple[int, ...]:
    """ATen/native/cuda/ForeachReduceOp.cu: a partial norm for each chunk that the largest has, of every tensor."""
    tensors, order = call.first, float(call["ord"])
    if order not in (1.0, 2.0, math.inf) or len({tensor.dtype for tensor in tensors}) > 1:
        return ()
    chunks = math.ceil(max(tensor.numel() for tensor in tensors) / _CHUNK)
    return (len(tensors) * chunks * max((call["dtype"] or tensors[0].dtype).itemsize, 4),)


def _foreach_max(call: KernelCall) -> tuple[int, ...]:
    tensors = call.first
    chunks = math.ceil(max(tensor.numel() for tensor in tensors) / _CHUNK)
    return (len(tensors) * chunks * tensors[0].element_size(),)


SCRATCH = {
    "native_layer_norm_backward": ("layer_norm_backward", _weight_gradients),
    "_fused_rms_norm_backward": ("layer_norm_backward", _weight_gradients),
    "_foreach_norm": ("foreach_norm", _foreach_norm),
    "_foreach_max": ("foreach_norm", _foreach_max),
}
