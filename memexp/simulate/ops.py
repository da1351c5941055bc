"""What happens on the simulated device: every op of it comes here, in the order in which a GPU would get its kernels.

For each op: what it gives (`outcomes`), memory for that (`memory`), its time (`clock`), and the values of small
integers (`values`). Ops on the host alone run for real and are not seen. What moves between host and card or depends on
values is in `transfers` and `dependent`.
"""

from typing import Any

import torch
from torch._C import _current_graph_task_id

from memexp.simulate.cards import Card
from memexp.simulate.clock import Clock
from memexp.simulate.coverage import Coverage
from memexp.simulate.memory import ACTIVATIONS, LOGITS, DeviceMemory
from memexp.simulate.outcomes import INTEGERS, Alias, New, Outcome, Same, foresee
from memexp.simulate.tensors import Shape, is_simulated, move_to_storage, tensor_on, view_of
from memexp.simulate.values import Values

_LOGITS_MIN_BYTES = 1 << 20
_NUMBERS = (int, float, bool)
_GENERATOR = torch.Generator  # another class stands there while a simulation runs


class OpStream:
    """One simulated GPU's ops. The state is public to the parts that work on it, and to nobody else."""

    def __init__(self, card: Card, memory: DeviceMemory, clock: Clock, coverage: Coverage) -> None:
        self.card, self.memory, self.clock, self.coverage = card, memory, clock, coverage
        self.values = Values(memory.record_of)
        self.vocabularies: set[int] = set()
        self._outcomes: dict[Any, Outcome] = {}
        self._workspaces: set[tuple[bool, int]] = set()

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Any op whose result depends on shapes alone."""
        if len(args) > 1 and type(args[1]) in _NUMBERS and func._overloadname == "Tensor":
            # What Python gave as a number comes as one, though the schema asks for a tensor.
            func = getattr(func._overloadpacket, "Scalar", func)
        tensors: list[torch.Tensor] = []
        key: list[Any] = [func]
        self.describe(args, tensors, key)
        for name, value in kwargs.items():
            key.append(name)
            self.describe((value,), tensors, key)
        if not tensors:
            key.append(repr((args, kwargs)))
        identity = tuple(key)
        outcome = self._outcomes.get(identity)
        if outcome is None:
            for tensor in tensors:
                if is_simulated(tensor):
                    self.memory.record_of(tensor)
            outcome = self._outcomes[identity] = foresee(func, args, kwargs, tensors, self.card)
        out = self.realize(outcome, tensors)
        if outcome.is_integer:
            self._compute_values(func, args, kwargs, tensors, outcome, out)
        elif outcome.gives_integers:
            self._decide_values(func, args, tensors, outcome, out)
        return out

    def realize(self, outcome: Outcome, tensors: list[torch.Tensor]) -> Any:
        """Memory and time for one run of an op; returns its outputs."""
        memory, clock = self.memory, self.clock
        for index, size, stride, nbytes in outcome.resized:
            self.resize(tensors[index], size, stride, nbytes)
        results: list[Any] = []
        for output in outcome.outputs:
            kind = type(output)
            if kind is New:
                results.append(self.new_tensor(output))  # type: ignore[arg-type]
            elif kind is Alias:
                index, size, stride, offset, dtype = output  # type: ignore[misc]
                source = tensors[index]
                if dtype is None:
                    results.append(view_of(source, size, stride, offset))
                else:
                    results.append(tensor_on(source.untyped_storage(), size, stride, offset, dtype))
            elif kind is Same:
                results.append(tensors[output.argument])  # type: ignore[union-attr]
            else:
                results.append(output.value)  # type: ignore[union-attr]
        if outcome.seconds is not None:
            self.coverage.ops += 1
            if outcome.takes_workspace:
                self._take_workspace()
            if outcome.scratch:
                memory.scratch(outcome.scratch, clock.current)
            if outcome.unknown_name is not None:
                self.coverage.unknown_ops[outcome.unknown_name] += 1
            clock.run(outcome.seconds)
        return results[0] if outcome.container is None else outcome.container(results)

    def resize(self, tensor: torch.Tensor, size: Shape, stride: Shape, nbytes: int) -> None:
        """Give the tensor another shape, and a new storage where its own is too small."""
        storage = tensor.untyped_storage()
        if storage.nbytes() < nbytes:
            storage = self.memory.new_storage(nbytes, self.clock.current)
            move_to_storage(tensor, storage, size, stride)
            self.values.start(tensor)
        else:
            move_to_storage(tensor, storage, size, stride)

    def new_tensor(self, output: New) -> torch.Tensor:
        category = None
        if output.size and output.size[-1] in self.vocabularies and output.nbytes >= _LOGITS_MIN_BYTES:
            category = LOGITS if self.memory.category == ACTIVATIONS else None
        storage = self.memory.new_storage(output.nbytes, self.clock.current, category)
        return tensor_on(storage, output.size, output.stride, 0, output.dtype)

    def describe(self, values: Any, tensors: list[torch.Tensor], key: list[Any]) -> None:
        """Append to `key` all that the outcome may depend on, and to `tensors` all that there are."""
        for value in values:
            kind = type(value)
            if kind is torch.Tensor or isinstance(value, torch.Tensor):
                tensors.append(value)
                if is_simulated(value):
                    key.append((value.shape, value.stride(), value.dtype, value.storage_offset()))
                else:
                    key.append((value.shape, value.stride(), value.dtype, None))
            elif kind is list or kind is tuple:
                key.append((kind, len(value)))
                self.describe(value, tensors, key)
            elif kind is bool:
                key.append((kind, value))
            elif kind is float:  # no shape depends on its value where there are tensors
                key.append(kind)
            elif kind is not _GENERATOR:
                key.append(value)

    def _take_workspace(self) -> None:
        place = (_current_graph_task_id() != -1, self.clock.current)
        if place not in self._workspaces:
            self._workspaces.add(place)
            self.memory.workspace(self.card.cublas_workspace_bytes, self.clock.current)

    def _compute_values(
        self, func: Any, args: Any, kwargs: dict[str, Any], tensors: list[torch.Tensor], outcome: Outcome, out: Any
    ) -> None:
        real = self.values.compute(func, args, kwargs, tensors)
        rule = self.values.rule_of(tensors)
        for index in outcome.writes:
            if real is None:
                self.values.forget(tensors[index])
            elif rule is not None:
                self.memory.record_of(tensors[index]).rule = rule
        if real is None:
            return
        pairs = zip(out, real, strict=True) if outcome.container else ((out, real),)
        for output, (simulated, value) in zip(outcome.outputs, pairs, strict=True):
            if type(output) is New and output.dtype in INTEGERS:
                self.values.give(simulated, value, rule)

    def _decide_values(self, func: Any, args: Any, tensors: list[torch.Tensor], outcome: Outcome, out: Any) -> None:
        for index in outcome.writes:
            if tensors[index].dtype in INTEGERS and is_simulated(tensors[index]):
                self.values.forget(tensors[index])
        for output, simulated in zip(outcome.outputs, out if outcome.container else (out,), strict=True):
            if type(output) is New:
                self.values.decide(func, args, simulated)
