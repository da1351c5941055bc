"""Which arguments each TRL config takes, from a shipped table, so that a typo is found without importing TRL."""

import difflib
import functools
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from memexp.plan.plan import PlanError

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
}


@functools.cache
def trl_fields() -> dict[str, Any]:
    """{"trl": version, "configs": {class: {field: default}}}, made by tools/make_trl_fields.py."""
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
            near = difflib.get_close_matches(name, fields, n=1)
            hint = f"Did you mean trainer.args.{near[0]}?" if near else "See TRL's documentation for its arguments."
            version = trl_fields()["trl"]
            raise PlanError(f"trainer.args.{name}: {config_class} of TRL {version} has no argument {name}. {hint}")
        instead = OWNED.get(name) or (f"{taken[name]}=…" if name in taken else None)
        if instead is None and name in always:
            raise PlanError(
                f"trainer.args.{name}: memexp sets {name} itself, so that cells can be compared. Leave it out."
            )
        if instead:
            raise PlanError(f"trainer.args.{name}: memexp sets {name} from a key of its own. Type {instead} instead.")
        _check_type(name, value, fields[name])


def _check_type(name: str, value: Any, default: Any) -> None:
    """A number where TRL's default is a number, true or false where it is one; a null default says nothing."""
    wanted = {bool: "true or false", int: "a number", float: "a number"}.get(type(default))
    fits = isinstance(value, bool) == isinstance(default, bool) and isinstance(value, bool | int | float)
    if wanted is not None and value is not None and not fits:
        raise PlanError(f"trainer.args.{name}={value}: TRL takes {wanted} for {name}, as in its default {default}.")
