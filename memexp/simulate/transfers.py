"""Copies between host and card, and what reads a value back to the host. Each is a method of `OpStream`.

Floats arrive on the host as nan. Copies that do not block are those of pinned memory; theirs are left as they are where
they are large, because nobody reads what was offloaded.
"""

from typing import TYPE_CHECKING, Any

import torch

from memexp.simulate.costs import copy_seconds
from memexp.simulate.cuda_names import on_the_card
from memexp.simulate.outcomes import INTEGERS, as_meta
from memexp.simulate.tensors import DEVICE_TYPE, is_simulated

if TYPE_CHECKING:
    from memexp.simulate.ops import OpStream

_LARGE_ELEMENTS = 1 << 20


def to_copy(ops: "OpStream", func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`.to(…)`: within the card, onto it, or off it."""
    source: torch.Tensor = args[0]
    device = on_the_card(kwargs.get("device"))
    to_card = is_simulated(source) if device is None else device.type == DEVICE_TYPE
    kwargs = {**kwargs, "pin_memory": None, "device": device}
    if to_card == is_simulated(source):
        return ops.run(func, args, kwargs)
    if not to_card:
        meta = func(as_meta(source), **{**kwargs, "device": torch.device("meta")})
        target = torch.empty_strided(meta.size(), meta.stride(), dtype=meta.dtype)
        return _read_back(ops, target, source, kwargs.get("non_blocking", False))
    out = ops.run(func, args, kwargs)
    _charge(ops, source, kwargs.get("non_blocking", False))
    return out


def copy_(ops: "OpStream", func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`copy_`: as `to_copy`, into a tensor that is there."""
    target, source = args[0], args[1]
    non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
    if is_simulated(target) == is_simulated(source):
        return ops.run(func, args, kwargs)
    if is_simulated(source):
        return _read_back(ops, target, source, non_blocking)
    ops.run(func, args, kwargs)
    _charge(ops, source, non_blocking)
    return target


def item(ops: "OpStream", func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`.item()`: the value of an integer, nan for a float, and the rule's word for a condition that is not known."""
    tensor: torch.Tensor = args[0]
    if not is_simulated(tensor):
        return func(*args, **kwargs)
    ops.clock.synchronize(ops.clock.current)
    if tensor.is_floating_point():
        ops.coverage.read_float()
        return float("nan")
    value = ops.values.of(tensor)
    if value is None:
        ops.coverage.rule_branches[
            "an unknown condition is false" if tensor.dtype == torch.bool else "an unknown integer is 1"
        ] += 1
        return False if tensor.dtype == torch.bool else 1
    if (rule := ops.memory.record_of(tensor).rule) is not None:
        ops.coverage.rule_branches[rule] += 1
    return value.item()


def equal(ops: "OpStream", func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`torch.equal`: by value where both are known, else false by rule."""
    left, right = args[0], args[1]
    if not is_simulated(left) and not is_simulated(right):
        return func(*args, **kwargs)
    ops.clock.synchronize(ops.clock.current)
    real = (ops.values.of(left), ops.values.of(right))
    if real[0] is not None and real[1] is not None:
        return torch.equal(real[0], real[1])
    ops.coverage.rule_branches["a comparison of floats is false"] += 1
    return False


def empty_like(ops: "OpStream", func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """On the host it is pinned memory that offloading asks for, which a CPU build has not."""
    device = on_the_card(kwargs.get("device"))
    kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"} | {"device": device}
    if device is None or device.type == DEVICE_TYPE:
        return ops.run(func, args, kwargs)
    meta = func(as_meta(args[0]), **{**kwargs, "device": torch.device("meta")})
    return torch.empty_strided(meta.size(), meta.stride(), dtype=meta.dtype)


def _read_back(ops: "OpStream", target: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> torch.Tensor:
    values = ops.values.of(source) if source.dtype in INTEGERS else None
    if values is not None:
        target.copy_(values)
    elif target.is_floating_point() and not (non_blocking and target.numel() > _LARGE_ELEMENTS):
        target.fill_(float("nan"))
        ops.coverage.read_float(is_offloaded=non_blocking)
    elif not non_blocking:
        target.zero_()
        ops.coverage.rule_branches["an unknown integer is 0 on the host"] += 1
    _charge(ops, source, non_blocking)
    return target


def _charge(ops: "OpStream", tensor: torch.Tensor, non_blocking: bool) -> None:
    ops.clock.run(copy_seconds(tensor.numel() * tensor.element_size(), ops.card))
    if not non_blocking:
        ops.clock.synchronize(ops.clock.current)


TRANSFERS = {
    "aten::_to_copy": to_copy,
    "aten::copy_": copy_,
    "aten::_local_scalar_dense": item,
    "aten::equal": equal,
    "aten::empty_like": empty_like,
}
