"""What kernels take that sort, scan or scatter: index buffers of ATen, and the temporary storage of cub.

Cub says of its storage only that a sort needs about as much as it sorts, and a scan next to nothing. What rests on that
is in `GUESSED`.
"""

import math

import torch

from memexp.simulate.scratch.call import KernelCall

_INDEX = 8
_SMALL_SORT = 4096  # ATen/native/cuda/Sort.h: up to here a bitonic sort works in place
_ROWS_PER_THREAD = 10  # ATen/native/cuda/EmbeddingBackwardKernel.cu
_SCAN_TILE = 1920


def _sort(call: KernelCall) -> tuple[int, ...]:
    """ATen/native/cuda/Sort.cpp and SortStable.cu."""
    source, dim = call.first, call["dim"]
    if source.dim() == 0 or source.numel() == 0:
        return ()
    count, dim = source.numel(), dim % source.dim()
    length = source.shape[dim]
    if length <= _SMALL_SORT:
        return (length * _INDEX,)
    copies = () if source.stride(dim) == 1 else (count * source.element_size(),) * 2 + (count * _INDEX,)
    segments = count // length
    if segments == 1 or length >= 1_000_000:
        return (*copies, length * _INDEX, _sort_bytes(length, source.element_size()))
    if segments < 128:
        return (*copies, count * _INDEX, count * _INDEX, count * source.element_size(), _sort_bytes(count, 8))
    return (*copies, count * _INDEX, _sort_bytes(count, source.element_size()))


def _topk(call: KernelCall) -> tuple[int, ...]:
    """ATen/native/cuda/TensorTopK.cpp: the values in one piece, and a whole sort of few and very long slices."""
    source = call.first
    copy = 0 if source.is_contiguous() else source.numel() * source.element_size()
    if not _topk_sorts(call):
        return (copy,)
    count = source.numel()
    return copy, count * source.element_size(), count * _INDEX, *_sort(call)


def _topk_sorts(call: KernelCall) -> bool:
    source = call.first
    length = source.shape[call["dim"]] if source.dim() else 1
    return length >= 100_000 and source.numel() // length <= 10


def _scan(call: KernelCall) -> tuple[int, ...]:
    """ATen/native/cuda/ScanKernels.cpp: a cast to the result's dtype, and a state for each tile of a single row."""
    source, out = call.first, call.out
    cast = 0 if source.dtype == out.dtype else source.numel() * out.element_size()
    row = source.dim() and source.numel() == source.shape[call["dim"]]
    return cast, (math.ceil(source.numel() / _SCAN_TILE) + 32) * max(8, 2 * out.element_size()) if row else 0


def _nonzero(call: KernelCall) -> tuple[int, ...]:
    """ATen/native/cuda/Nonzero.cu: one count and the scan's temporary storage."""
    return 512, math.ceil((call.first.numel() // 256 + 1) / 512) * 512


def _embedding_backward(call: KernelCall) -> tuple[int, ...]:
    """ATen/native/cuda/EmbeddingBackwardKernel.cu: above 3,072 indices they are sorted, and rows are summed in fp32.

    A row is summed in pieces of ten: at most a tenth of the indices, and one more for each row that there is.
    """
    gradient, indices = call["grad_output"], call["indices"]
    count = indices.numel()
    if count <= 3072 and not call["scale_grad_by_freq"]:
        return ()
    size = indices.element_size()
    segments = min(count, call["num_weights"])
    pieces = count // _ROWS_PER_THREAD + segments
    sums = pieces * gradient.shape[-1] * max(gradient.element_size(), 4)
    counted = (count * size,) if call["scale_grad_by_freq"] else ()
    return (*(count * size,) * 3, *counted, 8, *(segments * size,) * 2, 8, pieces * size, sums)


def _index_put(call: KernelCall) -> tuple[int, ...]:
    """ATen/native/cuda/Indexing.cu, where values add up: positions, a range, both sorted, and a copy of the values."""
    if not call["accumulate"]:
        return ()
    count, values = _positions(call), call["values"]
    written = count * _slice_size(call)
    copied = 0 if values.is_contiguous() and values.numel() == written else written * values.element_size()
    return (copied, *(count * _INDEX,) * 4, _sort_bytes(count, _INDEX))


def _positions(call: KernelCall) -> int:
    indices = [index for index in call["indices"] if index is not None]
    return math.prod(torch.broadcast_shapes(*(index.shape for index in indices))) if indices else 0  # type: ignore[no-untyped-call]


def _slice_size(call: KernelCall) -> int:
    whole = [size for size, index in zip(call.first.shape, call["indices"], strict=False) if index is None]
    return math.prod([*whole, *call.first.shape[len(call["indices"]) :]])


def _multinomial(call: KernelCall) -> tuple[int, ...]:
    """ATen/native/Distributions.cpp: without replacement, or of one sample, a random number for each probability."""
    probabilities = call.first
    if call["replacement"] and call["num_samples"] > 1:
        return (probabilities.numel() * probabilities.element_size(),) * 2  # normalised, and summed up
    return (probabilities.numel() * probabilities.element_size(),)


def _sort_bytes(count: int, key_bytes: int) -> int:
    """Cub's radix sort of keys and positions, out of place: once more of both."""
    return count * (key_bytes + _INDEX)


def _guessed_sort(call: KernelCall) -> int:
    source = call.first
    length = source.shape[call["dim"]] if source.dim() else 0
    return 0 if length <= _SMALL_SORT else _sort_bytes(source.numel(), source.element_size())


def _guessed_topk(call: KernelCall) -> int:
    """Of long slices the kernel counts digits in several blocks, whose number is tuned by card."""
    return call.first.numel() * call.first.element_size() if call.first.numel() > 1 << 20 else 0


def _guessed_index_put(call: KernelCall) -> int:
    return _sort_bytes(_positions(call), _INDEX) if call["accumulate"] else 0


def _guessed_unique(call: KernelCall) -> int:
    return _sort_bytes(call.first.numel(), call.first.element_size())


# Bytes of which only cub knows: an upper bound on what is wrong.
GUESSED = {
    "sort": _guessed_sort,
    "topk": _guessed_topk,
    **dict.fromkeys(("index_put", "index_put_", "_index_put_impl_"), _guessed_index_put),
    **dict.fromkeys(("_unique2", "unique_consecutive", "unique_dim"), _guessed_unique),
}
SCRATCH = {
    "sort": ("sort", _sort),
    "topk": ("topk", _topk),
    **dict.fromkeys(("cumsum", "cumprod"), ("scan", _scan)),
    "nonzero": ("nonzero", _nonzero),
    "embedding_dense_backward": ("embedding_backward", _embedding_backward),
    **dict.fromkeys(("index_put", "index_put_", "_index_put_impl_"), ("index_put", _index_put)),
    "multinomial": ("multinomial", _multinomial),
}
