"""What cannot run is refused with its reason, and what can run is not."""

from pathlib import Path

import pytest

from memexp.plan import load
from memexp.plan.compose import compose_cells
from memexp.plan.machine import Machine
from memexp.plan.make import make_plan
from memexp.plan.plan import Plan
from memexp.plan.preflight import preflight

LAPTOP = Machine()
GPU = Machine(gpus=("NVIDIA H100",), torch_cuda="13.0")
TWO_GPUS = Machine(gpus=("NVIDIA H100",) * 2, torch_cuda="13.0", packages=("bitsandbytes", "deepspeed"))
WITH_VLLM = Machine(gpus=("NVIDIA H100",) * 2, torch_cuda="13.0", packages=("bitsandbytes", "deepspeed", "vllm"))
GRPO, ZERO3, INT8 = ("trainer=grpo", "batch_size=4"), ("launch=zero3",), ("quantization=int8", "peft=lora")
WITH_BNB = Machine(packages=("bitsandbytes",))
GPU_WITH_CPU_TORCH = Machine(gpus=("NVIDIA H100",), torch_cuda=None)


def planned(machine: Machine, *overrides: str) -> Plan:
    (cfg,) = compose_cells([list(overrides)])
    return preflight(make_plan(cfg, machine), machine)


@pytest.mark.parametrize(
    ("machine", "overrides", "kind", "said"),
    [
        (
            LAPTOP,
            ["backend=cpu", "offload='true'"],
            "needs_hardware",
            "offload=true needs a GPU, and this cell runs on the CPU",
        ),
        (LAPTOP, ["backend=cuda"], "needs_hardware", "backend=cuda"),
        (GPU_WITH_CPU_TORCH, [], "needs_package", "NVIDIA H100"),
        (LAPTOP, ["optimizer=adamw_8bit"], "needs_package", "memexp[quantization]"),
        (LAPTOP, ["backend=cpu", "attention=flash_attention_2"], "needs_hardware", "attention=flash_attention_2"),
        (GPU, ["attention=flash_attention_2"], "needs_package", "memexp[flash]"),
        (LAPTOP, ["padding_free='true'"], "conflict", "max_length=null"),
        (LAPTOP, ["attention=flash_attention_2", "precision=fp32"], "conflict", "precision=bf16"),
        (LAPTOP, ["attention=flash_attention_2", "gpu=t4_16gb"], "unsupported", "gpu=t4_16gb"),
        (LAPTOP, ["packing=bfd", "max_length=null"], "conflict", "max_length=1024"),
        (LAPTOP, ["checkpointing=selective", "peft=lora"], "conflict", "checkpointing=full or peft=none"),
        (LAPTOP, ["checkpointing=selective", "attention=eager"], "unsupported", "attention=sdpa"),
        (LAPTOP, ["checkpointing=selective", "peft=dora"], "conflict", "peft=dora"),
        (WITH_BNB, ["peft=dora", "quantization=int8"], "conflict", "Type quantization=nf4, or peft=lora"),
        (WITH_BNB, ["peft=dora", "quantization=nf4"], "unsupported", "backend=cpu"),
        (LAPTOP, ["kernels='true'"], "needs_hardware", "kernels=true runs compiled code on a GPU"),
        (LAPTOP, ["backend=cpu", "kernels='true'"], "needs_hardware", "backend=cpu"),
        (GPU, ["kernels='true'"], "needs_package", "kernels=true needs the package kernels"),
        (LAPTOP, ["backend=cpu", "++trainer.args.use_liger_kernel=true"], "needs_hardware", "Triton"),
        (GPU, ["++trainer.args.use_liger_kernel=true"], "needs_package", "liger-kernel"),
        (LAPTOP, ["++trainer.args.tf32=true"], "needs_hardware", "trainer.args.tf32=true"),
        (LAPTOP, [*GRPO, "++trainer.args.use_transformers_continuous_batching=true"], "unsupported", "backend=cpu"),
        (LAPTOP, ["++trainer.args.chat_template_path=nowhere"], "not_found", "chat_template_path=nowhere is not there"),
        (LAPTOP, ["launch.processes=2"], "unsupported", "launch=torchrun"),
        (LAPTOP, ["backend=cpu", "launch=torchrun", "launch.processes=1"], "unsupported", "launch=single"),
        (LAPTOP, ["launch=torchrun"], "unsupported", "backend=simulate has one card"),
        (LAPTOP, ["backend=cpu", "launch=zero3"], "needs_package", "memexp[deepspeed]"),
        (GPU, ["launch=torchrun"], "needs_hardware", "launch.processes=2: each process needs a GPU of its own, and 1"),
        (TWO_GPUS, ["launch=torchrun", "launch.processes=3"], "needs_hardware", "Type launch.processes=2"),
        (TWO_GPUS, ["launch=zero3", "quantization=nf4", "peft=lora"], "conflict", "launch=torchrun"),
        (TWO_GPUS, ["trainer=online_dpo", "launch=zero3"], "conflict", "peft=lora"),
        (TWO_GPUS, [*GRPO, "ds3_gather='false'"], "unsupported", "launch=zero3"),
        (TWO_GPUS, ["launch=zero3", "ds3_gather='false'"], "unsupported", "trainer=grpo"),
        (LAPTOP, [*GRPO, "vllm_sleep='true'"], "needs_hardware", "backend=simulate"),
        (WITH_VLLM, [*GRPO, "backend=cpu", "vllm_sleep='true'"], "needs_hardware", "backend=cpu"),
        (WITH_VLLM, [*GRPO, "backend=cpu", "vllm_sleep.use_vllm=true"], "needs_hardware", "vllm_sleep.use_vllm=false"),
        (GPU, [*GRPO, "vllm_sleep='true'"], "needs_package", "memexp[vllm]"),
        (WITH_VLLM, [*GRPO, "vllm_sleep='true'", "vllm_sleep.use_vllm=false"], "unsupported", "nothing is there"),
        (WITH_VLLM, ["vllm_sleep='true'"], "unsupported", "trainer=grpo"),
        (WITH_VLLM, [*GRPO, *INT8, "vllm_sleep='true'"], "conflict", "quantization=nf4"),
        (WITH_VLLM, [*GRPO, *ZERO3, "vllm_sleep='true'", "ds3_gather='false'"], "unsupported", "ds3_gather=true"),
        (WITH_VLLM, [*GRPO, *ZERO3, "vllm_sleep='true'"], "unsupported", "model.weights=pretrained"),
        (LAPTOP, ["data=jsonl", "data.path=/nowhere.jsonl"], "not_found", "data.path=/nowhere.jsonl"),
        (LAPTOP, ["model.weights=pretrained", "model.path=./nowhere"], "not_found", "model.path=./nowhere"),
    ],
)
def test_what_cannot_run_is_refused(machine: Machine, overrides: list[str], kind: str, said: str) -> None:
    refusal = planned(machine, *overrides).refusal
    assert refusal is not None
    assert refusal.kind == kind
    assert said in refusal.reason
    assert "\n" not in refusal.reason


