"""What torch offers and the simulation has no model of: refused by name, or run in another way and counted as unknown.

Each function takes the simulation and what it replaces, and gives the replacement.
"""

import functools
import warnings
from typing import TYPE_CHECKING, Any

import torch

from memexp.simulate.patches.of_torch import TORCH
from memexp.simulate.patches.patch import Patch
from memexp.simulate.shapes import UnsupportedOperationError
from memexp.simulate.tensors import DEVICE_TYPE, is_simulated

if TYPE_CHECKING:
    from memexp.simulate.gpu import SimulatedGPU


def storage_without_bytes(gpu: "SimulatedGPU", original: Any) -> Any:
    """Raises UnsupportedOperationError where C++ would end the process, as nothing lies at the storage's address."""

    @functools.wraps(original)
    def method(storage: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if storage.device.type == DEVICE_TYPE:
            name = original.__name__
            raise UnsupportedOperationError(f"UntypedStorage.{name}: a simulated tensor has no bytes; use the tensor")
        return original(storage, *args, **kwargs)

    return method


def runs_eagerly(gpu: "SimulatedGPU", original: Any) -> Any:
    """What is compiled has other buffers than eager code has, so that this is said, and counted as not modelled.

    A library that compiles a function when it is imported is heard of when it calls that function.
    """

    def say() -> None:
        gpu.coverage.unknown_ops["torch.compile"] += 1
        warnings.warn("torch.compile is not simulated: the code runs eagerly, and takes eager memory", stacklevel=3)

    @functools.wraps(original)
    def compile_later(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        if model is None:
            return lambda function: compile_later(function, *args, **kwargs)
        if isinstance(model, torch.nn.Module):
            say()
            return model
        compiled = functools.cache(lambda: original(model, *args, **kwargs))

        @functools.wraps(model)
        def run(*args: Any, **kwargs: Any) -> Any:
            if not gpu.is_active:
                return compiled()(*args, **kwargs)
            say()
            return model(*args, **kwargs)

        return run

    return compile_later


def on_cudnn(gpu: "SimulatedGPU", original: Any) -> Any:
    """cuDNN runs whole networks; here they are composed of cells, which keep other buffers than its reserve."""

    @functools.wraps(original)
    def run(first: torch.Tensor, *args: Any) -> Any:
        if is_simulated(first) and torch.backends.cudnn.enabled:
            gpu.coverage.unknown_ops["aten::_cudnn_rnn"] += 1
        return original(first, *args)

    return run


def one_card(gpu: "SimulatedGPU", original: Any) -> Any:
    """The communication between cards, and the buffers for it, are not modelled."""

    @functools.wraps(original)
    def initialize(wrapper: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        if any(is_simulated(parameter) for parameter in module.parameters()):
            raise UnsupportedOperationError("DistributedDataParallel cannot be simulated: there is one card, alone")
        original(wrapper, module, *args, **kwargs)

    return initialize


PATCHES: tuple[Patch, ...] = (
    *(
        Patch("torch._VF", name, on_cudnn, "cuDNN's reserve and workspace are its own", TORCH, is_branch=True)
        for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    ),
    Patch("torch", "compile", runs_eagerly, "Inductor plans buffers of its own, for a device that is there", TORCH),
    Patch("torch.nn.Module", "compile", runs_eagerly, "as above", TORCH),
    Patch("torch.nn.parallel.DistributedDataParallel", "__init__", one_card, "no process group knows the card", TORCH),
    *(
        Patch("torch.UntypedStorage", name, storage_without_bytes, "it would read at an address of nothing", TORCH)
        for name in ("__getitem__", "_write_file", "clone", "resize_")
    ),
)
