"""The shapes that an op gives: those of torch's meta kernel, and where there is none, those of another source.

`run_on_meta` takes and gives meta tensors. Left out: ops whose shapes depend on values (`dependent`).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common import suggest_memory_format

# An op without a meta kernel is run once by its CPU kernel, on zeros, if its arguments are no larger than this.
_CPU_MAX_ELEMENTS = 1 << 24


class UnsupportedOperationError(NotImplementedError):
    """An op that the simulated device cannot run, because nothing says what shapes or what memory it takes."""


def run_on_meta(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, bool]:
    """What the op gives, and whether the shapes are surely those of CUDA. Raises UnsupportedOperationError."""
    if own := _SHAPES.get(func.name()):
        return own(*args, **kwargs), True
    try:
        return func(*args, **kwargs), True
    except NotImplementedError as error:
        if (decomposition := torch._decomp.decomposition_table.get(func)) is not None:
            return decomposition(*args, **kwargs), True
        if not func._schema.returns:
            return None, True  # it writes to its arguments
        written = [kwargs.get(argument.name) for argument in func._schema.arguments if argument.is_out]
        if written and len(written) == len(func._schema.returns):
            return written[0] if len(written) == 1 else tuple(written), True  # shapes are the caller's
        try:
            return _run_on_cpu(func, args, kwargs), False
        except (NotImplementedError, RuntimeError, IndexError):
            raise UnsupportedOperationError(
                f"{func.name()} cannot be simulated: nothing says what shapes it gives (it has no meta kernel and no "
                "register_fake)"
            ) from error


def map_tensors(value: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """Replace the tensors in the arguments of an op, which are nested in lists and tuples only."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(item, function) for item in value)
    return value


def _run_on_cpu(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Raises NotImplementedError for an op that is not a function of shapes alone, has no CPU kernel, or is too large.

    What a kernel of the CPU gives has the shapes of CUDA's; its strides may differ.
    """
    elements = 0

    def zeros(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal elements
        elements += tensor.numel()
        if elements > _CPU_MAX_ELEMENTS:
            raise NotImplementedError
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype).zero_()

    aliases = any(argument.alias_info is not None for argument in func._schema.arguments)
    reads = any("Tensor" not in str(given.type) for given in func._schema.returns)  # a number depends on values
    if aliases or reads or torch.Tag.dynamic_output_shape in func.tags or func.namespace != "aten":
        raise NotImplementedError
    real_args = map_tensors(args, zeros)
    real_kwargs = {name: map_tensors(value, zeros) for name, value in kwargs.items()}
    if "device" in real_kwargs:
        real_kwargs["device"] = torch.device("cpu")
    return map_tensors(func(*real_args, **real_kwargs), _dense_as_meta)


def _dense_as_meta(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout != torch.strided:
        raise NotImplementedError
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


def _gru_cell(input_gates: Any, hidden_gates: Any, hidden: torch.Tensor, *biases: Any) -> Any:
    """ATen/native/cuda/RNN.cu: the new state, and five gates a unit for backward."""
    return torch.empty_like(hidden), hidden.new_empty(hidden.shape[0], 5 * hidden.shape[1])


def _gru_cell_backward(gradient: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> Any:
    gates = gradient.new_empty(gradient.shape[0], 3 * gradient.shape[1])
    bias = gates.new_empty(gates.shape[1]) if has_bias else None
    return gates, torch.empty_like(gates), torch.empty_like(gradient), bias, bias if bias is None else bias.clone()


def convolution_layout(first: torch.Tensor, second: torch.Tensor) -> torch.memory_format:
    """`cudnn_conv_suggest_memory_format` (ATen/native/ConvUtils.h): channels last as soon as one of the two is."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(second.dim())
    if last is not None and any(suggest_memory_format(tensor) == last for tensor in (first, second)):
        return last
    return torch.contiguous_format


def _convolution(source: torch.Tensor, weight: torch.Tensor, *args: Any) -> torch.Tensor:
    out = torch.ops.aten.convolution.default(source, weight, *args)
    return torch.empty_like(out, memory_format=convolution_layout(source, weight))


def _convolution_backward(gradient: torch.Tensor, source: torch.Tensor, weight: torch.Tensor, *args: Any) -> Any:
    wanted = args[-1]
    for_source, for_weight = convolution_layout(gradient, weight), convolution_layout(source, gradient)
    return (
        torch.empty_like(source, memory_format=for_source) if wanted[0] else None,
        torch.empty_like(weight, memory_format=for_weight) if wanted[1] else None,
        gradient.new_empty(gradient.shape[1]) if wanted[2] else None,
    )


_SHAPES: dict[str, Callable[..., Any]] = {
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::_thnn_fused_gru_cell": _gru_cell,
    "aten::_thnn_fused_gru_cell_backward": _gru_cell_backward,
}
