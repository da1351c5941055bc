"""Ops whose shapes depend on values: computed from the real values, where a mask or an index has them.

Where values are not known, those are taken that give the most: a condition on floats is true everywhere, and what is
asked for its different values has no two alike. That, and a shape that follows another rule, is counted.
Each is a method of `OpStream`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from memexp.simulate.outcomes import INTEGERS, New
from memexp.simulate.scratch import KernelCall, is_memory_known, scratch_bytes
from memexp.simulate.tensors import is_simulated
from memexp.simulate.values import COMPARISON_RULE

if TYPE_CHECKING:
    from memexp.simulate.ops import OpStream

_ALL_TRUE = "an unknown mask is true everywhere"
_ALL_DIFFERENT = "no two unknown values are alike"


def by_value(ops: "OpStream", func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`nonzero`, `unique` and the like. Their arguments begin with the tensors."""
    tensors: list[torch.Tensor] = []
    ops.describe((*args, *kwargs.values()), tensors, [])
    rule = ops.values.rule_of(tensors)
    real = None if rule == COMPARISON_RULE else ops.values.compute(func, args, kwargs, tensors)
    if real is None:
        rule, stand_in = _stand_in(func)
        real = func(*(stand_in(tensor) for tensor in tensors), *args[len(tensors) :], **kwargs)
    if rule is not None:
        ops.coverage.rule_branches[rule] += 1
    ops.clock.run(0.0)
    ops.clock.synchronize(ops.clock.current)
    ops.coverage.ops += 1
    call = KernelCall(func, args, kwargs, None, ops.card)
    ops.memory.scratch(scratch_bytes(call), ops.clock.current)
    if not is_memory_known(call):
        ops.coverage.unknown_ops[func.name()] += 1
    if isinstance(real, torch.Tensor):
        return _placed(ops, real, rule)
    return tuple(_placed(ops, value, rule) for value in real)


def _stand_in(func: Any) -> tuple[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Values for a tensor that has none."""
    if "unique" in func.name():
        return _ALL_DIFFERENT, lambda tensor: torch.arange(tensor.numel()).view(tensor.shape).to(tensor.dtype)
    return _ALL_TRUE, lambda tensor: torch.ones(tensor.shape, dtype=tensor.dtype)


def index(ops: "OpStream", func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Indexing: a mask becomes the positions where it is true, as on CUDA, which allocates them."""
    indices: list[Any] = []
    for value in args[1]:
        if value is None or value.dtype not in (torch.bool, torch.uint8):
            indices.append(value)
            continue
        positions = by_value(ops, torch.ops.aten.nonzero.default, (value,), {})
        indices += positions_of(ops, positions)
    return ops.run(func, (args[0], indices, *args[2:]), kwargs)


def positions_of(ops: "OpStream", positions: torch.Tensor) -> list[torch.Tensor]:
    """The columns of what `nonzero` gave."""
    if not is_simulated(positions):
        return list(positions.unbind(1))
    return list(ops.run(torch.ops.aten.unbind.int, (positions, 1), {}))


def masked_select(ops: "OpStream", func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A mask of the tensor's own shape, as indexing."""
    source, mask = torch.broadcast_tensors(args[0], args[1])  # type: ignore[no-untyped-call]
    return index(ops, torch.ops.aten.index.Tensor, (source, [mask]), {})


def _placed(ops: "OpStream", real: torch.Tensor, rule: str | None) -> torch.Tensor:
    tensor = ops.new_tensor(New(tuple(real.size()), real.stride(), real.dtype, real.untyped_storage().nbytes()))
    if real.dtype in INTEGERS:
        ops.values.give(tensor, real, rule)
    return tensor


DEPENDENT = {
    "aten::nonzero": by_value,
    **dict.fromkeys(
        (
            "aten::_unique",
            "aten::_unique2",
            "aten::unique_dim",
            "aten::unique_consecutive",
            "aten::unique_dim_consecutive",
        ),
        by_value,
    ),
    "aten::bincount": by_value,
    "aten::repeat_interleave.Tensor": by_value,
    "aten::index.Tensor": index,
    "aten::index_put": index,
    "aten::index_put_": index,
    "aten::_index_put_impl_": index,
    "aten::masked_select": masked_select,
}
