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
_DIGITS = 256  # of a radix select, and as many threads in a block of it
_BLOCKS_PER_MULTIPROCESSOR = 6  # by registers: 40 for each of 256 threads, of 65,536
# Up to so many rows, several blocks select of a row from so many elements on.
_SEVERAL_BLOCKS_FROM = (
    *((20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000)),
    *((799, 3_000), (4_000, 800), (math.inf, 400)),
)


def _sort(call: KernelCall) -> tuple[int, ...]:
    return _sorted_bytes(call.first, call["dim"])


def _sorted_bytes(source: torch.Tensor, dim: int) -> tuple[int, ...]:
    """ATen/native/cuda/Sort.cpp and SortStable.cu."""
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
    """ATen/native/cuda/TensorTopK.cpp: what selects is given back before many of a row are sorted."""
    source, values = call.first, call.out[0]
    if values.numel() == 0:
        return ()
    copy = 0 if source.is_contiguous() else source.numel() * source.element_size()
    selecting = (copy, *_digit_counts(call))
    if not _sorts_what_it_selected(call):
        return selecting
    sorting = (values.numel() * _INDEX, values.numel() * values.element_size(), *_sorted_bytes(values, call["dim"]))
    return max(selecting, sorting, key=sum)


def _sorts_what_it_selected(call: KernelCall) -> bool:
    """Up to 4,096 of a row are sorted in place."""
    values = call.out[0]
    return bool(call["sorted"]) and values.dim() > 0 and values.shape[call["dim"]] > _SMALL_SORT


def _digit_counts(call: KernelCall) -> tuple[int, ...]:
    """ATen/native/cuda/TensorTopK.cu, `mbtopk::launch`: a radix select by 8 bits, where several blocks share a row.

    For each row its k-th value, and twice what is left to find and the digits found; for each block the counts of 256
    digits in 16 bits, and what lies before it in two counts; their sums for each row.
    """
    source = call.first
    length = source.shape[call["dim"]] if source.dim() else 1
    rows = source.numel() // length
    if length < next(least for most_rows, least in _SEVERAL_BLOCKS_FROM if rows <= most_rows):
        return ()
    threads = call.card.multiprocessors * _BLOCKS_PER_MULTIPROCESSOR * _DIGITS
    items = max(4, min(math.ceil(source.numel() / threads), 64))
    blocks = rows * math.ceil(length / (items * _DIGITS))
    size = source.element_size()
    by_row = (size * rows, 2 * 4 * rows, 2 * max(size, 4) * rows, 4 * _DIGITS * rows)
    return *by_row, 2 * _DIGITS * blocks, 4 * blocks, 4 * blocks


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
    values = call.out[0]
    return _sort_bytes(values.numel(), values.element_size()) if _sorts_what_it_selected(call) else 0


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
