"""A model whose linear layers are quantised with bitsandbytes before a trainer sees it.

TRL ignores a quantization config for a model that is built already, so it is built quantised. Pretrained weights go
through transformers. Random ones are made one layer at a time, in full precision, and quantised before the next, so
that a 70B model never needs more than its quantised size and one layer. What is quantised, and with which class, is
transformers' decision in both cases. Left out: other libraries than bitsandbytes.
"""

import logging
from typing import Any

import torch
import transformers

from memexp.plan.library_arguments import bitsandbytes_arguments


def quantization_config(fields: dict[str, Any], bf16: bool) -> Any:
    """The BitsAndBytesConfig of a plan's `quantization`; see `bitsandbytes_arguments` for both arguments."""
    if fields["bits"] == 8:
        logging.getLogger("bitsandbytes.autograd._functions").addFilter(_SAID_ONCE)
    return transformers.BitsAndBytesConfig(**bitsandbytes_arguments(fields, bf16))


def random_quantized(auto_class: Any, config: Any, quantization: Any, **kwargs: Any) -> Any:
    """As `auto_class.from_config(config, **kwargs)`, quantised, on torch's default device and from torch's seed.

    The weights are drawn as transformers draws them but in another order, so they are not those of the model that the
    same seed gives unquantised.
    """
    from transformers.quantizers import AutoHfQuantizer

    device = torch.get_default_device()
    quantizer = AutoHfQuantizer.from_config(quantization, pre_quantized=False)
    quantizer.validate_environment()
    with torch.device("meta"):
        model = auto_class.from_config(config, **kwargs)
    model.hf_quantizer = quantizer
    quantizer.preprocess_model(model, dtype=kwargs["dtype"], device_map={"": device})
    _Maker(model, quantizer.get_quantize_ops(), device, kwargs["dtype"]).fill(model, model, "")
    quantizer.postprocess_model(model)
    model.eval()  # as from_pretrained leaves it
    return model


class _Maker:
    """Gives each layer of a model on the meta device its weights, as `initialize_weights` of transformers would."""

    def __init__(self, model: Any, quantize: Any, device: torch.device, dtype: torch.dtype) -> None:
        self.model, self.quantize, self.device, self.dtype = model, quantize, device, dtype
        self.made: dict[int, torch.nn.Parameter] = {}  # by the meta parameter, so that tied weights stay tied

    def fill(self, module: Any, owner: Any, name: str) -> None:
        """`owner` is the innermost model around `module`: its rules say how weights are drawn."""
        for child_name, child in module.named_children():
            inner = child if isinstance(child, transformers.PreTrainedModel) else owner
            self.fill(child, inner, f"{name}.{child_name}" if name else child_name)
        if hasattr(module, "source_cls"):  # transformers' mark on what it replaced
            self._fill_quantized(module, owner, name)
        else:
            self._fill_plain(module, owner)

    @torch.no_grad()
    def _fill_plain(self, module: Any, owner: Any) -> None:
        new = False
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if id(parameter) not in self.made:
                empty = torch.empty_like(parameter, device=self.device)
                self.made[id(parameter)] = torch.nn.Parameter(empty, parameter.requires_grad)
                new = True
            setattr(module, name, self.made[id(parameter)])
        for name, buffer in module.named_buffers(recurse=False):
            persistent = name not in module._non_persistent_buffers_set
            module.register_buffer(name, torch.empty_like(buffer, device=self.device), persistent)
            new = True
        if new:
            owner._init_weights(module)

    @torch.no_grad()
    def _fill_quantized(self, module: Any, owner: Any, name: str) -> None:
        shape = {"in_features": module.in_features, "out_features": module.out_features}
        skip_init: Any = torch.nn.utils.skip_init
        whole = skip_init(
            module.source_cls, **shape, bias=module.bias is not None, device=self.device, dtype=self.dtype
        )
        owner._init_weights(whole)
        module.weight = self.quantize.convert(
            {f"{name}.weight": whole.weight.data}, model=self.model, full_layer_name=f"{name}.weight"
        )[f"{name}.weight"]
        if module.bias is not None:
            module.bias = whole.bias.requires_grad_(False)


def quantized_parameters(model: Any) -> dict[str, Any]:
    """What of a built model is quantised, read from its parameters: the kind, and how many weights they stand for."""
    found = [p for p in model.parameters() if _is_of_bitsandbytes(p)]
    kinds = sorted({_kind(p) for p in found} - {"none"})
    count = sum(true_size(p) for p in found if _kind(p) != "none")
    return {"quantization": "+".join(kinds) or "none", "quantized_parameters": count}


def parameters_of_quantized_layers(model: Any) -> set[int]:
    """The ids of all parameters of the layers whose weights are quantised, biases included."""
    layers = (m for m in model.modules() if any(_kind(p) != "none" for p in _own(m) if _is_of_bitsandbytes(p)))
    return {id(p) for layer in layers for p in _own(layer)}


def _own(module: Any) -> list[Any]:
    return list(module.parameters(recurse=False))


def _is_of_bitsandbytes(parameter: Any) -> bool:
    return type(parameter).__name__ in ("Params4bit", "Int8Params")


def true_size(parameter: Any) -> int:
    """Weights in a parameter: a tensor of 4-bit weights has two of them in each byte."""
    state = getattr(parameter, "quant_state", None)
    return int(state.shape.numel()) if state is not None else int(parameter.numel())


def _kind(parameter: Any) -> str:
    """By what the bytes are: a parameter of a quantised class that holds floats was never quantised."""
    if parameter.is_floating_point():
        return "none"
    return str(parameter.quant_type) if type(parameter).__name__ == "Params4bit" else "int8"


class _SaidOnce(logging.Filter):
    """Lets a message through the first time only. bitsandbytes warns of its cast to fp16 in every int8 product."""

    def __init__(self) -> None:
        super().__init__()
        self.said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        is_new = message not in self.said
        self.said.add(message)
        return is_new


_SAID_ONCE = _SaidOnce()
