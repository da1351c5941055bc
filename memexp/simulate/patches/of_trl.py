"""What is replaced in TRL: its losses take the way of a GPU, with Triton kernels that do nothing.

Each function takes the simulation and what it replaces, and gives the replacement. The replacements allocate what TRL
allocates on a GPU: the same tensors, of the same shapes, in the same order.
"""

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from memexp.simulate.patches.patch import Patch
from memexp.simulate.tensors import is_simulated

if TYPE_CHECKING:
    from memexp.simulate.gpu import SimulatedGPU

_HALVES = (torch.float16, torch.bfloat16)


def always(gpu: "SimulatedGPU", original: Any) -> Any:
    return lambda *_, **__: True


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


PATCHES: tuple[Patch, ...] = (
    Patch(
        "trl.kernels.chunked_logprob",
        "_use_triton",
        use_triton,
        "off CUDA the fused loss takes several fp32 copies of each tile of logits",
        "trl 1.16",
        is_branch=True,
    ),
    *(
        Patch(f"trl.kernels.{module}", name, launcher, "kernels write into what is allocated outside", "trl 1.16")
        for module, names in {
            "chunked_logprob": ("_forward_kernel", "_backward_kernel"),
            "chunked_divergence": ("_stats_kernel", "_jsd_kernel", "_backward_kernel"),
        }.items()
        for name in names
    ),
    *(
        Patch(f"trl.kernels.{module}", "triton", triton, "a CPU build has no Triton", "trl 1.16", creates=True)
        for module in ("chunked_logprob", "chunked_divergence")
    ),
    Patch(
        "trl.kernels.chunked_logprob",
        "_addmm_fp32",
        addmm_fp32,
        "off CUDA it makes fp32 copies of both factors",
        "trl 1.16",
        is_branch=True,
    ),
    Patch("trl.kernels.chunked_divergence", "_use_triton", use_triton, "as above", "trl 1.16", is_branch=True),
    Patch("trl.kernels.chunked_divergence", "_addmm_fp32", addmm_fp32, "as above", "trl 1.16", is_branch=True),
    Patch("trl.kernels.chunked_divergence", "_project", project, "as above", "trl 1.16", is_branch=True),
    Patch(
        "trl.trainer.utils",
        "_supports_trl_loss_kernel",
        supports_loss_kernel,
        "off CUDA log-probabilities are taken row by row",
        "trl 1.16",
        is_branch=True,
    ),
    Patch(
        "trl.trainer.utils",
        "is_triton_available",
        always,
        "Triton comes with torch for CUDA",
        "trl 1.16",
        is_branch=True,
    ),
    Patch(
        "trl.trainer.utils",
        "_fused_logprob_entropy",
        fused_logprob_entropy,
        "the module of the kernel cannot be imported without Triton",
        "trl 1.16",
        creates=True,
    ),
)
