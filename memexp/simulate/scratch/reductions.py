"""What a reduction takes where several blocks of threads share an output: their partial results, and semaphores.

A port of `setReduceConfig` and of the allocations of `gpu_reduce_kernel` (ATen/native/cuda/Reduce.cuh), written anew.
It is no small matter: the weight's gradient of one RMS norm of 4,096 channels takes 138 MB on an H100.
"""

import math
from typing import NamedTuple

import torch

from memexp.simulate.cards import Card
from memexp.simulate.scratch.call import KernelCall
from memexp.simulate.scratch.layout import ReductionLayout, reduction_layout

_WARP = 32
_MAX_THREADS = 512
_MIN_VALUES_PER_THREAD, _MAX_VALUES_PER_THREAD = 16, 256
# Resident threads of a multiprocessor, by compute capability: CUDA C++ programming guide, technical specifications.
_THREADS_PER_MULTIPROCESSOR = {(7, 5): 1024, (8, 6): 1536, (8, 9): 1536, (12, 0): 1536}
_INDEXED_BYTES = 16  # a value and its position: a pair with an int64
_HALVES = (torch.float16, torch.bfloat16)


class Kernel(NamedTuple):
    """How a kind of reduction is compiled: bytes of one partial result, values that a thread loads at once, and whether
    the partial result may be kept in the output."""

    partial_bytes: int
    vector: int
    fits_output: bool


def reduction_bytes(layout: ReductionLayout, kernel: Kernel, itemsize: int, card: Card) -> tuple[int, int]:
    """Bytes of partial results and of semaphores, both 0 where one block makes an output alone."""
    launch = _Launch(layout, kernel, itemsize)
    blocks = launch.blocks_per_output(card)
    if blocks <= 1:
        return 0, 0
    partial = kernel.partial_bytes * layout.outputs * blocks
    if not launch.reduces_fastest:
        partial *= launch.block_width * launch.output_vector
    return partial, 4 * launch.grid


