"""What the built trainer really uses: read from it, its first batch and its optimizer, never from the request."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from memexp.plan.plan import Plan
from memexp.run.quantize import parameters_of_quantized_layers, quantized_parameters
from memexp.run.sharding import innermost, launch_settings, master_dtypes, whole_size
from memexp.run.vllm import vllm_settings

# What shows in no other way than as the argument that the TRL config ended with, where it has one.
_ARGUMENTS = (
    *("max_length", "pad_to_multiple_of", "loss_type"),
    *("max_completion_length", "max_new_tokens", "num_generations", "generation_batch_size", "num_iterations", "beta"),
)


def effective_settings(trainer: Any, batch_keys: tuple[str, ...]) -> dict[str, Any]:
    """Read it all after training has begun: checkpointing is switched on, and the optimizer built, only then.

    Where there is an effect to see it is read (hooks, batch, dtypes); where there is none, the resolved argument.
    """
    args, model = trainer.args, trainer.model
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return {
        "packing": args.packing_strategy if getattr(args, "packing", False) else "none",
        # transformers runs the variable-length path only for a batch without a mask of its own.
        "padding_free": "cu_seq_lens_q" in batch_keys and "attention_mask" not in batch_keys,
        **{name: getattr(args, name) for name in _ARGUMENTS if hasattr(args, name)},
        "offload": type(getattr(trainer, "maybe_activation_offload_context", None)).__name__ == "OffloadActivations",
        **_checkpointing(base),
        "attention": base.config._attn_implementation,
        "kernels": _has_kernels(base),
        "reference_model": getattr(trainer, "ref_model", None) is not None,
        **launch_settings(trainer),
        **vllm_settings(trainer),
        **_precision(trainer, base),
        **_optimizer(trainer),
        **_parameters(model),
        **quantized_parameters(model),
        "allocator": _allocator(args.device),
    }


def fallen_back(plan: Plan, effective: dict[str, Any]) -> list[str]:
    """The techniques that were asked for and whose effect is not there, as `group=option`."""
    return [
        f"{technique.group}={technique.option}"
        for technique in plan.techniques
        if any(effective.get(name) != value for name, value in technique.confirm.items())
    ]


def _checkpointing(model: Any) -> dict[str, Any]:
    if not model.is_activation_checkpointing:
        return {"checkpointing": "none"}
    functions = [
        module._gradient_checkpointing_func
        for module in model.modules()
        if getattr(module, "gradient_checkpointing", False) and hasattr(module, "_gradient_checkpointing_func")
    ]
    keywords: list[dict[str, Any]] = [getattr(function, "keywords", {}) for function in functions]
    selective = any(given.get("context_fn") is not None for given in keywords)
    # With adapters under ZeRO-3 TRL takes the reentrant one, whatever was asked for.
    reentrant = any(given.get("use_reentrant") for given in keywords)
    # transformers wraps torch's function where inputs are to be saved on the host.
    offloads = any(getattr(function, "func", None) is not checkpoint for function in functions)
    kind = "selective" if selective else "offload" if offloads else "full"
    return {"checkpointing": kind, "use_reentrant": reentrant}


def _has_kernels(model: Any) -> bool:
    """Whether the hub's kernels took any layer's place: they give it a forward of its own."""
    layers = (module for module in model.modules() if module is not model)
    return bool(getattr(model, "use_kernels", False)) and any("forward" in vars(layer) for layer in layers)


def _precision(trainer: Any, model: Any) -> dict[str, Any]:
    mixed = {"bf16": "bfloat16", "fp16": "float16"}.get(trainer.accelerator.mixed_precision)
    # bitsandbytes casts a 4-bit layer's bias to the dtype of its input at the first forward, whatever was asked for.
    recast = parameters_of_quantized_layers(model)
    frozen = [p.dtype for p in model.parameters() if not p.requires_grad and id(p) not in recast]
    # DeepSpeed's modules compute with copies of the weights that its optimizer steps on.
    weights = frozen or master_dtypes(trainer.optimizer) or [p.dtype for p in model.parameters()]
    trained = [p.dtype for p in model.parameters() if p.requires_grad]
    scaler = trainer.accelerator.scaler
    return {
        "autocast_dtype": mixed,
        "loss_is_scaled": scaler is not None and getattr(scaler, "_scale", None) is not None,  # made at the first use
        "weights_dtype": _names(weights),
        "adapters_dtype": _names(trained) if frozen else None,
    }


def _names(dtypes: Iterable[torch.dtype]) -> str:
    return "+".join(sorted({str(dtype).removeprefix("torch.") for dtype in dtypes if dtype.is_floating_point}))


def _optimizer(trainer: Any) -> dict[str, Any]:
    optimizer = innermost(trainer.optimizer)
    defaults = getattr(optimizer, "defaults", {})
    name = getattr(trainer.args.optim, "value", str(trainer.args.optim))
    if name == "adamw_torch_fused" and not defaults.get("fused"):
        name = "adamw_torch"
    state = [value for group in optimizer.state.values() for value in group.values() if isinstance(value, torch.Tensor)]
    return {
        "optimizer": name,
        "optimizer_class": type(optimizer).__name__,
        "optimizer_state_dtypes": sorted({str(value.dtype).removeprefix("torch.") for value in state if value.dim()}),
        "optimizer_moments_dtype": _moments_dtype(optimizer),
    }


def _moments_dtype(optimizer: Any) -> str | None:
    """The narrowest dtype of any moment. Of 8-bit state some is in fp32 all the same: small weights and embeddings."""
    moments = [
        value.dtype
        for weight, state in optimizer.state.items()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.shape == weight.shape
    ]
    return str(min(moments, key=lambda dtype: dtype.itemsize)).removeprefix("torch.") if moments else None


def _parameters(model: Any) -> dict[str, Any]:
    config = next(iter(getattr(model, "peft_config", {}).values()), None)
    trainable = sum(whole_size(p) for p in model.parameters() if p.requires_grad)
    return {
        "peft": _adapters(model, config.peft_type.value.lower()) if config is not None else "none",
        "parameters": sum(whole_size(p) for p in model.parameters()),
        "trainable_parameters": trainable,
    }


def _adapters(model: Any, kind: str) -> str:
    """LoRA's variants by what their layers hold: a magnitude for each output, or a scale that is not alpha / r."""
    if kind != "lora":
        return kind
    layers = [
        module for module in model.modules() if getattr(module, "scaling", None) and hasattr(module, "lora_alpha")
    ]
    if any(len(layer.lora_magnitude_vector) for layer in layers):
        return "dora"
    rescaled = any(
        layer.scaling[name] * layer.r[name] != layer.lora_alpha[name] for layer in layers for name in layer.r
    )
    return "rslora" if rescaled else "lora"


def _allocator(device: torch.device) -> str | None:
    """The settings of this process; on a GPU, real or simulated, an expandable segment is looked for in its memory."""
    settings = torch._C._accelerator_getAllocatorSettings() or None
    if device.type == "cpu":
        return settings
    segments = torch.get_device_module(device).memory_snapshot()
    expands = any(segment.get("is_expandable") for segment in segments)
    asked = settings is not None and "expandable_segments:True" in settings
    if expands == asked or not segments:
        return settings
    return "expandable segments" if expands else "no expandable segments"
