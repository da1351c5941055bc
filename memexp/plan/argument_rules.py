"""Rules about arguments of TRL that no technique sets, typed as `trainer.args.NAME`: what they need to have an effect.

Each is a rule of `memexp.plan.preflight`, which lists them; the version is that of the library they were read against.
What TRL alone knows of an argument's value it says itself, in the worker (`memexp.run.refusal`).
"""

from memexp.plan.machine import Machine
from memexp.plan.plan import Plan, Refusal


def liger_runs_on_a_gpu(plan: Plan, machine: Machine) -> Refusal | None:
    if not plan.work.trainer.args.get("use_liger_kernel"):
        return None
    typed = "trainer.args.use_liger_kernel=true"
    if plan.work.backend != "cuda":
        return Refusal(
            "needs_hardware",
            f"{typed} runs Triton kernels on a GPU, and this cell has none (backend={plan.work.backend}).",
        )
    if not machine.has("liger_kernel"):
        return Refusal(
            "needs_package",
            f"{typed} needs the package liger-kernel, which is not installed. Type pip install liger-kernel.",
        )
    return None


def tf32_is_of_a_gpu(plan: Plan, machine: Machine) -> Refusal | None:
    # transformers 5.24, TrainingArguments.__post_init__: asks CUDA, and raises where it says no.
    if not plan.work.trainer.args.get("tf32") or plan.work.backend == "cuda":
        return None
    return Refusal(
        "needs_hardware",
        f"trainer.args.tf32=true is a mode of a GPU's units, and this cell has none (backend={plan.work.backend}). "
        "Leave it out.",
    )


def continuous_batching_reads_a_real_device(plan: Plan, machine: Machine) -> Refusal | None:
    # transformers 5.24, continuous_api.py: a thread of its own, which sizes its cache by what the device has free.
    args = plan.work.trainer.args
    names = ("use_transformers_continuous_batching", "use_transformers_paged")
    name = next((name for name in names if args.get(name)), None)
    if name is None or plan.work.backend != "simulate":
        return None
    return Refusal(
        "unsupported",
        f"trainer.args.{name}=true samples in a thread beside the trainer, which backend=simulate does not follow. "
        "Type backend=cpu or backend=cuda.",
    )


def one_reward_has_one_weight(plan: Plan, machine: Machine) -> Refusal | None:
    # trl 1.16, GRPO, RLOO and online DPO: raise where there are not as many weights as functions; memexp gives one.
    weights = plan.work.trainer.args.get("reward_weights")
    if weights is None or len(weights) == 1:
        return None
    typed = ",".join(map(str, weights))
    return Refusal(
        "conflict",
        f"trainer.args.reward_weights=[{typed}] has {len(weights)} weights, and trainer.reward is one function. "
        "Type trainer.args.reward_weights=[1.0], or weigh inside the function.",
    )


def optimizer_arguments_are_pairs(plan: Plan, machine: Machine) -> Refusal | None:
    # transformers 5.24, _parse_optim_args: splits at commas, and each part at its one equals sign.
    typed = plan.work.trainer.args.get("optim_args")
    if not typed or all(pair.count("=") == 1 for pair in str(typed).split(",")):
        return None
    return Refusal(
        "conflict",
        f"trainer.args.optim_args={typed}: these are an optimizer's arguments by name. "
        "Type trainer.args.optim_args='name=value,name=value'.",
    )


RULES = (
    liger_runs_on_a_gpu,
    tf32_is_of_a_gpu,
    continuous_batching_reads_a_real_device,
    one_reward_has_one_weight,
    optimizer_arguments_are_pairs,
)