@pytest.mark.parametrize(
    ("machine", "overrides"),
    [
        (LAPTOP, []),
        (GPU, ["offload='true'"]),
        (LAPTOP, ["offload='true'"]),  # simulated
        (LAPTOP, ["attention=flash_attention_2"]),
        (LAPTOP, ["padding_free='true'", "max_length=null"]),
        (LAPTOP, ["padding_free='true'", "packing=bfd"]),
        (LAPTOP, ["checkpointing=selective"]),
        (LAPTOP, ["checkpointing=full", "peft=lora"]),
        (LAPTOP, ["++trainer.args.tf32=false", "++trainer.args.use_liger_kernel=false"]),
        (WITH_BNB, ["backend=cpu", "peft=dora", "quantization=nf4"]),
        (LAPTOP, [*GRPO, "backend=cpu", "++trainer.args.use_transformers_continuous_batching=true"]),
        (LAPTOP, ["model.weights=pretrained", "model.path=Qwen/Qwen2.5-0.5B"]),
        (LAPTOP, ["backend=cpu", "launch=torchrun", "launch.processes=4"]),
        (TWO_GPUS, ["launch=torchrun"]),
        (WITH_VLLM, ["launch=zero3"]),
        (WITH_VLLM, [*GRPO, *ZERO3, "ds3_gather='false'"]),
        (TWO_GPUS, ["trainer=online_dpo", "launch=zero3", "peft=lora", "ds3_gather='false'"]),
        (WITH_VLLM, [*GRPO, "vllm_sleep='true'"]),
        (WITH_VLLM, [*GRPO, "vllm_sleep='true'", "allocator=expandable"]),
        (WITH_VLLM, [*GRPO, "vllm_sleep.use_vllm=true"]),
    ],
)
def test_what_can_run_is_not_refused(machine: Machine, overrides: list[str]) -> None:
    assert planned(machine, *overrides).refusal is None


def test_auto_is_a_simulated_gpu_where_there_is_none() -> None:
    plan = planned(LAPTOP, "gpu=rtx4090_24gb")
    assert (plan.work.backend, plan.work.gpu) == ("simulate", "rtx4090_24gb")
    assert (plan.choices["model"], plan.choices["precision"]) == ("qwen2_5_0_5b", "bf16")


def test_only_a_simulation_depends_on_the_card() -> None:
    assert planned(LAPTOP, "gpu=rtx4090_24gb").id != planned(LAPTOP, "gpu=h100_80gb").id
    assert planned(LAPTOP, "backend=cpu", "gpu=rtx4090_24gb").id == planned(LAPTOP, "backend=cpu").id


def test_a_gpu_that_torch_cannot_use_is_never_a_silent_simulation() -> None:
    plan = planned(GPU_WITH_CPU_TORCH)
    assert plan.work.backend == "cuda"
    assert plan.refusal is not None


def test_a_technique_that_the_trainer_lacks_is_unsupported() -> None:
    from dataclasses import replace

    plan = load("backend=cpu", "packing=bfd")
    other = replace(plan, work=replace(plan.work, trainer=replace(plan.work.trainer, name="grpo")), refusal=None)
    refusal = preflight(other, LAPTOP).refusal
    assert refusal is not None
    assert refusal.kind == "unsupported"
    assert "packing=bfd is for trainer=sft, not for trainer=grpo" in refusal.reason


def test_a_relative_path_is_resolved_where_it_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    monkeypatch.chdir(tmp_path)
    assert planned(LAPTOP, "data=jsonl", "data.path=rows.jsonl").work.data["path"] == str(tmp_path / "rows.jsonl")
