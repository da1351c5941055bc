"""Kernels of the simulated device for torch's dispatcher: which ops a GPU runs as kernels, which it composes of others.

An op that has a kernel of its own for the CPU has one for CUDA as well, so that those get one here. All others take the
same way as on CUDA: torch composes them, and what they are made of comes here. Nothing is intercepted, so that autograd
does what it does on a GPU. Registered once for a process; there is no kernel outside of a simulation.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library

from memexp.simulate import backend
from memexp.simulate.convolution import CONVOLUTION
from memexp.simulate.dependent import DEPENDENT
from memexp.simulate.shapes import UnsupportedOperationError
from memexp.simulate.tensors import CPU_KERNELS
from memexp.simulate.transfers import TRANSFERS

# Views and metadata: the CPU's kernels for these read no data and do for every device.
_METADATA = (
    "as_strided",
    "view",
    "_reshape_alias",
    "view.dtype",
    "unfold",
    "view_as_real",
    "view_as_complex",
    "set_.source_Storage",
    "set_.source_Storage_storage_offset",
    "set_.source_Tensor",
    "set_",
)
# Ops that torch composes where a device has no kernel, and for which CUDA has one.
_CUDA_ONLY = ("clone", "_fused_rms_norm", "_fused_rms_norm_backward", "native_dropout", "native_dropout_backward")
# Tensors that are no block of memory with strides.
_NOT_DENSE = ("Sparse", "SparseCsr", "NestedTensor", "Quantized")
# Ops that are no function of their arguments' shapes alone, or are more than one kernel.
_SPECIAL = {**TRANSFERS, **DEPENDENT, **CONVOLUTION}
_LIBRARIES: list[Library] = []


@functools.cache
def register_kernels() -> None:
    """Tell torch's dispatcher. Takes a fraction of a second."""
    make: Any = Library
    library, others = make("aten", "IMPL"), make("_", "IMPL")
    _LIBRARIES.extend((library, others))
    for name in sorted(_names()):
        library.impl(name, _kernel(_overload(name)), "PrivateUse1")
    others.fallback(_fallback, "PrivateUse1")
    for kind in _NOT_DENSE:
        others.fallback(functools.partial(_refuse, kind), f"{kind}PrivateUse1")


def _names() -> set[str]:
    own = {name.removeprefix("aten::") for name in torch._C._dispatch_get_registrations_for_dispatch_key("CPU")}
    names = {name for name in own if hasattr(torch.ops.aten, name.split(".")[0])}
    for packet in dir(torch.ops.aten):
        if packet.startswith("_foreach_") or packet in _CUDA_ONLY:
            names.update(_full_name(packet, overload) for overload in getattr(torch.ops.aten, packet).overloads())
    names.update(name.removeprefix("aten::") for name in _SPECIAL)
    return names


def _full_name(packet: str, overload: str) -> str:
    return packet if overload == "default" else f"{packet}.{overload}"


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _kernel(func: Any) -> Callable[..., Any]:
    name = func.name()
    if name.removeprefix("aten::") in _METADATA:
        return functools.partial(func.redispatch, CPU_KERNELS)
    special = _SPECIAL.get(name)
    if special is not None:
        return lambda *args, **kwargs: special(backend.active_gpu().ops, func, args, kwargs)
    return lambda *args, **kwargs: backend.active_gpu().ops.run(func, args, kwargs)


def _fallback(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Ops that only CUDA has, and those of other libraries."""
    return backend.active_gpu().ops.run(func, args, kwargs)


def _refuse(kind: str, func: Any, *args: Any, **kwargs: Any) -> Any:
    raise UnsupportedOperationError(
        f"{func.name()} cannot be simulated: {kind} tensors are not modelled, only dense ones"
    )
