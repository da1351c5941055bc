"""bitsandbytes on the simulated device: the library's own CUDA code, with its kernels left out.

Its operators for CUDA are Python that makes tensors and hands their addresses to a compiled kernel. So a second copy of
that module is loaded whose compiled library does nothing, and its operators are registered for the simulated device:
what is allocated, and which way an operator goes on a card, is decided by the installed version itself. Time is charged
here. Left out: outliers of int8, which depend on values (a branch by rule), and the pages of a paged optimizer, which
are managed memory outside of the allocator. Read against bitsandbytes 0.50.
"""

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch.library import Library

from memexp.simulate import backend
from memexp.simulate.costs import BANDWIDTH_SHARE, FLOPS_SHARE
from memexp.simulate.tensors import is_simulated

if TYPE_CHECKING:
    from memexp.simulate.gpu import SimulatedGPU

_CUDA = "bitsandbytes.backends.cuda.ops"
# Operators that call others of this module, each of which charges its own time.
_COMPOSED = (
    "dequantize_4bit",
    "dequantize_4bit.out",
    "dequantize_blockwise",
    "dequantize_blockwise.out",
    "gemm_4bit",
    "int8_double_quant",
    "int8_linear_matmul",
    "int8_linear_matmul.out",
)
_INT8_RATE = 2  # tensor cores multiply int8 at twice the rate of halves: data sheets of all cards in `cards`
_LIBRARIES: list[Library] = []


def own_tables(gpu: "SimulatedGPU", original: Any) -> Any:
    """For `functional.name2qmap`, which keeps its tables on the device that asked first."""
    operators: Any = register_operators()
    operators._gpu_dispatch_props = lambda index: (gpu.card.multiprocessors, *gpu.card.capability)
    operators._gemm_4bit_use_custom_fn.cache_clear()
    return {}


def get_paged(gpu: "SimulatedGPU", original: Any) -> Any:
    """Managed memory: the allocator does not know of it. A tensor of the host stands for it, and is never written."""

    def paged(*shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> torch.Tensor:
        buffer: Any = torch.empty(shape, dtype=dtype, device="cpu")
        buffer.is_paged, buffer.page_deviceid = True, 0
        return buffer  # type: ignore[no-any-return]

    return paged


def quantize_int8(gpu: "SimulatedGPU", original: Any) -> Any:
    """For `Int8Params._quantize`, which lets a parameter of the host have its data on the card from then on."""

    def quantize(parameter: Any, device: torch.device) -> Any:
        if parameter.has_fp16_weights or torch.device(device).type != gpu.device.type:
            return original(parameter, device)
        halves = parameter.data.contiguous().to(device=device, dtype=torch.float16)
        weights, scales, _ = torch.ops.bitsandbytes.int8_vectorwise_quant(halves)
        return type(parameter)(weights, requires_grad=False, CB=weights, SCB=scales)

    return quantize


def nothing(gpu: "SimulatedGPU", original: Any) -> Any:
    return lambda *args, **kwargs: None


def synchronize(gpu: "SimulatedGPU", original: Any) -> Any:
    return lambda tensor: gpu.synchronize() if is_simulated(tensor) else original(tensor)


def statistics(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """What a quantised layer keeps on the card beside its parameters: scales, their own scales, and code tables."""
    held: list[Any] = [getattr(module, "state", None)]
    for parameter in module.parameters(recurse=False):
        state = getattr(parameter, "quant_state", None)
        held += [parameter, state, getattr(state, "state2", None)]
    for holder in held:
        for name in ("CB", "SCB", "absmax", "code", "offset"):
            tensor = getattr(holder, "__dict__", {}).get(name)
            if isinstance(tensor, torch.Tensor):
                yield tensor


@functools.cache
def register_operators() -> ModuleType:
    """Tell torch's dispatcher, once for a process. Returns the copy of the module that the operators come from."""
    kernels: dict[str, Callable[..., Any]] = {}
    operators = _load_copy(kernels)
    make: Any = Library
    library = make("bitsandbytes", "IMPL")
    _LIBRARIES.append(library)
    for name, function in kernels.items():
        library.impl(name, _timed(name, function), "PrivateUse1")
    return operators


def _load_copy(kernels: dict[str, Callable[..., Any]]) -> ModuleType:
    """The module for CUDA once more, under a name of its own: nothing in it reaches a card, or the original."""
    spec = importlib.util.find_spec(_CUDA)
    assert spec is not None and spec.origin is not None
    copy_spec = importlib.util.spec_from_file_location(f"{_CUDA}_simulated", spec.origin)
    assert copy_spec is not None and copy_spec.loader is not None
    module: Any = importlib.util.module_from_spec(copy_spec)

    def collect(name: str, device: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def keep(function: Callable[..., Any]) -> Callable[..., Any]:
            kernels[name.removeprefix("bitsandbytes::")] = function
            return function

        return keep

    bnb = {name: sys.modules[f"bitsandbytes.{name}"] for name in ("_ops", "cextension")}
    with (
        mock.patch.object(bnb["_ops"], "register_kernel", collect),
        mock.patch.object(bnb["cextension"], "lib", _NoKernels()),
        mock.patch.object(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, create=True),
    ):
        copy_spec.loader.exec_module(module)
    context = SimpleNamespace(get_context=lambda device: 0)
    module.CUBLAS_Context = SimpleNamespace(get_instance=lambda: context)
    module._dequantize_4bit_impl = _dequantize
    module._dequantize_blockwise_impl = _dequantize
    module._gemm_4bit_kernel_impl = functools.partial(_gemm, module._gemm_4bit_kernel_impl)
    module._int8_linear_matmul_impl = functools.partial(_int8_gemm, module._int8_linear_matmul_impl)
    return module  # type: ignore[no-any-return]


class _NoKernels:
    """The compiled library: any function of it, none of which does anything. 0 is its word for no error."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *args: 0


def _timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        backend.active_gpu()  # raises outside of a simulation
        out = function(*args, **kwargs)
        if name not in _COMPOSED:
            _charge((*args, *kwargs.values()), out if isinstance(out, tuple) else (out,))
        return out

    return run


def _dequantize(packed: torch.Tensor, absmax: torch.Tensor, *args: Any, out: torch.Tensor, **kwargs: Any) -> None:
    packed.contiguous()
    _charge((packed, absmax, out))


def _gemm(original: Any, activations: torch.Tensor, packed: torch.Tensor, shape: Any, *args: Any, **kwargs: Any) -> Any:
    """The fused product of small batches. It multiplies halves on tensor cores, and fp32 outside of them."""
    out = original(activations, packed, shape, *args, **kwargs)
    card = backend.active_gpu().card
    rate = card.float32_flops if activations.dtype == torch.float32 else card.bfloat16_flops
    _charge((activations, packed, out), flops=2 * activations.numel() * shape[0], rate=rate)
    return out


def _int8_gemm(original: Any, left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> Any:
    result = original(left, right, out)
    rate = backend.active_gpu().card.half_flops * _INT8_RATE
    _charge((left, right, out), flops=2 * left.numel() * right.shape[0], rate=rate)
    return result


def _charge(*groups: Any, flops: float = 0.0, rate: float = 1.0) -> None:
    """The time of one kernel that reads or writes these tensors once, as `costs` has it."""
    gpu = backend.active_gpu()
    tensors = {id(t): t for group in groups for t in group if isinstance(t, torch.Tensor)}
    moved = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    gpu.coverage.ops += 1
    gpu.clock.run(max(flops / (rate * FLOPS_SHARE), moved / (gpu.card.bytes_per_second * BANDWIDTH_SHARE)))
