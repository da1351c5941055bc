"""What is replaced in accelerate and transformers: which device they train on, and which attention kernels there are.

Each function takes the simulation and what it replaces, and gives the replacement.
"""

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from memexp.simulate import flash, flash3
from memexp.simulate.patches.patch import Patch
from memexp.simulate.shapes import UnsupportedOperationError

if TYPE_CHECKING:
    from memexp.simulate.gpu import SimulatedGPU


@contextlib.contextmanager
def fresh_accelerate_state() -> Iterator[None]:
    """accelerate decides on a device once for a process: let it decide anew inside, and put the old state back."""
    state: Any = sys.modules.get("accelerate.state")
    classes = [] if state is None else [state.PartialState, state.AcceleratorState, state.GradientState]
    before = [dict(cls._shared_state) for cls in classes]
    for cls in classes:
        cls._shared_state.clear()
    try:
        yield
    finally:
        state = sys.modules.get("accelerate.state")
        if state is not None:
            for cls in (state.PartialState, state.AcceleratorState, state.GradientState):
                cls._shared_state.clear()
        for cls, shared in zip(classes, before, strict=True):
            cls._shared_state.update(shared)


def default_device(gpu: "SimulatedGPU", original: Any) -> Any:
    return property(lambda state: gpu.device)


def setup_devices(gpu: "SimulatedGPU", original: Any) -> Any:
    def device_of(args: Any) -> torch.device:
        chosen: torch.device = original.func(args)
        args._n_gpu = 1
        return torch.device("cpu") if args.use_cpu else gpu.device if chosen.type == "cpu" else chosen

    device_of.__name__ = "_setup_devices"
    replacement = functools.cached_property(device_of)
    replacement.__set_name__(type(gpu), "_setup_devices")
    return replacement


def half_precision(gpu: "SimulatedGPU", original: Any) -> Any:
    """`Accelerator.__init__`, which has a list of the devices that train in fp16; all else is as for bf16."""

    def initialize(accelerator: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("mixed_precision") != "fp16":
            original(accelerator, *args, **kwargs)
            return
        original(accelerator, *args, **{**kwargs, "mixed_precision": "bf16"})
        accelerator.state._mixed_precision = "fp16"
        handler = accelerator.scaler_handler
        scaling = {} if handler is None else handler.to_kwargs()
        accelerator.scaler = torch.amp.GradScaler(gpu.device.type, **scaling)

    return functools.wraps(original)(initialize)


def bf16_available(gpu: "SimulatedGPU", original: Any) -> Any:
    # torch 2.13 counts emulation as support: every card can hold a bf16 tensor, an old one computes with it slowly.
    return lambda: True


def nothing_loaded(gpu: "SimulatedGPU", original: Any) -> Any:
    return None


def never(gpu: "SimulatedGPU", original: Any) -> Any:
    return lambda *_, **__: False


def can_dispatch(gpu: "SimulatedGPU", original: Any) -> Any:
    """FlashAttention 2 needs Ampere, 3 needs Hopper: raises ImportError for an older card, as the package does."""

    def check(model: Any, flash_attn_version: int, is_init_check: bool = False) -> bool:
        needed = {2: (8, 0), 3: (9, 0), 4: (9, 0)}[flash_attn_version]
        if gpu.card.capability < needed:
            raise ImportError(f"FlashAttention {flash_attn_version} does not run on {gpu.card.name}")
        return True

    return check


def flash_attention_functions(gpu: "SimulatedGPU", original: Any) -> Any:
    """By name, the hub's kernels included. Raises UnsupportedOperationError for one that is not known here."""

    def load(implementation: str | None, *args: Any, **kwargs: Any) -> Any:
        name = (implementation or "flash_attention_2").lower().replace("_", "-")
        functions: Any = next((module for ends, module in _FLASH.items() if name.endswith(ends)), None)
        if functions is None:
            raise UnsupportedOperationError(f"{implementation} is an attention kernel that is not modelled")
        utils = sys.modules["transformers.modeling_flash_attention_utils"]
        pads: Any = (vars(utils)["_pad_input"], vars(utils)["_unpad_input"])
        return functions.flash_attn_func, functions.flash_attn_varlen_func, None, *pads

    return load


_FLASH = {"flash-attention-2": flash, "flash-attn2": flash, "flash-attention-3": flash3, "flash-attn3": flash3}


PATCHES: tuple[Patch, ...] = (
    Patch(
        "accelerate.state",
        "PartialState.default_device",
        default_device,
        "it looks for the devices that it knows by name",
        "accelerate 1.12 to 1.14",
        is_branch=True,
    ),
    Patch(
        "accelerate.accelerator",
        "Accelerator.__init__",
        half_precision,
        "it scales gradients on the devices that it knows by name",
        "accelerate 1.12 to 1.14",
        is_branch=True,
    ),
    Patch(
        "transformers.training_args",
        "TrainingArguments._setup_devices",
        setup_devices,
        "it ends in cuda:0 or the CPU; the first call of accelerate's own set-up is kept",
        "transformers 5.24",
        is_branch=True,
    ),
    Patch(
        "transformers.training_args",
        "is_torch_bf16_gpu_available",
        bf16_available,
        "it asks torch.cuda",
        "transformers 5.24",
        is_branch=True,
    ),
    Patch(
        "transformers.modeling_flash_attention_utils",
        "_lazy_imports",
        flash_attention_functions,
        "the flash-attn package needs a GPU; torch has the same kernels",
        "transformers 5.24, flash-attn 2.8, flash-attn 3 of August 2026",
        is_branch=True,
    ),
    Patch(
        "transformers.modeling_flash_attention_utils",
        "_loaded_implementation",
        nothing_loaded,
        "what was loaded in a simulation must not be used after it, nor the other way round",
        "transformers 5.24",
    ),
    Patch(
        "transformers.modeling_utils",
        "PreTrainedModel._flash_attn_can_dispatch",
        can_dispatch,
        "it asks for the package and for torch.cuda",
        "transformers 5.24",
        is_branch=True,
    ),
    Patch(
        "transformers.modeling_utils",
        "is_kernels_available",
        never,
        "else flash_attention_2 is looked up on the hub",
        "transformers 5.24",
        is_branch=True,
    ),
)
