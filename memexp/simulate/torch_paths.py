"""What stands in for functions of torch during a simulation. `patches` says where and why.

Each function takes the simulation and what it replaces, and gives the replacement.
"""

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._device import _device_constructors

from memexp.simulate.attention import attend
from memexp.simulate.autocast import clear_cast_weights
from memexp.simulate.tensors import DEVICE_TYPE, is_simulated

if TYPE_CHECKING:
    from memexp.simulate.clock import Stream
    from memexp.simulate.gpu import SimulatedGPU


def sdpa(gpu: "SimulatedGPU", original: Any) -> Any:
    return functools.wraps(original)(functools.partial(attend, gpu.card))


def clear_autocast_cache(gpu: "SimulatedGPU", original: Any) -> Any:
    def clear() -> None:
        clear_cast_weights()
        original()

    return clear


def empty(gpu: "SimulatedGPU", original: Any) -> Any:
    """Pinned memory is plain memory; nothing is written to it, so that it costs no more than its addresses."""
    _device_constructors()  # cached at its first call, in which `torch.empty` has to be the original

    @functools.wraps(original)
    def unpinned(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        return original(*args, **kwargs)  # type: ignore[no-any-return]

    return unpinned


def record_stream(gpu: "SimulatedGPU", original: Any) -> Any:
    def record(tensor: torch.Tensor, stream: "Stream") -> None:
        if is_simulated(tensor) and (address := tensor.untyped_storage().data_ptr()):
            gpu.memory.record_stream(address, stream.stream_id)

    return record


def saved_tensors_hooks(gpu: "SimulatedGPU", original: Any) -> Any:
    """An error in such a hook is still set when the engine leaves its stream guard, which is Python here and aborts."""

    def init(hooks: Any, pack_hook: Any, unpack_hook: Any) -> None:
        @functools.wraps(unpack_hook)
        def unpack(packed: Any) -> Any:
            with gpu.memory.deferring_errors():
                return unpack_hook(packed)

        original(hooks, pack_hook, unpack)

    return init


def optimizer_step_by_rule(gpu: "SimulatedGPU", original: Any) -> Any:
    """`GradScaler` reads back whether a gradient overflowed, and then leaves out the step. By rule none does."""

    def step(scaler: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
        found = list(state["found_inf_per_device"].values())
        if not any(is_simulated(tensor) for tensor in found):
            return original(scaler, optimizer, state, *args, **kwargs)
        for tensor in found:
            tensor.item()  # the host waits here
        gpu.coverage.rule_branches["no gradient overflows in fp16"] += 1
        return optimizer.step(*args, **kwargs)

    return step


def deepcopy_tensor(gpu: "SimulatedGPU", original: Any) -> Any:
    def deepcopy(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
        if not is_simulated(tensor) or id(tensor) in memo:
            return original(tensor, memo)
        memo[id(tensor)] = copied = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return copied

    return deepcopy


def pin_memory(gpu: "SimulatedGPU", original: Any) -> Any:
    return lambda tensor, device=None: tensor


def is_pinned(gpu: "SimulatedGPU", original: Any) -> Any:
    return lambda tensor, device=None: False


def from_device_module(gpu: "SimulatedGPU", original: Any) -> Any:
    """`torch.accelerator` answers as `torch.cuda` would, from the device's own module."""
    return getattr(getattr(torch, DEVICE_TYPE), original.__name__)


def module_apply(gpu: "SimulatedGPU", original: Any) -> Any:
    """A parameter that comes to the card stays the same object, so that tied weights stay tied."""

    def apply(module: torch.nn.Module, fn: Any, recurse: bool = True) -> torch.nn.Module:
        if not isinstance(fn, _KeepsParameters):
            fn = _KeepsParameters(fn)
        return original(module, fn, recurse)  # type: ignore[no-any-return]

    return apply


class _KeepsParameters:
    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        moved: torch.Tensor = self.fn(tensor)
        if not isinstance(tensor, torch.nn.Parameter) or is_simulated(tensor) == is_simulated(moved):
            return moved
        torch.utils.swap_tensors(tensor, torch.nn.Parameter(moved, tensor.requires_grad))  # type: ignore[no-untyped-call]
        return tensor
