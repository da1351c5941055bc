"""The plain values of config.yaml: what each may be. A bad one stops everything before a cell is planned."""

import math
import re
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from memexp.plan.plan import PlanError


@dataclass(frozen=True)
class Rule:
    """`minimum` and `maximum` bound what makes sense; `may_be_null` where null has a meaning of its own."""

    kind: type
    minimum: float | None = None
    may_be_null: bool = False
    example: str = ""
    maximum: float | None = None


RULES = {
    "max_length": Rule(int, 1, True, "max_length=1024, or max_length=null to cut nothing"),
    "pad_to_multiple_of": Rule(int, 1, True, "pad_to_multiple_of=64, or pad_to_multiple_of=null"),
    "batch_size": Rule(int, 1, False, "batch_size=4"),
    "gradient_accumulation": Rule(int, 1, False, "gradient_accumulation=1"),
    "learning_rate": Rule(float, 0, True, "learning_rate=2e-5, or learning_rate=null for the trainer's own"),
    "seed": Rule(int, 0, False, "seed=0", 2**32 - 1),
    "steps": Rule(int, 1, False, "steps=5"),
    "unmeasured_steps": Rule(int, 0, False, "unmeasured_steps=2"),
    "budget.tokens": Rule(int, 1, True, "budget.tokens=100000"),
    "budget.epochs": Rule(float, 1e-9, True, "budget.epochs=1"),
    "budget.steps": Rule(int, 1, True, "budget.steps=100"),
    "threads": Rule(int, 1, False, "threads=1"),
    "timeout_seconds": Rule(float, 1e-9, True, "timeout_seconds=600"),
    "data.rows": Rule(int, 1, False, "data.rows=256"),
    "data.seed": Rule(int, 0, False, "data.seed=0"),
    "launch.processes": Rule(int, 1, False, "launch.processes=1"),
    "dry_run": Rule(bool, None, False, "dry_run=true"),
    "results_dir": Rule(str, None, False, "results_dir=results"),
    "sweep": Rule(str, None, True, "sweep=friday, or sweep=last"),
    "baseline": Rule(str, None, True, "baseline='packing=none,offload=false'"),
    "peft.r": Rule(int, 1, False, "peft.r=16"),
    "peft.alpha": Rule(float, 1e-9, False, "peft.alpha=32"),
    "peft.dropout": Rule(float, 0, False, "peft.dropout=0.05", 1),
    "quantization.double_quant": Rule(bool, None, False, "quantization.double_quant=true"),
    "allocator.conf": Rule(str, None, True, "allocator.conf='max_split_size_mb:128'"),
    "model.config": Rule(dict, None, False, "model.config.num_hidden_layers=4"),
    "model.path": Rule(str, None, True, "model.path=FOLDER"),
    "data.path": Rule(str, None, False, "data.path=FILE"),
    "data.columns": Rule(dict, None, True, "data.columns.text=body"),
    "trainer.max_completion_length": Rule(int, 1, False, "trainer.max_completion_length=64"),
    "trainer.num_generations": Rule(int, 2, False, "trainer.num_generations=4"),
    "trainer.reward": Rule(str, None, False, "trainer.reward=MODULE.FUNCTION"),
    "trainer.args": Rule(dict, None, False, "trainer.args.weight_decay=0.1"),
    "model.trust_remote_code": Rule(bool, None, False, "model.trust_remote_code=true"),
}
CHOICES = {
    "model.weights": ("random", "pretrained"),
    "isolation": ("auto", "fresh", "warm"),
    "fail_fast": ("auto", True, False),
    "quantization.quant_type": ("nf4", "fp4"),
    "quantization.compute_dtype": ("auto", "bfloat16", "float16", "float32"),
}
# The statuses of a record, and cells whose code or libraries have changed since.
RERUN = ("ok", "oom", "refused", "failed", "timeout", "killed", "changed")
_FROM_TO = re.compile(r"(\d{1,9})(?:-|:|\.\.)(\d{1,9})")  # 1-8, which no key takes
_FRONTIERS = ("batch_size", "max_length")  # what `memexp frontier` searches
BUDGETS = ("budget.tokens", "budget.epochs", "budget.steps")


