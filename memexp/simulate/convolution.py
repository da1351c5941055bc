"""Convolutions as CUDA runs them on cuDNN: in which layout, what is copied for it, and in which order.

What `_convolution` and `convolution_backward` (ATen/native/Convolution.cpp, torch 2.13) do for cuDNN, whose output and
gradients are then those of ConvShared.cpp. The workspace is its plan's and not known. Left out: the kernels without
cuDNN, which give tensors of the same size. Each function is a method of `OpStream`.
"""

from typing import TYPE_CHECKING, Any

import torch

from memexp.simulate.shapes import convolution_layout

if TYPE_CHECKING:
    from memexp.simulate.ops import OpStream

aten = torch.ops.aten


def forward(ops: "OpStream", func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    """The bias is added in place, by a kernel of its own."""
    source, weight, bias, *rest = args
    layout = convolution_layout(source, weight)
    source, weight = source.contiguous(memory_format=layout), weight.contiguous(memory_format=layout)
    out: torch.Tensor = ops.run(aten.convolution.default, (source, weight, None, *rest), {})
    if bias is not None:
        out.add_(bias.view(-1, *[1] * (out.dim() - 2)))
    return out


def backward(ops: "OpStream", func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
    """One kernel for the gradient of the input, one for that of the weight; a sum for that of the bias."""
    gradient, source, weight, *rest, wanted = args
    layout = convolution_layout(source, weight)
    source = source.contiguous(memory_format=layout)
    if wanted[0] or wanted[1]:
        gradient = gradient.contiguous(memory_format=layout)
        weight = weight.contiguous(memory_format=layout)

    def alone(place: int) -> Any:
        only = [each == place for each in range(3)]
        return ops.run(aten.convolution_backward.default, (gradient, source, weight, None, *rest, only), {})[place]

    for_source, for_weight = (alone(place) if wanted[place] else None for place in (0, 1))
    for_bias = gradient.sum([dim for dim in range(gradient.dim()) if dim != 1]) if wanted[2] else None
    return for_source, for_weight, for_bias


CONVOLUTION = {
    "aten::convolution_overrideable": forward,
    "aten::convolution_backward_overrideable": backward,
}
