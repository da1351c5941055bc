"""What the built trainer really uses: read from it, its first batch and its optimizer, never from the request."""

from typing import Any

import torch

from memexp.plan.plan import Plan


def effective_settings(trainer: Any, batch_keys: tuple[str, ...]) -> dict[str, Any]:
    """Read it all after training has begun: checkpointing is switched on, and the optimizer built, only then.

    Where there is an effect to see it is read (hooks, batch, dtypes); where there is none, the resolved argument.
    """
    args, model = trainer.args, trainer.model
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return {
        "packing": args.packing_strategy if args.packing else "none",
        # transformers runs the variable-length path only for a batch without a mask of its own.
        "padding_free": "cu_seq_lens_q" in batch_keys and "attention_mask" not in batch_keys,
        "max_length": args.max_length,
        "pad_to_multiple_of": args.pad_to_multiple_of,
        "offload": type(trainer.maybe_activation_offload_context).__name__ == "OffloadActivations",
        "checkpointing": _checkpointing(base),
        "attention": base.config._attn_implementation,
        "loss_type": args.loss_type,
        **_precision(trainer, base),
        **_optimizer(trainer),
        **_parameters(model),
        "allocator": _allocator(),
    }


def fallen_back(plan: Plan, effective: dict[str, Any]) -> list[str]:
    """The techniques that were asked for and whose effect is not there, as `group=option`."""
    return [
        f"{technique.group}={technique.option}"
        for technique in plan.techniques
        if any(effective.get(name) != value for name, value in technique.confirm.items())
    ]


def _checkpointing(model: Any) -> str:
    if not model.is_activation_checkpointing:
        return "none"
    functions = [
        module._gradient_checkpointing_func
        for module in model.modules()
        if getattr(module, "gradient_checkpointing", False) and hasattr(module, "_gradient_checkpointing_func")
    ]
    contexts = (getattr(function, "keywords", {}).get("context_fn") for function in functions)
    return "selective" if any(context is not None for context in contexts) else "full"


def _precision(trainer: Any, model: Any) -> dict[str, Any]:
    mixed = {"bf16": "bfloat16", "fp16": "float16"}.get(trainer.accelerator.mixed_precision)
    frozen_or_all = [p.dtype for p in model.parameters() if not p.requires_grad] or [
        p.dtype for p in model.parameters()
    ]
    dtypes = sorted({str(dtype).removeprefix("torch.") for dtype in frozen_or_all if dtype.is_floating_point})
    return {"autocast_dtype": mixed, "weights_dtype": "+".join(dtypes)}


def _optimizer(trainer: Any) -> dict[str, Any]:
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    defaults = getattr(optimizer, "defaults", {})
    name = getattr(trainer.args.optim, "value", str(trainer.args.optim))
    if name == "adamw_torch_fused" and not defaults.get("fused"):
        name = "adamw_torch"
    state = [value for group in optimizer.state.values() for value in group.values() if isinstance(value, torch.Tensor)]
    return {
        "optimizer": name,
        "optimizer_class": type(optimizer).__name__,
        "optimizer_state_dtypes": sorted({str(value.dtype).removeprefix("torch.") for value in state if value.dim()}),
    }


def _parameters(model: Any) -> dict[str, Any]:
    config = next(iter(getattr(model, "peft_config", {}).values()), None)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return {
        "peft": config.peft_type.value.lower() if config is not None else "none",
        "parameters": sum(p.numel() for p in model.parameters()),
        "trainable_parameters": trainable,
    }


def _allocator() -> str | None:
    """The settings of this process; on CUDA an expandable segment is looked for in the allocator itself."""
    settings = torch._C._accelerator_getAllocatorSettings() or None
    if settings and "expandable_segments:True" in settings and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        if segments and not any(segment.get("is_expandable") for segment in segments):
            return "no expandable segments"
    return settings
