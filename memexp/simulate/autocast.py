"""Autocast on the simulated device, with CUDA's rules: which ops run in the lower precision, which in fp32.

PrivateUse1 has no rules of its own. Casts of weights are kept until the outermost `autocast` ends, and take memory, as
on CUDA. The lists are those of aten/src/ATen/autocast_mode.h, torch 2.13.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library, fallthrough_kernel

from memexp.simulate.tensors import DEVICE_TYPE, is_simulated


def _names(text: str) -> list[str]:
    return text.split()


_LOWER = _names("""
    _convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input
    convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul
    linalg_multi_dot
""")
_FLOAT32 = _names("""
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
    pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm frobenius_norm.dim nuclear_norm
    nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss
    kl_div l1_loss
    smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
    multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp prod prod.dim_int softmax.int
    log_softmax.int cumprod cumsum linalg_vector_norm sum sum.dim_IntList norm.Scalar norm.ScalarOpt_dim
""")
_WIDEST = _names("""
    addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add stack cat
""")

_KEY = "AutocastPrivateUse1"
_EXCLUDED = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, _KEY))
_LIBRARIES: list[Library] = []
_weights: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}


@functools.cache
def register_autocast() -> None:
    """Once for a process: dispatcher rules that act only under `torch.autocast` of the simulated device."""
    library: Any = Library
    rules, others = library("aten", "IMPL"), library("_", "IMPL")
    _LIBRARIES.extend((rules, others))
    others.fallback(fallthrough_kernel, _KEY)
    for names, kernel in ((_LOWER, _lower), (_FLOAT32, _float32), (_WIDEST, _widest)):
        for name in names:
            packet, _, overload = name.partition(".")
            rules.impl(name, kernel(getattr(getattr(torch.ops.aten, packet), overload or "default")), _KEY)


def clear_cast_weights() -> None:
    """What `torch.clear_autocast_cache` does for the devices that torch knows."""
    _weights.clear()


def _lower(func: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_EXCLUDED):
            dtype = torch.get_autocast_dtype(DEVICE_TYPE)
            return func(*_cast_all(args, dtype), **kwargs)

    return kernel


def _float32(func: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_EXCLUDED):
            return func(*_cast_all(args, torch.float32), **kwargs)

    return kernel


def _widest(func: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_EXCLUDED):
            floats = [t.dtype for t in _flat(args) if t.is_floating_point() and is_simulated(t)]
            dtype = torch.float32 if torch.float32 in floats else torch.get_autocast_dtype(DEVICE_TYPE)
            return func(*(_cast_all(args, dtype) if len(set(floats)) > 1 else args), **kwargs)

    return kernel


def _cast_all(values: Any, dtype: torch.dtype) -> list[Any]:
    cast: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            cast.append(cast_tensor(value, dtype))
        elif type(value) in (list, tuple):
            cast.append(_cast_all(value, dtype))
        else:
            cast.append(value)
    return cast


def cast_tensor(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """As `cached_cast`: leaves that need a gradient are cast once for all their uses."""
    if (
        tensor.dtype == dtype
        or not tensor.is_floating_point()
        or tensor.dtype == torch.float64
        or not is_simulated(tensor)
    ):
        return tensor
    cacheable = dtype != torch.float32 and tensor.dtype == torch.float32 and tensor.requires_grad and tensor.is_leaf
    if not (cacheable and torch.is_autocast_cache_enabled() and not tensor._is_view()):
        return tensor.to(dtype)
    cached = _weights.get(id(tensor))
    if cached is None:
        cached = _weights[id(tensor)] = (tensor, tensor.to(dtype))
    return cached[1]


def _flat(values: Any) -> Any:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif type(value) in (list, tuple):
            yield from _flat(value)