class _Launch:
    """How the threads of a block are laid out over the outputs and the inputs of each."""

    def __init__(self, layout: ReductionLayout, kernel: Kernel, itemsize: int) -> None:
        strides, reduced = layout.input_strides, layout.reduced_dims
        everything = reduced == len(layout.shape)
        self.reduces_fastest = everything or strides[0] < strides[reduced]
        fastest_stride = itemsize if not strides else strides[0 if self.reduces_fastest else reduced]
        width, height = layout.inputs_per_output, layout.outputs
        if not self.reduces_fastest:
            width, height = height, width
        self.output_vector = 1
        if fastest_stride == itemsize and self.reduces_fastest and width >= 128 and reduced == 1:
            width //= kernel.vector
        elif fastest_stride == itemsize and not self.reduces_fastest:
            self.output_vector = _output_vector(layout, itemsize)
            width //= self.output_vector
        self.block_width, self.block_height = _block(width, height, _MAX_THREADS // self.output_vector)
        inputs_at_once = self.block_width if self.reduces_fastest else 1
        outputs_at_once = 1 if self.reduces_fastest else self.block_width
        threshold = min(self.block_height * 16, _MAX_VALUES_PER_THREAD)
        self.splits_input = math.ceil(layout.inputs_per_output / inputs_at_once) >= threshold
        if self.splits_input:
            inputs_at_once *= self.block_height
        else:
            outputs_at_once *= self.block_height
        self.values_per_thread = math.ceil(layout.inputs_per_output / inputs_at_once)
        self.grid = math.ceil(layout.outputs // self.output_vector / outputs_at_once)

    def blocks_per_output(self, card: Card) -> int:
        """More than one only where threads have much to do and there are too few outputs to fill the card."""
        resident = _THREADS_PER_MULTIPROCESSOR.get(card.capability, 2048)
        wanted = card.multiprocessors * (resident // (self.block_width * self.block_height))
        if not self.splits_input or self.values_per_thread < _MAX_VALUES_PER_THREAD or self.grid > wanted:
            return 1
        to_fill = math.ceil(wanted / self.grid)
        most = math.ceil(self.values_per_thread / _MIN_VALUES_PER_THREAD)
        least = math.ceil(self.values_per_thread / _MAX_VALUES_PER_THREAD)
        return max(min(to_fill, most), least)


def _output_vector(layout: ReductionLayout, itemsize: int) -> int:
    """Neighbouring outputs that a thread makes at once: 4, 2 or 1, as address, size and strides allow."""
    dim = layout.reduced_dims
    others = [stride // itemsize for index, stride in enumerate(layout.input_strides) if index != dim]
    return math.gcd(4, layout.offset // itemsize, layout.shape[dim], *others)


def _block(width: int, height: int, threads: int) -> tuple[int, int]:
    width, height = (_power_of_two(min(size, threads)) for size in (width, height))
    height = min(height, threads // min(width, _WARP))
    return min(width, threads // height), height


def _power_of_two(value: int) -> int:
    """The largest that is not above `value`."""
    return 1 << max(value, 1).bit_length() - 1


def _sum(call: KernelCall) -> tuple[int, ...]:
    """Sums, means and norms: halves are read as they are and added in fp32, all else is cast to the result's dtype."""
    source, out = call.first, call.out
    reads_halves = source.dtype in _HALVES and out.dtype in (source.dtype, torch.float32)
    dtype = source.dtype if reads_halves else out.dtype
    wide = dtype in _HALVES and call.name in ("sum", "mean")
    fits = not (dtype in _HALVES and dtype == out.dtype)
    kernel = Kernel(max(dtype.itemsize, 4) if dtype in _HALVES else dtype.itemsize, 8 if wide else 4, fits)
    cast = 0 if dtype == source.dtype else source.numel() * dtype.itemsize
    return cast, *_shared(call, [out], kernel, dtype)


def _extreme(call: KernelCall) -> tuple[int, ...]:
    """The largest or smallest values, of a dimension with their positions. Of two tensors it is no reduction."""
    outputs = list(call.out) if isinstance(call.out, list | tuple) else [call.out]
    if call["other"] is not None:
        return ()
    dtype = call.first.dtype
    fits = len(outputs) == 1 and dtype not in _HALVES
    kernel = Kernel(_INDEXED_BYTES if len(outputs) > 1 else dtype.itemsize, 4, fits)
    return _shared(call, outputs, kernel, dtype)


def _position(call: KernelCall) -> tuple[int, ...]:
    return _shared(call, [call.out], Kernel(_INDEXED_BYTES, 4, False), call.first.dtype)


def _logic(call: KernelCall) -> tuple[int, ...]:
    return _shared(call, [call.out], Kernel(1, 4, True), call.first.dtype)


def _moments(call: KernelCall) -> tuple[int, ...]:
    """Welford's: a mean, a sum of squares and two counts."""
    outputs = list(call.out) if isinstance(call.out, list | tuple) else [call.out]
    dtype = call.first.dtype
    return _shared(call, outputs, Kernel(32 if dtype == torch.float64 else 16, 2, False), dtype)


def _shared(call: KernelCall, outputs: list[torch.Tensor], kernel: Kernel, dtype: torch.dtype) -> tuple[int, int, int]:
    """The largest of the kernels that the reduction falls into, and what holds their results between them."""
    source = call.first
    if source.numel() == 0 or not isinstance(outputs[0], torch.Tensor):
        return 0, 0, 0
    dims = call["dim"]
    layout = reduction_layout(source, outputs, [dims] if isinstance(dims, int) else dims or (), dtype.itemsize)
    parts = list(layout.parts())
    largest = max(reduction_bytes(part, kernel, dtype.itemsize, call.card) for part in parts)
    between = 0
    if len(parts) > 1 and not kernel.fits_output and outputs[0].element_size() < kernel.partial_bytes:
        between = outputs[0].numel() * kernel.partial_bytes
    return between, *largest


SCRATCH = {
    **dict.fromkeys(("sum", "nansum", "mean", "prod", "linalg_vector_norm", "norm"), ("reductions", _sum)),
    **dict.fromkeys(("max", "min", "amax", "amin"), ("reductions", _extreme)),
    **dict.fromkeys(("argmax", "argmin"), ("reductions", _position)),
    **dict.fromkeys(("all", "any"), ("reductions", _logic)),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), ("reductions", _moments)),
}
