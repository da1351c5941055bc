"""The dimensions of a reduction as its kernel walks them: ordered, merged, and split where 32 bits do not reach.

What ATen/TensorIterator.cpp does with operands whose reduced dimensions have a stride of 0 in the outputs. Left out:
inputs that overlap, and outputs given by the caller in a layout of his own.
"""

import math
from collections.abc import Iterator, Sequence

import torch

_INT32_MAX = 2**31 - 1


class ReductionLayout:
    """`shape` has the fastest dimension first, the reduced ones before all others; strides are in bytes.

    `strides` are those of each output and, last, of the input, which begins at `offset` bytes from an aligned address.
    """

    def __init__(self, shape: list[int], strides: list[list[int]], offset: int) -> None:
        self.shape, self.strides, self.offset = shape, strides, offset

    @property
    def input_strides(self) -> list[int]:
        return self.strides[-1]

    @property
    def reduced_dims(self) -> int:
        """How many of the dimensions are reduced; they come first."""
        return self.strides[0].count(0)

    @property
    def outputs(self) -> int:
        """Numbers that come out."""
        return math.prod(size for size, stride in zip(self.shape, self.strides[0], strict=True) if stride or size == 1)

    @property
    def inputs_per_output(self) -> int:
        return math.prod(self.shape) // self.outputs

    def parts(self) -> Iterator["ReductionLayout"]:
        """The layout in parts, one kernel each, whose numbers and offsets fit into 32 bits; mostly itself alone."""
        if self._fits_32_bits:
            yield self
            return
        dim = self._longest_dim
        half = self.shape[dim] // 2
        for start, end in ((0, half), (half, self.shape[dim])):
            shape = [*self.shape[:dim], end - start, *self.shape[dim + 1 :]]
            offset = self.offset + start * self.input_strides[dim]
            yield from ReductionLayout(shape, self.strides, offset).parts()

    @property
    def _fits_32_bits(self) -> bool:
        if math.prod(self.shape) > _INT32_MAX:
            return False
        ends = (1 + sum((n - 1) * s for n, s in zip(self.shape, strides, strict=True)) for strides in self.strides)
        return all(end <= _INT32_MAX for end in ends)

    @property
    def _longest_dim(self) -> int:
        def extent(dim: int) -> int:
            return max((self.shape[dim] - 1) * strides[dim] for strides in self.strides)

        return max(reversed(range(len(self.shape))), key=extent)


def reduction_layout(
    source: torch.Tensor, outputs: Sequence[torch.Tensor], dims: Sequence[int], itemsize: int
) -> ReductionLayout:
    """The layout of reducing `source` over `dims`, where none means all.

    `itemsize` is that of what the kernel reads, which is not the source's where it gets a cast of it.
    """
    count = source.dim()
    reduced = {dim % count for dim in dims} if dims and count else set(range(count))
    strides = [_output_strides(output, count, reduced, source) for output in outputs]
    strides.append([int(stride) * itemsize for stride in source.stride()])
    shape = list(source.shape)
    order = _order(shape, strides)
    rows = [[row[dim] for dim in order] for row in strides]
    layout = ReductionLayout([shape[dim] for dim in order], rows, int(source.storage_offset()) * itemsize)
    _merge(layout)
    return layout


def _output_strides(output: torch.Tensor, count: int, reduced: set[int], source: torch.Tensor) -> list[int]:
    size = output.element_size()
    if output.dim() == count:  # dimensions are kept
        pairs = zip(output.shape, output.stride(), source.shape, strict=True)
        return [0 if kept == 1 and whole != 1 else stride * size for kept, stride, whole in pairs]
    remaining = iter(output.stride())
    return [0 if dim in reduced else int(next(remaining)) * size for dim in range(count)]


def _order(shape: list[int], strides: list[list[int]]) -> list[int]:
    """An insertion sort of the dimensions, last first, in which some pairs cannot be compared."""
    order = list(reversed(range(len(shape))))
    for start in range(1, len(order)):
        at = start
        for before in range(start - 1, -1, -1):
            comparison = _compare(order[before], order[at], shape, strides)
            if comparison > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif comparison < 0:
                break
    return order


def _compare(one: int, other: int, shape: list[int], strides: list[list[int]]) -> int:
    """Above 0 where `other` belongs before `one`, 0 where nothing tells."""
    for index, row in enumerate(strides):
        if index < len(strides) - 1 and (row[one] == 0) != (row[other] == 0):
            return 1 if row[other] == 0 else -1
        if row[one] == 0 or row[other] == 0:
            continue
        if row[one] != row[other]:
            return 1 if row[one] > row[other] else -1
        if shape[one] > shape[other]:
            return 1
    return 0


def _merge(layout: ReductionLayout) -> None:
    """Join neighbours that every operand walks as one."""
    shape, rows = layout.shape, layout.strides
    if len(shape) <= 1:
        return
    last = 0
    for dim in range(1, len(shape)):
        fits = all(shape[last] * row[last] == row[dim] for row in rows)
        if 1 in (shape[last], shape[dim]) or fits:
            if shape[last] == 1:
                for row in rows:
                    row[last] = row[dim]
            shape[last] *= shape[dim]
        else:
            last += 1
            shape[last] = shape[dim]
            for row in rows:
                row[last] = row[dim]
    layout.shape = shape[: last + 1]
    layout.strides = [row[: last + 1] for row in rows]
