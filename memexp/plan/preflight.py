"""Refuse what cannot run, before a model is touched. One short function a rule; the first that objects is the reason.

What an option needs and which trainers take it is data in its file; the rules here are about pairs, and carry the
version of the library they were read against.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from memexp.plan import argument_rules, launch_rules, trainer_rules, vllm_rules
from memexp.plan.machine import Machine
from memexp.plan.plan import Plan, Refusal, Technique

Rule = Callable[[Plan, Machine], Refusal | None]
_HOPPER = ("h100_80gb", "h200_141gb")


def preflight(plan: Plan, machine: Machine) -> Plan:
    """The same plan, with a refusal where a rule objects. Looks at the machine and at paths, never at a model."""
    for rule in RULES:
        refusal = rule(plan, machine)
        if refusal is not None:
            return replace(plan, refusal=refusal)
    return plan


def padding_free_cuts_nothing(plan: Plan, machine: Machine) -> Refusal | None:
    # trl 1.16, SFTTrainer.__init__: max_length is not enforced without packing, and TRL raises. DPO pads all the same.
    args = plan.work.trainer.args
    if (
        "packing" in args
        and args.get("padding_free")
        and not args.get("packing")
        and args.get("max_length") is not None
    ):
        return Refusal(
            "conflict",
            f"padding_free=true without packing does not cut rows at max_length={args['max_length']}. "
            "Type max_length=null with rows that are short enough, or packing=bfd, which is padding-free already.",
        )
    return None


def packing_needs_a_length(plan: Plan, machine: Machine) -> Refusal | None:
    # trl 1.16, SFTTrainer._prepare_dataset raises after tokenising everything.
    args = plan.work.trainer.args
    if args.get("packing") and args.get("max_length") is None:
        return Refusal(
            "conflict",
            f"packing={plan.choices['packing']} fills rows of max_length, which is null. Type max_length=1024.",
        )
    return None


def selective_without_adapters(plan: Plan, machine: Machine) -> Refusal | None:
    # trl 1.16 with transformers 5.24: the wrapper sits on the PeftModel, which the trainer bypasses; step 1 raises.
    if _selective(plan) and plan.work.peft:
        return Refusal(
            "conflict",
            f"checkpointing=selective with peft={plan.choices['peft']} raises at the first step in TRL 1.16. "
            "Type checkpointing=full or peft=none.",
        )
    return None


def selective_keeps_a_kernels_output(plan: Plan, machine: Machine) -> Refusal | None:
    # trl 1.16, selective_activation_checkpointing.py: only fused attention kernels are on the list of what is kept.
    if _selective(plan) and plan.work.model.kwargs.get("attn_implementation") == "eager":
        return Refusal(
            "unsupported",
            "checkpointing=selective keeps the output of a fused attention kernel, and attention=eager has none: it "
            "would be checkpointing=full by another name. Type attention=sdpa or checkpointing=full.",
        )
    return None


def quantized_weights_need_adapters(plan: Plan, machine: Machine) -> Refusal | None:
    # transformers 5.24, validate_quantization_for_training: quantised weights are frozen, and the trainer raises.
    if plan.work.model.kwargs.get("quantization") and not plan.work.peft:
        return Refusal(
            "conflict",
            f"quantization={plan.choices['quantization']} freezes the weights, and peft={plan.choices['peft']} adds "
            "none to train. Type peft=lora.",
        )
    return None


def a_quantized_reward_model_needs_autocast(plan: Plan, machine: Machine) -> Refusal | None:
    # trl 1.16, RewardTrainer: with quantised weights all that is trained becomes bf16. An adapter casts its input to
    # that, the new head of one number does not, and step 1 raises.
    args, trainer = plan.work.trainer.args, plan.work.trainer
    quantized = plan.work.model.kwargs.get("quantization") and trainer.task == "SEQ_CLS"
    if not quantized or args.get("bf16") or args.get("fp16"):
        return None
    return Refusal(
        "conflict",
        f"trainer={trainer.name} with quantization={plan.choices['quantization']} and precision="
        f"{plan.choices['precision']} raises at the first step: TRL 1.16 makes the reward's head bf16. "
        "Type precision=bf16.",
    )


def dora_reads_quantized_weights(plan: Plan, machine: Machine) -> Refusal | None:
    # peft 0.21 with bitsandbytes 0.50.2: DoRA turns a layer's weights back for their norm, and the second step in
    # 8 bits raises for a scale that is gone. A simulated tensor of 4 bits cannot be turned back so.
    bits = (plan.work.model.kwargs.get("quantization") or {}).get("bits")
    if not (plan.work.peft or {}).get("use_dora") or not (bits == 8 or (bits == 4 and plan.work.backend == "simulate")):
        return None
    typed = f"peft={plan.choices['peft']} with quantization={plan.choices['quantization']}"
    if bits == 8:
        return Refusal("conflict", f"{typed} raises at the second step. Type quantization=nf4, or peft=lora.")
    return Refusal("unsupported", f"{typed} is not simulated. Type peft=lora, or backend=cpu or backend=cuda.")


def flash_attention_takes_half_precision(plan: Plan, machine: Machine) -> Refusal | None:
    # flash-attn 2 and 3: "FlashAttention only support fp16 and bf16 data type".
    attention, args = plan.choices["attention"], plan.work.trainer.args
    if not str(attention).startswith("flash") or args.get("bf16") or args.get("fp16"):
        return None
    return Refusal(
        "conflict",
        f"attention={attention} takes bf16 or fp16 alone. Type precision=bf16 or precision=fp16, or attention=sdpa.",
    )


def flash_attention_fits_the_card(plan: Plan, machine: Machine) -> Refusal | None:
    # flash-attn 2 needs Ampere or later; flash-attn 3 (its folder hopper) is for H100 and its kin.
    attention, gpu = str(plan.choices["attention"]), plan.work.gpu
    if attention.startswith("flash") and gpu == "t4_16gb":
        return Refusal(
            "unsupported",
            f"attention={attention} needs an Ampere card or a later one, and gpu=t4_16gb is older. "
            "Type attention=sdpa.",
        )
    if attention == "flash_attention_3" and gpu not in (None, *_HOPPER):
        cards = " or ".join(f"gpu={name}" for name in _HOPPER)
        return Refusal(
            "unsupported",
            f"attention={attention} needs a Hopper card ({cards}), and gpu={gpu} is none. "
            "Type attention=flash_attention_2.",
        )
    return None


def backend_is_here(plan: Plan, machine: Machine) -> Refusal | None:
    if plan.work.backend != "cuda":
        return None
    if not machine.gpus:
        return Refusal(
            "needs_hardware",
            "backend=cuda needs an NVIDIA GPU, and the driver shows none here. Type backend=simulate or backend=cpu.",
            "a GPU",
        )
    if machine.torch_cuda is None:
        return Refusal(
            "needs_package",
            f"backend=cuda: the driver shows {machine.gpus[0]}, but this torch is built for the CPU only. "
            "Install a CUDA build of torch, or type backend=simulate.",
            "a CUDA build of torch",
        )
    return None


def needs_are_met(plan: Plan, machine: Machine) -> Refusal | None:
    for technique in plan.techniques:
        for need in technique.needs:
            refusal = _need(need, technique, plan, machine)
            if refusal is not None:
                return refusal
    return None


def paths_are_there(plan: Plan, machine: Machine) -> Refusal | None:
    data = plan.work.data
    if data["kind"] == "jsonl" and "sha256" not in data:
        kind = "is a folder" if Path(str(data["path"])).is_dir() else "is not there"
        return Refusal("not_found", f"data.path={data['path']} {kind}. Type the path of a JSONL file.")
    template = plan.work.trainer.args.get("chat_template_path")
    if template is not None and not Path(str(template)).exists() and str(template).count("/") != 1:
        return Refusal(
            "not_found",
            f"trainer.args.chat_template_path={template} is not there. Type a file, a folder with a tokenizer, or its "
            "name on the hub.",
        )
    path = plan.work.model.path
    # A hub name is org/name; anything else that does not exist is a mistyped path.
    if path is not None and not Path(path).exists() and (path.startswith((".", "/", "~")) or path.count("/") != 1):
        return Refusal(
            "not_found", f"model.path={path} is not there. Type a folder with a model, or a name on the hub."
        )
    return None


def _selective(plan: Plan) -> bool:
    return bool((plan.work.trainer.args.get("activation_checkpointing_kwargs") or {}).get("selective"))


def _need(need: str, technique: Technique, plan: Plan, machine: Machine) -> Refusal | None:
    typed = f"{technique.group}={technique.option}"
    if need == "accelerator":
        if plan.work.backend != "cpu":
            return None
        return Refusal("needs_hardware", f"{typed} needs a GPU, and this cell runs on the CPU (backend=cpu).", "a GPU")
    if need == "cuda":
        if plan.work.backend == "cuda":
            return None
        return Refusal(
            "needs_hardware",
            f"{typed} runs compiled code on a GPU, and this cell has none (backend={plan.work.backend}).",
            "a GPU",
        )
    if need == "zero3":
        reason = f"{typed} is about weights that ZeRO-3 has split, and TRL ignores it elsewhere. Type launch=zero3."
        return None if launch_rules.is_zero3(plan.work) else Refusal("unsupported", reason, "launch=zero3")
    # A simulated GPU has attention kernels of its own, by name.
    simulated = plan.work.backend == "simulate" and need in ("flash_attn", "flash_attn_interface", "kernels")
    if machine.has(need) or simulated:
        return None
    if need == "flash_attn_interface":
        remedy = "built from source: https://github.com/Dao-AILab/flash-attention, folder hopper"
        reason = f"{typed} needs the package flash-attn-3, which is {remedy}."
        return Refusal("needs_package", reason, need, remedy)
    extra = {"bitsandbytes": "quantization", "flash_attn": "flash", "kernels": "flash"}.get(need, need)
    remedy = f"pip install 'memexp[{extra}]'"
    reason = f"{typed} needs the package {need}, which is not installed. Type {remedy}."
    return Refusal("needs_package", reason, need, remedy)


RULES: tuple[Rule, ...] = (
    *trainer_rules.RULES,
    *launch_rules.RULES,
    *argument_rules.RULES,
    padding_free_cuts_nothing,
    packing_needs_a_length,
    selective_without_adapters,
    selective_keeps_a_kernels_output,
    quantized_weights_need_adapters,
    a_quantized_reward_model_needs_autocast,
    dora_reads_quantized_weights,
    backend_is_here,
    *vllm_rules.RULES,
    needs_are_met,
    flash_attention_takes_half_precision,
    flash_attention_fits_the_card,
    paths_are_there,
)
