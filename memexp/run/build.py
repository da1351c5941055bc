"""Build what a plan asks for: tokenizer, model, TRL config and trainer. Random weights need no network and no file."""

import importlib
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers

from memexp.plan.library_arguments import MODEL_CLASSES, head_arguments, lora_arguments
from memexp.plan.plan import Model, Plan
from memexp.plan.trusted import check_class
from memexp.run.data import ASSETS
from memexp.run.own_reward import load_reward
from memexp.run.quantize import quantization_config, random_quantized
from memexp.run.refusal import Refused


def build_tokenizer(plan: Plan) -> transformers.PreTrainedTokenizerBase:
    """The model's own where it is pretrained, else the one that ships with memexp. Raises Refused (not_found)."""
    model = plan.work.model
    if model.weights == "random":
        return transformers.AutoTokenizer.from_pretrained(ASSETS / "tokenizer")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            model.path, revision=model.revision, trust_remote_code=model.trust_remote_code
        )
    except Exception as error:  # whatever a damaged file makes of it
        raise _cannot_load(model, error, "the tokenizer of ") from error
    # transformers 5.24 makes an empty one of the model's kind where a folder has no file of any.
    if set(tokenizer.get_vocab().values()) <= set(tokenizer.all_special_ids):
        raise Refused("not_found", f"model.path={model.path} has no tokenizer. Give its tokenizer.json as well.")
    return tokenizer


def build_config(model: Model) -> Any:
    """The transformers config: from the plan's own figures, or from the pretrained model's. Raises Refused."""
    if model.weights == "random":
        return transformers.AutoConfig.for_model(model.model_type, **model.config)
    try:
        return transformers.AutoConfig.from_pretrained(
            model.path, revision=model.revision, trust_remote_code=model.trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise _cannot_load(model, error) from error


def build_model(plan: Plan, config: Any) -> Any:
    """The model in the plan's dtype. Random weights are drawn from the plan's seed; a simulated GPU loads no others."""
    model = plan.work.model
    kwargs = dict(model.kwargs)
    use_kernels = kwargs.pop("use_kernels", False)
    family = getattr(transformers, MODEL_CLASSES[plan.work.trainer.task])
    head = head_arguments(plan.work.trainer.task)
    for name, value in head.items():
        setattr(config, name, value)
    transformers.set_seed(plan.work.seed)
    built = _built(plan, config, family, head, kwargs)
    if use_kernels:
        built.set_use_kernels(True)
    return built


def _built(plan: Plan, config: Any, family: Any, head: dict[str, Any], kwargs: dict[str, Any]) -> Any:
    model, dtype = plan.work.model, getattr(torch, kwargs.pop("dtype"))
    quantization = _quantization(kwargs.pop("quantization", None), plan)
    if model.weights == "random" or plan.work.backend == "simulate":
        kwargs |= {"dtype": dtype, "trust_remote_code": model.trust_remote_code}
        if quantization is not None:
            return random_quantized(family, config, quantization, **kwargs)
        if model.weights == "pretrained":
            _replay_loading(family, config, kwargs)
        return family.from_config(config, **kwargs)
    if quantization is not None:
        kwargs["quantization_config"] = quantization
    return family.from_pretrained(
        model.path, revision=model.revision, trust_remote_code=model.trust_remote_code, dtype=dtype, **kwargs, **head
    )


def _replay_loading(family: Any, config: Any, kwargs: dict[str, Any]) -> None:
    from memexp.simulate.loading import warm_up_allocator

    with torch.device("meta"):
        skeleton = family.from_config(config, **kwargs)
    warm_up_allocator(skeleton)


def _quantization(fields: dict[str, Any] | None, plan: Plan) -> Any:
    return quantization_config(fields, bool(plan.work.trainer.args.get("bf16"))) if fields else None


def build_args(plan: Plan, output_dir: Path) -> Any:
    """The TRL config. Raises what TRL raises for an argument it does not accept."""
    check_class(plan.work.trainer.config_class)
    return _import(plan.work.trainer.config_class)(output_dir=str(output_dir), **plan.work.trainer.args)


def trainer_class(plan: Plan) -> Any:
    check_class(plan.work.trainer.trainer_class)
    return _import(plan.work.trainer.trainer_class)


def build_trainer(
    plan: Plan, cls: Any, model: Any, args: Any, rows: datasets.Dataset, tokenizer: transformers.PreTrainedTokenizerBase
) -> Any:
    """The trainer, its dataset prepared. `cls` is TRL's class or a subclass that measures."""
    peft_config = None
    lora = lora_arguments(plan.work)
    if lora is not None:
        import peft

        peft_config = peft.LoraConfig(**lora)
    reward = plan.work.trainer.reward
    rewards = {"reward_funcs": [load_reward(reward)]} if reward is not None else {}
    return cls(
        model=model, args=args, train_dataset=rows, processing_class=tokenizer, peft_config=peft_config, **rewards
    )


def _import(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _cannot_load(model: Model, error: Exception, part: str = "") -> Refused:
    if "trust_remote_code" in str(error):
        return Refused(
            "unsupported",
            f"model.path={model.path} has code of its own. Read it; model.trust_remote_code=true then lets it run.",
        )
    said = str(error).splitlines()[0] if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {error}"
    return Refused("not_found", f"{part}model.path={model.path} cannot be loaded: {said}")
