"""`make published`: predictions beside what others measured on real cards, misses included, each with its reason.

Prints the README's table. Rows that this stack can run go through memexp; fms-acceleration's LoRA rows (trl 0.13,
transformers 4.48) and TRL's comparison of two losses need a loss of their time, which is rebuilt here.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model
from trl.kernels.chunked_logprob import ChunkedLogProbFunction

from memexp.plan import load
from memexp.simulate import SimulatedGPU

GIB, MIB, LENGTH = 1 << 30, 1 << 20, 4096
SHARED = ("backend=simulate", "attention=flash_attention_2", "packing=bfd", f"max_length={LENGTH}", "data=lengths",
          "data.distribution=constant", f"data.length={LENGTH}", "data.rows=64", "precision=bf16_weights",
          "logger=none", "steps=2", "unmeasured_steps=1")  # fmt: skip
FULL = ("model=mistral_7b", "gpu=a100_80gb", "optimizer=adamw", "checkpointing=full", *SHARED)
LORA_ON_H100 = ("gpu=h100_80gb", "peft=lora", "batch_size=2", *SHARED)
# Version 0.1: a vocabulary of 32,000, where `model=mistral_7b` has 32,768.
MISTRAL_7B = transformers.MistralConfig(num_key_value_heads=8, vocab_size=32000, sliding_window=None)

FUSED = "likely what Automodel fuses: rotary embeddings, norms and adapters are single ops in this stack"
SMALL = "likely the adapters: many small products and casts, which reach less of the card's peak than large ones"
HIDDEN = "short by one hidden state in bf16 a batch (0.125, 0.25 GiB); which tensor of that version it was is not known"
SMI = "predicted is reserved and context; likely the libraries that are loaded, and another version's fragmentation"
LARGE = "small: nearly all of it is large products, as the roofline assumes"
STEP = "none: weights, gradients, two states and a temporary of 13.5 GiB each, in the optimizer's step"


@dataclass(frozen=True)
class Figures:
    """What one prediction says."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    tokens_per_second: float


@dataclass(frozen=True)
class Row:
    """One published figure and the prediction of it."""

    setup: str
    what: str
    published: float
    predicted: float
    reason: str

    def __str__(self) -> str:
        miss = f"{self.predicted / self.published - 1:+.1%}"
        digits = 1 if self.published < 1000 else 0
        figures = f"{self.published:,.{digits}f} | {self.predicted:,.{digits}f}"
        return f"| {self.setup} | {self.what} | {figures} | {miss} | {self.reason} |"


def main() -> None:
    print("| Job | Figure | Published | Predicted | Miss | Why |\n|---|---|--:|--:|--:|---|")
    for rows in (_lora_rows, _full_rows, _automodel_rows, _loss_rows):
        for row in rows():
            print(row, flush=True)


def _lora_rows() -> list[Row]:
    rows = []
    published = {4: (24.9, 29_576, 3_324), 8: (36.1, 43_232, 3_354)}
    for batch, (allocated, smi, rate) in published.items():
        figures = mistral_lora(batch)
        setup = f"Mistral-7B, LoRA r16, batch {batch}, A100 80 GB [1]"
        context = SimulatedGPU("a100_80gb").card.context_bytes
        rows += [
            Row(setup, "GiB allocated", allocated, figures.peak_allocated_bytes / GIB, HIDDEN),
            Row(setup, "MiB, nvidia-smi", smi, (figures.peak_reserved_bytes + context) / MIB, SMI),
            Row(setup, "tokens/s", rate, figures.tokens_per_second, SMALL),
        ]
    return rows


def _full_rows() -> list[Row]:
    rows = []
    published = {4: (67.5, 3_063), 8: (67.5, 3_143)}
    for (batch, (allocated, rate)), figures in zip(published.items(), memexp("batch_size=4,8", *FULL), strict=True):
        setup = f"Mistral-7B, all weights, batch {batch}, A100 80 GB [1]"
        rows += [
            Row(setup, "GiB allocated", allocated, figures.peak_allocated_bytes / GIB, STEP),
            Row(setup, "tokens/s", rate, figures.tokens_per_second, LARGE),
        ]
    return rows


def _automodel_rows() -> list[Row]:
    published = {"qwen2_5_7b": ("Qwen2.5-7B", 14_110), "llama3_1_8b": ("Llama-3-8B", 12_473)}
    predicted = memexp(f"model={','.join(published)}", *LORA_ON_H100)
    return [
        Row(f"{name}, LoRA r16, batch 2, H100 [2]", "tokens/s", rate, figures.tokens_per_second, FUSED)
        for (name, rate), figures in zip(published.values(), predicted, strict=True)
    ]


