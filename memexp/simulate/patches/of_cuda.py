"""What is replaced for code that says "cuda" by name: tensors come to the card, questions are answered by it.

`torch.cuda.is_available()` stays as it is, since the libraries branch on it, and each branch that matters is a patch of
its own. What C++ makes on "cuda" is in `cuda_names`. Left out: `from torch import tensor` (or `as_tensor`, `asarray`)
before the simulation keeps torch's own, which looks for a driver, as does `Tensor.type("torch.cuda.FloatTensor")`.
"""

import functools
from typing import TYPE_CHECKING, Any

import torch

from memexp.simulate.cuda_names import on_the_card
from memexp.simulate.patches.of_torch import TORCH, from_device_module
from memexp.simulate.patches.patch import Patch
from memexp.simulate.tensors import DEVICE_TYPE

if TYPE_CHECKING:
    from memexp.simulate.gpu import SimulatedGPU


def as_simulated(gpu: "SimulatedGPU", original: Any) -> Any:
    """For constructors of autocast and of gradient scalers, whose device may be "cuda"."""

    @functools.wraps(original)
    def initialize(instance: Any, *args: Any, **kwargs: Any) -> None:
        if args and args[0] == "cuda":
            args = (DEVICE_TYPE, *args[1:])
        for name in ("device", "device_type"):
            if kwargs.get(name) == "cuda":
                kwargs[name] = DEVICE_TYPE
        original(instance, *args, **kwargs)

    return initialize


def scaler(gpu: "SimulatedGPU", original: Any) -> Any:
    """`GradScaler.__init__`, whose device is "cuda" unless it is given."""
    initialize = as_simulated(gpu, original)

    @functools.wraps(original)
    def with_device(instance: Any, device: str = DEVICE_TYPE, *args: Any, **kwargs: Any) -> None:
        initialize(instance, device, *args, **kwargs)

    return with_device


def to_the_card(gpu: "SimulatedGPU", original: Any) -> Any:
    """`cuda` of a tensor or a storage."""

    def cuda(tensor: torch.Tensor, device: Any = None, non_blocking: bool = False, **_: Any) -> torch.Tensor:
        named = f"cuda:{device}" if isinstance(device, int) else device
        return tensor.to(device=gpu.device if named is None else on_the_card(named), non_blocking=non_blocking)

    return cuda


def device_first(gpu: "SimulatedGPU", original: Any) -> Any:
    """For methods whose first argument is a device, a tensor, a dtype or data, or that take `device` by name."""

    @functools.wraps(original)
    def method(instance: Any, *args: Any, **kwargs: Any) -> Any:
        if args:
            args = (on_the_card(args[0]), *args[1:])
        if "device" in kwargs:
            kwargs["device"] = on_the_card(kwargs["device"])
        return original(instance, *args, **kwargs)

    return method


def device_named(gpu: "SimulatedGPU", original: Any) -> Any:
    """For functions that take `device` by name alone."""

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = on_the_card(kwargs["device"])
        return original(*args, **kwargs)

    return function


def restore_location(gpu: "SimulatedGPU", original: Any) -> Any:
    """Where `torch.load` puts a storage: by `map_location`, or by the device that the file names."""
    return lambda storage, location: original(storage, str(on_the_card(location)))


def generator(gpu: "SimulatedGPU", original: Any) -> Any:
    """No random number is drawn on the card, so that its generators are the host's, with their seeds and states."""

    class AsOriginal(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original)

    class Generator(metaclass=AsOriginal):
        def __new__(cls, device: Any = "cpu") -> Any:
            return original("cpu" if torch.device(on_the_card(device)).type == DEVICE_TYPE else device)

    return Generator


def no_driver(gpu: "SimulatedGPU", original: Any) -> Any:
    """C++ calls it before the first tensor on "cuda" of a process, and never again: a real card is made ready."""
    return lambda: original() if torch.cuda.is_available() else None


_ANSWERED = (
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "empty_cache",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "ipc_collect",
    "is_bf16_supported",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_device",
    "set_stream",
    "stream",
    "synchronize",
)
_WITH_MEMORY = ("Tensor", "UntypedStorage")
_FROM_DATA = ("tensor", "as_tensor", "asarray")
PATCHES: tuple[Patch, ...] = (
    *(Patch("torch.cuda", name, from_device_module, "it would tell of no card", TORCH) for name in _ANSWERED),
    *(Patch("torch.cuda", name, from_device_module, "it needs a card", TORCH) for name in ("Event", "Stream")),
    Patch("torch.cuda", "_lazy_init", no_driver, "no driver is asked for the card", TORCH),
    *(Patch("torch", name, device_named, "C++ looks for a driver", TORCH) for name in _FROM_DATA),
    *(Patch("torch.Tensor", name, device_first, "as above", TORCH) for name in ("to", "new_tensor")),
    Patch("torch.nn.Module", "to", device_first, "parameters of other classes than torch's move in other ways", TORCH),
    Patch("torch.utils._device", "DeviceContext.__init__", device_first, "it gives its device to all of these", TORCH),
    Patch("torch.serialization", "default_restore_location", restore_location, "it looks for a driver", TORCH),
    Patch("torch", "Generator", generator, "neither device has one in this build", TORCH),
    *(Patch(f"torch.{of}", "cuda", to_the_card, "the card is the simulated one", TORCH) for of in _WITH_MEMORY),
    Patch(
        "torch.amp.autocast_mode",
        "autocast.__init__",
        as_simulated,
        'without a card "cuda" turns itself off, with a warning alone',
        TORCH,
        is_branch=True,
    ),
    Patch("torch.amp.grad_scaler", "GradScaler.__init__", scaler, "as above", TORCH, is_branch=True),
)
