"""TRL's own SFTTrainer on the simulated GPU, unmodified: what each technique does to the peak, on the path of a GPU."""

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from datasets import Dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer
from trl.kernels import chunked_logprob

from memexp.run.data import ASSETS
from memexp.simulate import SimulatedGPU, prepare
from memexp.simulate.patches import PATCHES

prepare()
LENGTH, BATCH, VOCABULARY = 256, 4, 32000


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(ASSETS / "tokenizer")


@pytest.fixture(scope="module")
def rows() -> Dataset:
    generator = random.Random(0)
    return Dataset.from_dict({"text": ["word " * generator.randint(4, 2 * LENGTH) for _ in range(60)]})


@contextlib.contextmanager
def trainer(
    folder: Path,
    tokenizer: Any,
    rows: Dataset,
    card: str = "a100_80gb",
    peft: Any = None,
    attention: str = "sdpa",
    **options: Any,
) -> Iterator[tuple[SimulatedGPU, SFTTrainer]]:
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    with SimulatedGPU(card, warn_of_floats=False) as gpu:
        with torch.device(gpu.device):
            dtype = torch.bfloat16 if attention == "flash_attention_2" else torch.float32
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
        args = SFTConfig(
            output_dir=str(folder),
            max_steps=2,
            per_device_train_batch_size=BATCH,
            max_length=LENGTH,
            bf16=True,
            report_to=[],
            logging_steps=1,
            save_strategy="no",
            disable_tqdm=True,
            **{"activation_checkpointing": False, **options},
        )
        yield gpu, SFTTrainer(model=model, args=args, train_dataset=rows, processing_class=tokenizer, peft_config=peft)


@pytest.fixture
def peak(tmp_path: Path, tokenizer: Any, rows: Dataset) -> Any:
    def run(**options: Any) -> int:
        with trainer(tmp_path, tokenizer, rows, **options) as (gpu, job):
            job.train()
            return gpu.max_memory_allocated()

    return run


def test_checkpointing_and_offloading_lower_the_peak(peak: Any) -> None:
    nothing = peak()
    assert peak(activation_checkpointing=True) < 0.9 * nothing
    assert peak(activation_offloading=True) < 0.9 * nothing


def test_offloading_takes_time(tmp_path: Path, tokenizer: Any, rows: Dataset) -> None:
    seconds = {}
    for offload in (False, True):
        with trainer(tmp_path, tokenizer, rows, activation_offloading=offload) as (gpu, job):
            job.train()
            seconds[offload] = gpu.elapsed_seconds
    assert seconds[True] > seconds[False]


def test_bfd_packing_runs_and_counts_its_real_tokens(tmp_path: Path, tokenizer: Any, rows: Dataset) -> None:
    options: dict[str, Any] = {"packing": True, "packing_strategy": "bfd", "attention": "flash_attention_2"}
    with trainer(tmp_path, tokenizer, rows, **options) as (gpu, job):
        tokens = sum(
            int(batch["input_ids"].numel()) for batch, _ in zip(job.get_train_dataloader(), range(2), strict=False)
        )
        job.train()
        logged = [entry for entry in job.state.log_history if "num_tokens" in entry]
        assert logged[-1]["num_tokens"] == tokens
        assert gpu.memory_allocated() > 0


def test_the_loss_has_no_value(tmp_path: Path, tokenizer: Any, rows: Dataset) -> None:
    with trainer(tmp_path, tokenizer, rows) as (gpu, job):
        job.train()
        losses = [entry["loss"] for entry in job.state.log_history if "loss" in entry]
    assert all(loss != loss for loss in losses)
    assert gpu.rule_branches.keys() == {"isnan of a float is false", "a comparison of floats is false"}


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # PEFT asks for it
def test_lora_needs_no_optimizer_state_for_the_model(peak: Any) -> None:
    lora = LoraConfig(task_type="CAUSAL_LM", r=8, target_modules=["q_proj", "v_proj"])
    assert peak(peft=lora, activation_checkpointing=True) < 0.8 * peak(activation_checkpointing=True)


def test_the_fused_loss_takes_what_it_takes_on_a_gpu() -> None:
    """Its statistics and one tile of logits in the compute dtype; backward the gradients in fp32 and, while the tile is
    still there, in the dtype of their tensors."""
    tokens, width = 1024, 64
    with SimulatedGPU("a100_80gb") as gpu:
        hidden = torch.empty(tokens, width, dtype=torch.bfloat16, device=gpu.device, requires_grad=True)
        weight = torch.empty(VOCABULARY, width, dtype=torch.bfloat16, device=gpu.device, requires_grad=True)
        targets = torch.zeros(tokens, dtype=torch.int64, device=gpu.device)
        (hidden[:1] @ weight[:1].t()).sum().backward()  # takes the workspaces
        hidden.grad = weight.grad = None
        before = gpu.memory_allocated()
        gpu.reset_peak_memory_stats()
        chunk = 8192
        out = chunked_logprob.ChunkedLogProbFunction.apply(hidden, weight, None, targets, 1.0, chunk, None, 1.0, ())[0]
        tile = tokens * chunk * 2
        assert gpu.max_memory_allocated() - before == pytest.approx(tile, rel=0.01)
        before = gpu.memory_allocated()
        gpu.reset_peak_memory_stats()
        out.sum().backward()
        gradients = (tokens + VOCABULARY) * width * 4
        copies = (tokens + VOCABULARY) * width * 2
        assert gpu.max_memory_allocated() - before == pytest.approx(gradients + tile + copies, rel=0.01)


def test_a_job_that_does_not_fit_ends_in_torchs_error(tmp_path: Path, tokenizer: Any, rows: Dataset) -> None:
    with trainer(tmp_path, tokenizer, rows) as (gpu, job):
        job.train()
    with trainer(tmp_path, tokenizer, rows) as (small, job):
        small.allocator.malloc(small.capacity_bytes - gpu.max_memory_reserved() // 2)
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            job.train()
        assert small.memory_reserved() <= small.capacity_bytes


def test_each_branch_is_where_it_was_and_is_put_back() -> None:
    """Every place in a library that asks for "cuda": still there, replaced inside, and the same again outside."""
    import importlib

    import trl.kernels.chunked_divergence
    import trl.trainer.utils  # noqa: F401

    def values() -> dict[tuple[str, str], Any]:
        found: dict[tuple[str, str], Any] = {}
        for patch in PATCHES:
            if patch.is_branch and not patch.creates:
                owner: Any = importlib.import_module(patch.module)
                *path, name = patch.name.split(".")
                for part in path:
                    owner = getattr(owner, part)
                found[patch.module, patch.name] = vars(owner).get(name, getattr(owner, name))
        return found

    before = values()
    with SimulatedGPU():
        inside = values()
    assert all(inside[place] is not before[place] for place in before)
    assert values() == before
