"""What an op gives for arguments of a given shape: which outputs are new, which are its inputs again, what it costs.

Asked once for each combination of op and shapes, and then kept. Knows neither memory nor
values.
"""

from typing import Any, NamedTuple

import torch

from memexp.simulate.cards import Card
from memexp.simulate.costs import seconds_of
from memexp.simulate.cuda_names import on_the_card
from memexp.simulate.scratch import KernelCall, is_memory_known, scratch_bytes, takes_workspace
from memexp.simulate.shapes import map_tensors, run_on_meta
from memexp.simulate.tensors import Shape, is_simulated

MOVES_BETWEEN_DEVICES = frozenset({"aten::copy_", "aten::_to_copy", "aten::index.Tensor", "aten::index_put_"})
INTEGERS = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


class Same(NamedTuple):
    """The output is an argument itself."""

    argument: int


class Alias(NamedTuple):
    """The output lies in the storage of an argument."""

    argument: int
    size: Shape
    stride: Shape
    offset: int
    dtype: torch.dtype | None  # None: that of the argument


class New(NamedTuple):
    """The output is a new tensor."""

    size: Shape
    stride: Shape
    dtype: torch.dtype
    nbytes: int


class Constant(NamedTuple):
    """The output is a number."""

    value: Any


Output = Same | Alias | New | Constant


class Outcome:
    """`outputs` in order, in a list, a tuple or alone (`container` None).

    `seconds` is the time on the card, None for what is no kernel; `unknown_name` names an op whose memory is not
    modelled in full. `is_integer`: integers from integers; `gives_integers`: integers from floats. `writes` are the
    arguments written to, and `resized` those that take another shape: their index, size, stride and bytes.
    """

    __slots__ = (
        "container",
        "gives_integers",
        "is_integer",
        "outputs",
        "resized",
        "scratch",
        "seconds",
        "takes_workspace",
        "unknown_name",
        "writes",
    )

    def __init__(self, outputs: tuple[Output, ...], container: type | None) -> None:
        self.outputs = outputs
        self.container = container
        self.seconds: float | None = None
        self.scratch: tuple[int, ...] = ()
        self.takes_workspace = False
        self.is_integer = False
        self.gives_integers = False
        self.resized: list[tuple[int, Shape, Shape, int]] = []
        self.unknown_name: str | None = None
        self.writes: tuple[int, ...] = ()


def foresee(func: Any, args: Any, kwargs: dict[str, Any], tensors: list[torch.Tensor], card: Card) -> Outcome:
    """Run `func` on the meta device. Raises UnsupportedOperationError, and what torch raises for wrong shapes."""
    _check_devices(func, tensors)
    metas = {id(tensor): as_meta(tensor) for tensor in tensors}
    meta_args = map_tensors(args, lambda tensor: metas[id(tensor)])
    meta_kwargs = {name: map_tensors(value, lambda tensor: metas[id(tensor)]) for name, value in kwargs.items()}
    if "device" in meta_kwargs:
        on_the_card(meta_kwargs["device"])
        meta_kwargs["device"] = torch.device("meta")
    out, is_certain = run_on_meta(func, meta_args, meta_kwargs)
    inputs = [metas[id(tensor)] for tensor in tensors]
    container = type(out) if isinstance(out, list | tuple) else None
    outputs = tuple(_describe(value, inputs) for value in (out if container else (out,)))
    outcome = Outcome(outputs, container)
    outcome.writes = written_arguments(func, args, kwargs, tensors)
    is_kernel = outcome.writes or any(isinstance(output, New) for output in outputs)
    if is_kernel and not func.is_view and not func.name().startswith("aten::empty"):
        outcome.seconds = seconds_of(func, meta_args, meta_kwargs, out, card)
        call = KernelCall(func, meta_args, meta_kwargs, out, card)
        outcome.scratch = scratch_bytes(call)
        outcome.takes_workspace = takes_workspace(call)
        outcome.unknown_name = None if is_certain and is_memory_known(call) else func.name()
    for index in outcome.writes:
        if inputs[index].size() != tensors[index].size():
            meta = inputs[index]
            outcome.resized.append((index, tuple(meta.size()), meta.stride(), meta.untyped_storage().nbytes()))
    integers = any(isinstance(output, New) and output.dtype in INTEGERS for output in outputs) or any(
        tensors[index].dtype in INTEGERS for index in outcome.writes
    )
    outcome.is_integer = integers and all(tensor.dtype in INTEGERS for tensor in tensors)
    outcome.gives_integers = integers and not outcome.is_integer
    return outcome


def as_meta(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without device or data, at the same place in a storage of the same size."""
    storage = torch.empty(tensor.untyped_storage().nbytes(), dtype=torch.uint8, device="meta").untyped_storage()
    empty = torch.empty(0, dtype=tensor.dtype, device="meta")
    return empty.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def written_arguments(func: Any, args: Any, kwargs: dict[str, Any], tensors: list[torch.Tensor]) -> tuple[int, ...]:
    """Which of `tensors` the op writes to, by its schema."""
    written: list[int] = []
    positions = {id(tensor): index for index, tensor in enumerate(tensors)}
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[index] if index < len(args) else kwargs.get(argument.name)
        map_tensors(value, lambda tensor: written.append(positions[id(tensor)]))
    return tuple(written)


def _check_devices(func: Any, tensors: list[torch.Tensor]) -> None:
    """As CUDA: tensors of two devices do not mix, but for scalars."""
    if func._schema.name in MOVES_BETWEEN_DEVICES or func.name() in MOVES_BETWEEN_DEVICES:
        return
    strangers = [tensor for tensor in tensors if tensor.is_cpu and tensor.dim()]
    if strangers and any(is_simulated(tensor) for tensor in tensors):
        devices = f"{next(t.device for t in tensors if is_simulated(t))} and cpu"
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {devices}! ({func})"
        )


def _describe(value: Any, inputs: list[torch.Tensor]) -> Output:
    if not isinstance(value, torch.Tensor):
        return Constant(value)
    storage = value.untyped_storage()
    for index, argument in enumerate(inputs):
        if value is argument:
            return Same(index)
        if storage._cdata == argument.untyped_storage()._cdata:
            dtype = None if value.dtype == argument.dtype else value.dtype
            return Alias(index, tuple(value.size()), value.stride(), value.storage_offset(), dtype)  # type: ignore[arg-type]
    return New(tuple(value.size()), value.stride(), value.dtype, storage.nbytes())
