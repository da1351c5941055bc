"""Which arguments each TRL config takes, from a shipped table, so that a typo is found without importing TRL."""

import functools
import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from memexp.plan.plan import PlanError
from memexp.plan.suggest import did_you_mean
from memexp.plan.values import show

# What memexp decides for every cell, with the reason. A user's trainer.args cannot set these.
ALWAYS: dict[str, Any] = {
    "lr_scheduler_type": "constant",  # a schedule over another number of steps would be another job
    "train_sampling_strategy": "sequential",  # every cell sees the rows in the same order
    "save_strategy": "no",
    "logging_strategy": "steps",
    "logging_steps": 1,
    "logging_first_step": True,
    "report_to": [],
    "disable_tqdm": True,
    "dataloader_num_workers": 0,  # workers would read ahead in processes that no meter sees
}
# What only memexp's own keys may set, and what to type instead.
OWNED = {
    "output_dir": "results_dir=DIR",
    "max_steps": "steps=5 or budget.steps=100",
    "num_train_epochs": "budget.epochs=1",
    "report_to": "logger=wandb",
    "fp16": "precision=fp16",
    "auto_find_batch_size": "batch_size=4",
    "gradient_checkpointing": "checkpointing=full",
    "gradient_checkpointing_kwargs": "checkpointing=selective",
    "activation_checkpointing_kwargs": "checkpointing=full",
    "packing_strategy": "packing=bfd",
    "deepspeed": "launch=zero3",
    "model_init_kwargs": "precision=… and attention=…",
    "fsdp": "launch=zero3",
    "fsdp_config": "launch=zero3",
    "learning_rate": "learning_rate=2e-5",
    "trust_remote_code": "model.trust_remote_code=true",
    "reward_model_path": "trainer.reward=MODULE.FUNCTION",
}
# A cell trains and measures. It evaluates, saves, resumes and publishes nothing, so that these would change nothing.
_WITHOUT_EFFECT = re.compile(
    "(do|eval|save|hub|trackio)_|push_to_hub|per_device_eval_batch_size|num_generations_eval|load_best_model_at_end"
    "|metric_for_best_model|greater_is_better|batch_eval_metrics|prediction_loss_only|include_for_metrics"
    "|(bf|fp)16_full_eval|resume_from_checkpoint|restore_callback_states_from_checkpoint|ignore_data_skip"
    "|enable_jit_checkpoint|log_completions_hub_repo|run_name|project"
)
# Where TRL takes null beside its default, a number or a flag.
NULL_TOO = {
    *("max_length", "num_generations", "max_completion_length", "shuffle_dataset", "remove_unused_columns"),
    *("vllm_importance_sampling_clip_max", "vllm_gpu_memory_utilization"),
}


def has_no_effect(name: str) -> bool:
    """Whether an argument is about what no cell does: to evaluate, to save, to publish."""
    return _WITHOUT_EFFECT.match(name) is not None


@functools.cache
def trl_fields() -> dict[str, Any]:
    """{"trl": version, "configs": {class: {field: default}}, "null_types": {field: type}}, of tools/make_trl_fields.py.

    `null_types` says of a field whose default is null which plain type TRL's annotation has beside it, if it has one.
    """
    table: dict[str, Any] = json.loads(Path(__file__).with_name("trl_fields.json").read_text(encoding="utf-8"))
    return table


def config_fields(config_class: str) -> dict[str, Any]:
    """Field names and defaults of one config class, for example trl.SFTConfig. Raises KeyError for an unknown class."""
    fields: dict[str, Any] = trl_fields()["configs"][config_class]
    return fields


def check_trainer_args(
    args: dict[str, Any], config_class: str, taken: dict[str, str], always: Collection[str] = ALWAYS
) -> None:
    """Raise PlanError for an argument that the TRL config does not have or that a key of memexp's own sets.

    `taken` says for an argument which key sets it, for example {"packing": "packing"}; `always` are those that memexp
    sets and nobody else may.
    """
    fields = config_fields(config_class)
    for name, value in args.items():
        if name not in fields:
            hint = did_you_mean(name, fields, "See TRL's documentation for its arguments.", before="trainer.args.")
            version = trl_fields()["trl"]
            raise PlanError(f"trainer.args.{name}: {config_class} of TRL {version} has no argument {name}. {hint}")
        instead = OWNED.get(name) or (f"{taken[name]}=…" if name in taken else None)
        if instead is None and name in always:
            raise PlanError(
                f"trainer.args.{name}: memexp sets {name} itself, so that cells can be compared. Leave it out."
            )
        if instead:
            raise PlanError(f"trainer.args.{name}: memexp sets {name} from a key of its own. Type {instead} instead.")
        if has_no_effect(name):
            raise PlanError(
                f"trainer.args.{name}: a cell trains and measures; it evaluates, saves and publishes nothing, so that "
                f"{name} would have no effect. Leave it out."
            )
        _check_type(name, value, fields[name])


def _check_type(name: str, value: Any, default: Any) -> None:
    """A number where TRL's default is a number, true or false where it is one; behind a null default TRL's own type."""
    kind = trl_fields()["null_types"].get(name) if default is None else type(default).__name__
    if kind not in _TAKES or (value is None and (default is None or name in NULL_TOO)):
        return
    values = value if kind == "list[float]" and isinstance(value, list) else [value]
    is_list = isinstance(value, list) == (kind == "list[float]")
    if is_list and all(isinstance(v, bool) == (kind == "bool") and isinstance(v, bool | int | float) for v in values):
        return
    beside = "" if default is None else f", as in its default {show(default)}"
    raise PlanError(f"trainer.args.{name}={show(value)}: TRL takes {_TAKES[kind]} for {name}{beside}.")


_TAKES = {"bool": "true or false", "int": "a number", "float": "a number", "list[float]": "a list of numbers"}
