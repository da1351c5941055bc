"""What is replaced in torch, for code that puts its tensors on `gpu.device`.

Each function takes the simulation and what it replaces, and gives the replacement.
"""

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._device import _device_constructors

from memexp.simulate.attention import attend
from memexp.simulate.autocast import clear_cast_weights
from memexp.simulate.patches.patch import Patch
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
        gpu.clock.synchronize(gpu.clock.current)  # the host waits for what it reads
        gpu.coverage.rule_branches["no gradient overflows in fp16"] += 1
        return optimizer.step(*args, **kwargs)

    return step


def valid_by_rule(gpu: "SimulatedGPU", original: Any) -> Any:
    """`torch.distributions` asks whether parameters and samples are valid. By rule they are; the check takes memory."""

    def is_all_true(tensor: torch.Tensor) -> torch.Tensor:
        if not is_simulated(tensor):
            return original(tensor)  # type: ignore[no-any-return]
        original(tensor).item()  # the host waits here
        gpu.coverage.rule_branches["what torch.distributions checks is valid"] += 1
        return torch.tensor(True)

    return is_all_true


def deepcopy_tensor(gpu: "SimulatedGPU", original: Any) -> Any:
    def deepcopy(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
        if not is_simulated(tensor) or id(tensor) in memo:
            return original(tensor, memo)
        memo[id(tensor)] = copied = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return copied

    return deepcopy


def storage_to(gpu: "SimulatedGPU", original: Any) -> Any:
    """How `torch.load` brings what it has read to its device."""

    @functools.wraps(original)
    def to(storage: torch.UntypedStorage, *, device: Any, non_blocking: bool = False) -> torch.UntypedStorage:
        if torch.device(device).type != DEVICE_TYPE or storage.device.type == DEVICE_TYPE:
            return original(storage, device=device, non_blocking=non_blocking)  # type: ignore[no-any-return]
        host = torch.empty(0, dtype=torch.uint8).set_(storage)
        return host.to(gpu.device, non_blocking=non_blocking).untyped_storage()

    return to


def pin_memory(gpu: "SimulatedGPU", original: Any) -> Any:
    return lambda tensor, device=None: tensor


def is_pinned(gpu: "SimulatedGPU", original: Any) -> Any:
    return lambda tensor, device=None: False


def from_device_module(gpu: "SimulatedGPU", original: Any) -> Any:
    """What `torch.accelerator` or `torch.cuda` is asked is answered by the device's own module, under the same name."""
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


TORCH = "torch 2.13"
PATCHES: tuple[Patch, ...] = (
    Patch(
        "torch.nn.functional",
        "scaled_dot_product_attention",
        sdpa,
        "off CUDA it composes the math kernel, which keeps all scores",
        TORCH,
        is_branch=True,
    ),
    Patch("torch", "clear_autocast_cache", clear_autocast_cache, "casts of weights are kept here too", TORCH),
    Patch("torch", "empty", empty, "a CPU build has no pinned memory", TORCH),
    Patch(
        "torch.autograd.graph",
        "saved_tensors_hooks.__init__",
        saved_tensors_hooks,
        "out of memory while a checkpointed layer is recomputed would abort the process",
        TORCH,
    ),
    Patch(
        "torch.amp.grad_scaler",
        "GradScaler._maybe_opt_step",
        optimizer_step_by_rule,
        "what it reads back is a float, which has no value",
        TORCH,
    ),
    Patch("torch", "_is_all_true", valid_by_rule, "it compares floats, which have no values", TORCH),
    Patch("torch.Tensor", "record_stream", record_stream, "the op takes no stream of Python's", TORCH),
    Patch("torch.Tensor", "__deepcopy__", deepcopy_tensor, "it reads the bytes of the storage", TORCH),
    Patch("torch.Tensor", "pin_memory", pin_memory, "a CPU build has no pinned memory", TORCH),
    Patch("torch.Tensor", "is_pinned", is_pinned, "a CPU build has no pinned memory", TORCH),
    Patch(
        "torch.nn.Module",
        "_apply",
        module_apply,
        "parameters cannot change to this device in place, so that each would become a new object",
        TORCH,
    ),
    *(
        Patch("torch.accelerator", name, from_device_module, "its C++ half knows no Python device", TORCH)
        for name in (
            "current_stream",
            "set_stream",
            "synchronize",
            "empty_cache",
            "memory_allocated",
            "memory_reserved",
            "max_memory_allocated",
            "max_memory_reserved",
            "memory_stats",
            "reset_peak_memory_stats",
            "reset_accumulated_memory_stats",
            "get_memory_info",
            "empty_host_cache",
        )
    ),
    Patch("torch.UntypedStorage", "to", storage_to, "C++ would give it memory that nobody counts", TORCH),
)