def check_values(job: dict[str, Any]) -> None:
    """Raise PlanError for the first value that is wrong by itself, whatever the other values are."""
    for key, rule in RULES.items():
        found, value = select(job, key)
        if found:
            _check(key, value, rule)
    for key, allowed in CHOICES.items():
        found, value = select(job, key)
        if found and value not in allowed:
            raise PlanError(f"{key}={show(value)}: choose one of {', '.join(map(show, allowed))}.")
    _check_target_modules(job)
    _check_jobs(job["jobs"])
    rerun_choices(job["rerun"])
    budget = job["budget"]
    unknown = [key for key in budget if f"budget.{key}" not in BUDGETS] if isinstance(budget, dict) else [show(budget)]
    if unknown:
        raise PlanError(f"budget: it has no {unknown[0]}. Type {', '.join(f'{key}=…' for key in BUDGETS)} or none.")
    given = [key for key in BUDGETS if select(job, key)[1] is not None]
    if len(given) > 1:
        raise PlanError(f"{' and '.join(given)} are both set: a budget is one of them. Leave the others null.")


def _check_target_modules(job: dict[str, Any]) -> None:
    found, value = select(job, "peft.target_modules")
    names = value if isinstance(value, list) else [value]
    if found and not (names and all(isinstance(name, str) and name for name in names)):
        raise PlanError(
            f"peft.target_modules={show(value)}: these are linear layers. Type peft.target_modules=all-linear, "
            "or peft.target_modules=[q_proj,v_proj]."
        )


def _check_jobs(jobs: Any) -> None:
    if jobs != "auto" and not (_is(jobs, int) and jobs >= 1):
        raise PlanError(f"jobs={show(jobs)}: so many cells run at once. Type jobs=2, or jobs=auto for what fits.")


def rerun_choices(rerun: Any) -> tuple[str, ...]:
    """What `rerun` names: `failed`, `[failed, oom]`, `changed`. Raises PlanError for anything else."""
    named = tuple(rerun) if isinstance(rerun, list) or OmegaConf.is_list(rerun) else (rerun,)
    wrong = [name for name in named if name not in RERUN]
    if wrong:
        raise PlanError(f"rerun={show(wrong[0])}: it names finished cells to run again: {', '.join(RERUN)}.")
    return named


def select(job: dict[str, Any], key: str) -> tuple[bool, Any]:
    """The value at a dotted key, and whether the key exists at all (null is a value)."""
    value: Any = job
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return False, None
        value = value[part]
    return True, value


def show(value: Any) -> str:
    """A value as a user types it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check(key: str, value: Any, rule: Rule) -> None:
    if value is None:
        if rule.may_be_null:
            return
        raise PlanError(f"{key}=null: {key} needs a value. Type for example {rule.example}.")
    typed = f"{key}={show(value)}"
    if not _is(value, rule.kind):
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "a set of values"}
        raise PlanError(f"{typed}: {key} is {names[rule.kind]}. Type for example {_example(key, value, rule)}.")
    if rule.minimum is not None and not rule.minimum <= value <= (math.inf if rule.maximum is None else rule.maximum):
        raise PlanError(f"{typed}: {key} must be {_bounds(rule)}. Type for example {rule.example}.")


def _example(key: str, value: Any, rule: Rule) -> str:
    found = _FROM_TO.fullmatch(str(value))
    if found is None or rule.kind is not int:
        return rule.example
    first, last = int(found[1]), int(found[2])
    between = [2**power for power in range(40) if first < 2**power < last]
    several = f"-m {key}={','.join(map(str, (first, *between, last)))}"
    limit = f", or memexp frontier {key}={first}:{last} for the largest that fits" if key in _FRONTIERS else ""
    return f"{several}{limit}"


def _bounds(rule: Rule) -> str:
    least = "more than 0" if rule.minimum and 0 < rule.minimum < 1 else f"at least {rule.minimum:g}"
    return least if rule.maximum is None else f"{least} and at most {rule.maximum:.12g}"


def _is(value: Any, kind: type) -> bool:
    if kind is str:
        return isinstance(value, str | int | float) and not isinstance(value, bool)
    if kind is bool or isinstance(value, bool):
        return isinstance(value, bool) and kind is bool
    if kind is float:
        return isinstance(value, int | float) and math.isfinite(value)
    return isinstance(value, kind)
