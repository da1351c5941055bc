"""The whole script, part by part. It says what differs from TRL's defaults and nothing else.

Shipped data and what else a user will replace is marked `# <- yours`. A reward of the user's own is imported by its
name, and the one that ships is quoted.
"""

import textwrap
from collections.abc import Sequence

from memexp.plan.fields import ALWAYS, config_fields
from memexp.plan.library_arguments import lora_arguments
from memexp.plan.plan import Plan
from memexp.run import reward as shipped
from memexp.script import model, rows
from memexp.script.python import call, keyword_arguments, literal, name, quoted

# Of what memexp sets for every cell, what a user decides for themselves.
_AS_MEASURED = ("lr_scheduler_type", "train_sampling_strategy", "save_strategy", "logging_steps")
_SHIPPED_REWARD = f"{shipped.__name__}.{shipped.frequent_letter_share.__name__}"


def training_script(plan: Plan, about: str, notes: Sequence[str] = ()) -> str:
    """The whole file. `about` is what it says of itself in its first lines; any text will do. `notes` are those of the
    cell's record: from them it is known whether a file of the user's had the columns that the trainer takes.

    Raises ValueError or KeyError for a plan that no option of memexp's makes.
    """
    made = rows.are_made(plan, tuple(notes))
    parts = [_docstring(about), *_environment(plan), _imports(plan, made), *_deepspeed(plan), model.tokenizer(plan)]
    parts += [rows.rows(plan, made), _arguments(plan), model.model(plan), _trainer(plan)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _docstring(about: str) -> str:
    lines = textwrap.wrap(about.replace("\\", "/").replace('"', "'"), 100)
    return '"""' + "\n".join(lines) + ('\n"""' if len(lines) > 1 else '"""')


def _environment(plan: Plan) -> list[str]:
    given = {variable: value for variable, value in plan.work.env.items() if value is not None}
    if not given:
        return ["import os"] if model.needs_os(plan) else []
    lines = [f"os.environ[{literal(variable)}] = {literal(value)}" for variable, value in given.items()]
    return ["import os", "\n".join(["# Before torch is imported: it reads these once.", *lines])]


def _imports(plan: Plan, made: bool) -> str:
    trainer = plan.work.trainer
    standard, of_datasets = rows.imports(plan, made)
    if trainer.reward == _SHIPPED_REWARD:
        standard = list(dict.fromkeys([*standard, "from typing import Any"]))
    lines = [*standard, *([""] if standard else []), *(["import deepspeed"] if _deepspeed(plan) else [])]
    lines += ["import torch", of_datasets]
    lines += ["from peft import LoraConfig"] if plan.work.peft is not None else []
    lines += [model.imports(plan)]
    classes: dict[str, list[str]] = {}
    reward = [trainer.reward] if trainer.reward not in (None, _SHIPPED_REWARD) else []
    for path in (trainer.config_class, trainer.trainer_class, *reward):
        module, _, attribute = name(path).rpartition(".")
        classes.setdefault(module, []).append(attribute)
    return "\n".join([*lines, *(f"from {module} import {', '.join(names)}" for module, names in classes.items())])


def _deepspeed(plan: Plan) -> list[str]:
    if plan.work.backend != "cpu" or not plan.work.trainer.args.get("deepspeed"):
        return []
    why = "# On a CPU DeepSpeed would compile all-reduces of its own, for minutes; gloo has them."
    return [f'{why}\ndeepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False']


def _arguments(plan: Plan) -> str:
    trainer = plan.work.trainer
    defaults = config_fields(trainer.config_class)
    differing = {key: value for key, value in trainer.args.items() if value != defaults.get(key, ...)}
    own = [key for key in differing if key not in ALWAYS]
    measured = [key for key in _AS_MEASURED if key in differing]
    lines = [
        'output_dir="output"',
        "num_train_epochs=1",
        *keyword_arguments({key: differing[key] for key in own}),
        "# as measured, and yours to change: none of these moves the worst-case peak",
        *keyword_arguments({key: differing[key] for key in measured}),
    ]
    return call(f"args = {trainer.config_class.rpartition('.')[2]}", lines)


def _trainer(plan: Plan) -> str:
    trainer = plan.work.trainer
    lines = ["model=model", "args=args", "train_dataset=rows", "processing_class=tokenizer"]
    before = ""
    if trainer.reward is not None:
        lines.append(f"reward_funcs=[{name(trainer.reward).rpartition('.')[2]}]")
    if trainer.reward == _SHIPPED_REWARD:
        before = f"\nLETTER = {literal(shipped.LETTER)}{rows.YOURS}\n\n\n{quoted(shipped.frequent_letter_share)}\n\n\n"
    lora = lora_arguments(plan.work)
    if lora is not None:
        lines.append(f"peft_config=LoraConfig({', '.join(keyword_arguments(lora))})")
    made = call(f"trainer = {trainer.trainer_class.rpartition('.')[2]}", lines)
    return f"{before}{made}\ntrainer.train()\n# trainer.save_model()"
