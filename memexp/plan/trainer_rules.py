"""Rules about trainers: what one has no argument for, and what it cannot do with the values given.

Each is a rule of `memexp.plan.preflight`, which lists them; the version is that of the library they were read against.
"""

from collections.abc import Iterable

from memexp.plan import conf
from memexp.plan.fields import config_fields, trl_fields
from memexp.plan.machine import Machine
from memexp.plan.plan import Plan, Refusal
from memexp.plan.values import show


def trainer_takes_it(plan: Plan, machine: Machine) -> Refusal | None:
    for technique in plan.techniques:
        if technique.trainers and plan.work.trainer.name not in technique.trainers:
            typed = f"{technique.group}={technique.option}"
            takers = _listed(technique.trainers)
            return Refusal("unsupported", f"{typed} is for {takers}, not for trainer={plan.work.trainer.name}.")
    return None


def config_has_every_argument(plan: Plan, machine: Machine) -> Refusal | None:
    # The TRL config of a trainer raises TypeError for an argument that it lacks.
    trainer = plan.work.trainer
    unknown = [name for name in trainer.args if name not in config_fields(trainer.config_class)]
    if not unknown:
        return None
    version = trl_fields()["trl"]
    return Refusal(
        "unsupported",
        f"{trainer.config_class} of TRL {version} has no argument {unknown[0]}, which an option of this cell sets.",
    )


def trainer_takes_the_value(plan: Plan, machine: Machine) -> Refusal | None:
    name = plan.work.trainer.name
    for key in conf.values_not_taken(name):
        value = plan.choices.get(key)
        if value is not None:
            takers = [other for other in conf.groups()["trainer"] if key not in conf.values_not_taken(other)]
            typed = f"{key}={show(value)}"
            return Refusal("unsupported", f"{typed} is for {_listed(takers)}, not for trainer={name}. Type {key}=null.")
    return None


def groups_of_completions_are_whole(plan: Plan, machine: Machine) -> Refusal | None:
    # trl 1.16, GRPOConfig and RLOOConfig: generation_batch_size must be divisible by num_generations.
    args = plan.work.trainer.args
    generations = args.get("num_generations")
    if generations is None:
        return None
    batch = args["per_device_train_batch_size"] * plan.work.processes
    steps = args.get("steps_per_generation") or args["gradient_accumulation_steps"]
    generated = args.get("generation_batch_size") or batch * steps
    if generated % generations == 0 and generated % batch == 0:
        return None
    return Refusal(
        "conflict",
        f"trainer.num_generations={generations} does not divide the {generated} completions that are generated at once "
        f"(batch_size * gradient_accumulation). Type batch_size={generations}, or trainer.num_generations=2 with an "
        "even batch_size.",
    )


def completions_leave_room_for_prompts(plan: Plan, machine: Machine) -> Refusal | None:
    # trl 1.16, OnlineDPOTrainer._forward cuts the prompt from the left, and takes no null.
    args = plan.work.trainer.args
    if "max_new_tokens" not in args:
        return None
    longest, completion = args["max_length"], args["max_new_tokens"]
    if longest is None:
        return Refusal("unsupported", "max_length=null: trainer=online_dpo needs a number. Type max_length=1024.")
    if completion >= longest:
        return Refusal(
            "conflict",
            f"trainer.max_completion_length={completion} leaves no room for a prompt in max_length={longest}. "
            f"Type max_length={completion * 2}, or a smaller trainer.max_completion_length.",
        )
    return None


def tokens_are_known_before_training(plan: Plan, machine: Machine) -> Refusal | None:
    if plan.work.trainer.rows != "prompts" or plan.work.budget.tokens is None:
        return None
    return Refusal(
        "unsupported",
        f"budget.tokens={plan.work.budget.tokens}: trainer={plan.work.trainer.name} samples what it trains on, so that "
        "the steps to so many tokens are not known beforehand. Type budget.steps=100 or budget.epochs=1.",
    )


def adapters_leave_the_head_alone(plan: Plan, machine: Machine) -> Refusal | None:
    # trl 1.16: the fused LM head reads lm_head.weight itself, and SFT, DPO, GRPO and RLOO raise for an adapter on it.
    targets = (plan.work.peft or {}).get("target_modules") or []
    named = [targets] if isinstance(targets, str) else targets
    if "lm_head" not in named or plan.work.trainer.name not in ("sft", "dpo", "grpo", "rloo"):
        return None
    return Refusal(
        "conflict",
        f"peft.target_modules=lm_head: trainer={plan.work.trainer.name} computes its loss from the head's own weights, "
        "past an adapter. Type peft.target_modules=all-linear.",
    )


def _listed(trainers: Iterable[str]) -> str:
    return " or ".join(f"trainer={name}" for name in trainers)


RULES = (
    trainer_takes_it,
    trainer_takes_the_value,
    config_has_every_argument,
    groups_of_completions_are_whole,
    completions_leave_room_for_prompts,
    tokens_are_known_before_training,
    adapters_leave_the_head_alone,
)
