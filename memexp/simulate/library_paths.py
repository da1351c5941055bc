"""What stands in for functions of accelerate, transformers and TRL during a simulation. `patches` says where and why.

Each function takes the simulation and what it replaces, and gives the replacement. The replacements allocate what the
libraries allocate on a GPU: the same tensors, of the same shapes, in the same order.
"""

import contextlib
import functools
import math
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from memexp.simulate import flash, flash3
from memexp.simulate.outcomes import UnsupportedOperationError
from memexp.simulate.tensors import is_simulated

if TYPE_CHECKING:
    from memexp.simulate.gpu import SimulatedGPU

_HALVES = (torch.float16, torch.bfloat16)


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


def always(gpu: "SimulatedGPU", original: Any) -> Any:
    return lambda *_, **__: True


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


def use_triton(gpu: "SimulatedGPU", original: Any) -> Any:
    return lambda device: device.type == gpu.device.type or original(device)


class _Launcher:
    """A Triton kernel that does nothing: all its buffers are allocated by its caller."""

    def __init__(self, original: Any) -> None:
        self.original = original

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.original(*args, **kwargs)


def launcher(gpu: "SimulatedGPU", original: Any) -> Any:
    return _Launcher(original)


def triton(gpu: "SimulatedGPU", original: Any) -> Any:
    return SimpleNamespace(cdiv=lambda value, by: math.ceil(value / by))


def addmm_fp32(gpu: "SimulatedGPU", original: Any) -> Any:
    def addmm(acc: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        if is_simulated(acc) and a.dtype in _HALVES:
            torch.addmm(acc, a, b, out_dtype=torch.float32, out=acc)
        else:
            original(acc, a, b)

    return addmm


def project(gpu: "SimulatedGPU", original: Any) -> Any:
    def projection(
        tile: torch.Tensor,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        start: int,
        end: int,
        dtype: torch.dtype,
    ) -> None:
        if not (is_simulated(tile) and dtype in _HALVES):
            original(tile, hidden, weight, bias, start, end, dtype)
            return
        torch.mm(hidden, weight[start:end].to(dtype).t(), out_dtype=torch.float32, out=tile)
        if bias is not None:
            tile.add_(bias[start:end].float())

    return projection


def supports_loss_kernel(gpu: "SimulatedGPU", original: Any) -> Any:
    """The conditions on CUDA: a usual float dtype, one to three dimensions, and logits contiguous in the vocabulary."""

    def supports(logits: torch.Tensor, index: Any = None, row_mask: Any = None) -> bool:
        if not is_simulated(logits):
            return bool(original(logits, index, row_mask))
        fits = logits.dtype in (*_HALVES, torch.float32) and 1 <= logits.ndim <= 3 and logits.stride(-1) == 1
        fits = fits and logits.shape[-1] > 0
        if index is not None:
            fits = fits and index.shape == logits.shape[:-1]
        return fits and (row_mask is None or (index is not None and row_mask.shape == index.shape))

    return supports


def fused_logprob_entropy(gpu: "SimulatedGPU", original: Any) -> Any:
    def fused(
        logits: torch.Tensor, index: torch.Tensor, temperature: float = 1.0, row_mask: torch.Tensor | None = None
    ) -> Any:
        return _LogProbEntropy.apply(logits, index, row_mask)  # type: ignore[no-untyped-call]

    return fused


class _LogProbEntropy(torch.autograd.Function):
    """The buffers of TRL's fused kernel: four numbers a row forward, the gradient of the logits backward."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, index: torch.Tensor, row_mask: torch.Tensor | None) -> Any:
        rows = [torch.empty(logits.shape[:-1], device=logits.device, dtype=torch.float32) for _ in range(4)]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, index, rows[2], rows[3], row_mask)
        return rows[0], rows[1]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        logits = ctx.saved_tensors[0]
        return torch.empty_like(logits, memory_format=torch.contiguous_format), None, None
