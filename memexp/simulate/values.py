"""Small integers are real: ids, positions, labels and masks keep their values, so that shapes that need them are right.

Each integer or bool storage of the device has the bytes of its values on the CPU; views share them as they share the
storage. An op whose inputs are all known is computed for real. Where floats decide, a rule does: see `RULES`. What is
larger than `MAX_ELEMENTS` loses its values.
"""

from collections.abc import Callable
from typing import Any

import torch

from memexp.simulate.memory import StorageRecord
from memexp.simulate.outcomes import INTEGERS
from memexp.simulate.shapes import map_tensors
from memexp.simulate.tensors import is_simulated

MAX_ELEMENTS = 1 << 22
SAMPLED_TOKEN = (
    5  # what a model "samples": no special token of the usual tokenizers, so that generation runs to its end
)

# What an op says of floats, which have no values: finite, and never larger, smaller or equal.
RULES: dict[str, tuple[str, int]] = {
    "isnan": ("isnan of a float is false", 0),
    "isposinf": ("isinf of a float is false", 0),
    "isneginf": ("isinf of a float is false", 0),
    "ne": ("a float differs from every number", 1),
    "argmax": ("a sampled token is an ordinary one", SAMPLED_TOKEN),
    "argmin": ("a sampled token is an ordinary one", SAMPLED_TOKEN),
    "multinomial": ("a sampled token is an ordinary one", SAMPLED_TOKEN),
}
COMPARISON_RULE = "a comparison of floats is false"
for _name in ("lt", "le", "gt", "ge", "eq", "logical_not", "logical_and", "logical_or", "signbit"):
    RULES[_name] = (COMPARISON_RULE, 0)


class Values:
    """The real values behind simulated tensors. `record_of` finds what is known of a tensor's storage."""

    def __init__(self, record_of: Callable[[torch.Tensor], StorageRecord]) -> None:
        self._record_of = record_of

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A CPU tensor that shares the tensor's values, writes included; None where they are not known."""
        if not is_simulated(tensor):
            return tensor
        values = self._record_of(tensor).values
        if values is None:
            return None
        empty = torch.empty(0, dtype=tensor.dtype)
        return empty.set_(values, tensor.storage_offset(), tensor.size(), tensor.stride())

    def rule_of(self, tensors: list[torch.Tensor]) -> str | None:
        """The rule that the values of any of these rest on."""
        for tensor in tensors:
            if is_simulated(tensor) and (rule := self._record_of(tensor).rule) is not None:
                return rule
        return None

    def give(self, tensor: torch.Tensor, real: torch.Tensor, rule: str | None = None) -> None:
        """Let a new tensor, alone in its storage, have these values."""
        record = self._record_of(tensor)
        if real.numel() > MAX_ELEMENTS or record.nbytes > 8 * MAX_ELEMENTS:
            return
        if (
            real.stride() == tensor.stride()
            and real.storage_offset() == 0
            and real.untyped_storage().nbytes() == record.nbytes
        ):
            record.values = real.untyped_storage()
        else:
            record.values = torch.zeros(record.nbytes, dtype=torch.uint8).untyped_storage()
            twin = self.of(tensor)
            assert twin is not None
            twin.copy_(real)
        record.rule = rule

    def start(self, tensor: torch.Tensor) -> None:
        """Memory that nothing was written to yet: its values are taken to be 0."""
        record = self._record_of(tensor)
        if tensor.dtype in INTEGERS and record.nbytes <= 8 * MAX_ELEMENTS:
            record.values = torch.zeros(record.nbytes, dtype=torch.uint8).untyped_storage()

    def forget(self, tensor: torch.Tensor) -> None:
        """Something unknown was written to this tensor."""
        record = self._record_of(tensor)
        record.values = record.rule = None

    def compute(self, func: Any, args: Any, kwargs: dict[str, Any], tensors: list[torch.Tensor]) -> Any:
        """The op on real values, or None where one of `tensors` has none. Writes to arguments happen here."""
        real = {}
        for tensor in tensors:
            value = self.of(tensor)
            if value is None or value.numel() > MAX_ELEMENTS:
                return None
            real[id(tensor)] = value
        args = map_tensors(args, lambda tensor: real[id(tensor)])
        kwargs = {name: map_tensors(value, lambda tensor: real[id(tensor)]) for name, value in kwargs.items()}
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        return func(*args, **kwargs)

    def decide(self, func: Any, args: Any, out: torch.Tensor) -> None:
        """Give an integer or bool result that depends on floats the value of its rule, if it has one."""
        rule = RULES.get(func._overloadpacket.__name__.rstrip("_"))
        if rule is None or out.dtype not in INTEGERS or out.numel() > MAX_ELEMENTS:
            return
        name, value = rule
        if value == SAMPLED_TOKEN:
            value = min(value, _choices(func, args) - 1)
        elif len(args) > 1 and args[0] is args[1]:  # how libraries ask for nan
            name, value = RULES["isnan"][0], int(func._overloadpacket.__name__ == "eq")
        self.give(out, torch.full(out.shape, value, dtype=out.dtype), name)


def _choices(func: Any, args: Any) -> int:
    """Of how many numbers `argmax`, `argmin` or `multinomial` names one."""
    source, dim = args[0], args[1] if len(args) > 1 else None
    if func._overloadpacket.__name__ == "multinomial":
        dim = -1
    return int(source.numel() if dim is None or source.dim() == 0 else source.shape[dim])
