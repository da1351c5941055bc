"""Rules about cells of several processes: how many there may be, and what only some of them can do.

Each is a rule of `memexp.plan.preflight`, which lists them; the version is that of the library they were read against.
"""

from memexp.plan.machine import Machine
from memexp.plan.plan import Plan, Refusal, Work


def processes_fit_the_launch(plan: Plan, machine: Machine) -> Refusal | None:
    launch, processes = plan.choices["launch"], plan.work.processes
    in_one = any(technique.group == "launch" and technique.is_off for technique in plan.techniques)
    if in_one and processes > 1:
        return Refusal(
            "unsupported",
            f"launch.processes={processes}: launch={launch} trains in one process. Type launch=torchrun, launch=zero3 "
            "or launch.processes=1.",
        )
    if not in_one and processes == 1:
        return Refusal(
            "unsupported",
            f"launch.processes=1: launch={launch} has nothing to share out in one process. Type launch.processes=2, or "
            "launch=single.",
        )
    return None


def each_process_has_a_gpu(plan: Plan, machine: Machine) -> Refusal | None:
    launch, processes, found = plan.choices["launch"], plan.work.processes, len(machine.gpus)
    if processes == 1:
        return None
    if plan.work.backend == "simulate":
        return Refusal(
            "unsupported",
            f"launch={launch} runs in {processes} processes, and backend=simulate has one card and nothing between "
            "cards. Type backend=cpu, or launch=single.",
            "another backend",
        )
    if plan.work.backend == "cuda" and 0 < found < processes:
        shown = "1 is shown" if found == 1 else f"{found} are shown"
        return Refusal(
            "needs_hardware",
            f"launch.processes={processes}: each process needs a GPU of its own, and {shown} here. "
            + (f"Type launch.processes={found}." if found > 1 else "Type launch=single, or backend=cpu."),
            "a GPU for each process",
        )
    return None


def zero3_loads_no_quantized_weights(plan: Plan, machine: Machine) -> Refusal | None:
    # transformers 5.24 with deepspeed 0.19: loading them raises "Cannot copy out of meta tensor; no data!".
    if not (is_zero3(plan.work) and plan.work.model.kwargs.get("quantization")):
        return None
    return Refusal(
        "conflict",
        f"quantization={plan.choices['quantization']}: transformers 5.24 cannot load quantised weights where "
        "launch=zero3 splits them. Type launch=torchrun, or quantization=none.",
    )


def zero3_copies_no_model(plan: Plan, machine: Machine) -> Refusal | None:
    # trl 1.16, create_reference_model: raises ValueError under ZeRO-3. OnlineDPO alone makes its reference so.
    if not is_zero3(plan.work) or plan.work.trainer.name != "online_dpo" or plan.work.peft:
        return None
    return Refusal(
        "conflict",
        "trainer=online_dpo copies the model for its reference, which TRL 1.16 does not do with weights that "
        "launch=zero3 has split. Type peft=lora, which needs no copy, or launch=torchrun.",
    )


def is_zero3(work: Work) -> bool:
    """Whether DeepSpeed splits the weights themselves, which is its stage 3."""
    deepspeed = work.trainer.args.get("deepspeed") or {}
    return bool(deepspeed) and deepspeed["zero_optimization"]["stage"] == 3


RULES = (
    processes_fit_the_launch,
    each_process_has_a_gpu,
    zero3_loads_no_quantized_weights,
    zero3_copies_no_model,
)