def _loss_rows() -> list[Row]:
    plain, fused = (qwen_with_loss(loss) for loss in (plain_loss, fused_loss))
    share = 100 * fused.peak_allocated_bytes / plain.peak_allocated_bytes
    seconds = 100 * plain.tokens_per_second / fused.tokens_per_second
    setup = "Qwen3-1.7B, fused loss, plain = 100 [3]"
    return [
        Row(setup, "allocated", 67.0, share, "batch and length are not published; here 8 rows of 1,024"),
        Row(setup, "step time", 97.4, seconds, "as above"),
    ]


def memexp(*arguments: str) -> list[Figures]:
    """One sweep of memexp, in grid order."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "memexp", "-m", *arguments, f"results_dir={folder}", "sweep=published"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        lines = (Path(folder) / "published" / "records.jsonl").read_text(encoding="utf-8").splitlines()
    return [_figures(json.loads(line)) for line in lines]


def _figures(record: dict[str, Any]) -> Figures:
    memory, speed = record["memory"], record["speed"]
    return Figures(memory["peak_allocated_bytes"], memory["peak_reserved_bytes"], speed["real_tokens_per_second"])


def mistral_lora(batch: int) -> Figures:
    """fms-acceleration's LoRA row: adapters of rank 16 on q, k, v and o, every layer checkpointed, flash attention."""
    with SimulatedGPU("a100_80gb") as gpu:
        with torch.device(gpu.device):
            model = transformers.AutoModelForCausalLM.from_config(
                MISTRAL_7B, dtype=torch.bfloat16, attn_implementation="flash_attention_2"
            )
        _checkpointed(model)
        model.enable_input_require_grads()
        lora = LoraConfig(task_type="CAUSAL_LM", r=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
        adapted = get_peft_model(model, lora)

        def loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
            return loss_of_transformers_4_48(model(input_ids=ids).logits, ids)

        return train(gpu, adapted, loss, batch, LENGTH)


def qwen_with_loss(loss: Callable[[Any, torch.Tensor], torch.Tensor], layers: int = 28) -> Figures:
    """Qwen3-1.7B with fp32 weights under bf16 autocast, trained whole, in TRL's default batch of 8 rows of 1,024."""
    config = transformers.AutoConfig.for_model(
        "qwen3", **{**load("model=qwen3_1_7b", "backend=simulate").work.model.config, "num_hidden_layers": layers}
    )
    with SimulatedGPU("h100_80gb") as gpu:
        with torch.device(gpu.device):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        _checkpointed(model)
        return train(gpu, model, loss, 8, 1024)


def loss_of_transformers_4_48(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """It upcast the logits and then copied them once more, shifted by a token."""
    upcast = logits.float()
    shifted = upcast[..., :-1, :].contiguous()
    return torch.nn.functional.cross_entropy(shifted.view(-1, shifted.shape[-1]), labels[..., 1:].reshape(-1))


def plain_loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """transformers' own, on the logits of all tokens."""
    loss: torch.Tensor = model(input_ids=ids, labels=ids).loss
    return loss


def fused_loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """TRL's, which never has all logits at once."""
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1].reshape(-1, model.config.hidden_size)
    targets = ids[:, 1:].reshape(-1)
    kernel = ChunkedLogProbFunction.apply
    log_probabilities: torch.Tensor = kernel(hidden, model.lm_head.weight, None, targets, 1.0, 8192)[0]  # type: ignore[no-untyped-call]
    return -log_probabilities.mean()


def train(
    gpu: SimulatedGPU,
    model: torch.nn.Module,
    loss_of: Callable[[Any, torch.Tensor], torch.Tensor],
    batch: int,
    length: int,
) -> Figures:
    """Two steps under bf16 autocast with fused AdamW; the rate is the second one's."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)
    ids = torch.zeros(batch, length, dtype=torch.int64, device=gpu.device)
    began = 0.0
    for _ in range(2):
        began = gpu.elapsed_seconds
        with torch.autocast(gpu.device.type, dtype=torch.bfloat16):
            loss = loss_of(model, ids)
        loss.backward()  # type: ignore[no-untyped-call]
        del loss
        optimizer.step()
        optimizer.zero_grad()
    rate = batch * length / (gpu.elapsed_seconds - began)
    return Figures(gpu.max_memory_allocated(), gpu.max_memory_reserved(), rate)


def _checkpointed(model: Any) -> None:
    model.config.use_cache = False
    model.activation_checkpointing_enable()


if __name__ == "__main__":
    main()
