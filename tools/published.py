"""`make published`: predictions beside what others measured on real cards, misses included, each with its reason.

Prints the rows of the README's table, each with its reason in full. Rows that this stack can run go through memexp;
those of other stacks are rebuilt in `tools.rebuilt`. Reasons are those that were verified; where none was, the word is
"not known".
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memexp.simulate.cards import card_named
from tools.rebuilt import LENGTH, Figures, automodel_lora, fused_loss, mistral_lora, plain_loss, qwen_with_loss

GIB, MIB = 1 << 30, 1 << 20
SHARED = ("backend=simulate", "attention=flash_attention_2", "packing=bfd", f"max_length={LENGTH}", "data=lengths",
          "data.distribution=constant", f"data.length={LENGTH}", "data.rows=64", "precision=bf16_weights",
          "logger=none", "steps=2", "unmeasured_steps=1")  # fmt: skip
FULL = ("model=mistral_7b", "gpu=a100_80gb", "optimizer=adamw", "checkpointing=full", *SHARED)

EXACT = "none: what that version's code kept is rebuilt"
STEP = "none: weights, gradients, two states and a temporary of 13.5 GiB each, in the optimizer's step"
SMI = "predicted is reserved and context, which is assumed for this card; the rest is not known"
SPEED = "a prediction: nothing is calibrated on this card; what the rest is, is not known"
CHOSEN = "the one calibrated share, of matrix products, is chosen for these two rows"


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
        digits = 0 if self.published >= 1000 else 2 if self.what.startswith("GiB") else 1
        figures = f"{self.published:,.{digits}f} | {self.predicted:,.{digits}f}"
        return f"| {self.setup} | {self.what} | {figures} | {miss} | {self.reason} |"


def main() -> None:
    print("| job | figure | published | predicted | miss | why |\n|---|---|--:|--:|--:|---|")
    for rows in (_lora_rows, _full_rows, _automodel_rows, _loss_rows):
        for row in rows():
            print(row, flush=True)


def _lora_rows() -> list[Row]:
    """Bytes, MiB and rates of scripts/benchmarks/refs/a100_80gb.csv, to the digit."""
    published = {4: (26_704_571_904, 29_576, 3_324), 8: (38_742_912_512, 43_232, 3_354)}
    rows = []
    for batch, (allocated, smi, rate) in published.items():
        rows += _fms_rows(f"Mistral-7B, LoRA r16, batch {batch}", mistral_lora(batch), allocated, smi, rate, EXACT)
    return rows


def _full_rows() -> list[Row]:
    published = {4: (72_434_837_504, 77_256, 3_063), 8: (72_435_230_720, 72_988, 3_143)}
    rows = []
    for (batch, (allocated, smi, rate)), figures in zip(
        published.items(), memexp("batch_size=4,8", *FULL), strict=True
    ):
        rows += _fms_rows(f"Mistral-7B, all weights, batch {batch}", figures, allocated, smi, rate, STEP)
    return rows


def _fms_rows(job: str, figures: Figures, allocated: int, smi: int, rate: float, why: str) -> list[Row]:
    setup = f"{job}, A100 80 GB [1]"
    predicted_smi = (figures.peak_reserved_bytes + card_named("a100_80gb").context_bytes) / MIB
    return [
        Row(setup, "GiB allocated", allocated / GIB, figures.peak_allocated_bytes / GIB, why),
        Row(setup, "MiB, nvidia-smi", smi, predicted_smi, SMI),
        Row(setup, "tokens/s", rate, figures.tokens_per_second, SPEED),
    ]


def _automodel_rows() -> list[Row]:
    published = {("qwen2_5_7b", 0.0): ("Qwen2.5-7B", 14_110), ("llama3_1_8b", 0.1): ("Llama-3-8B", 12_473)}
    return [
        Row(f"{name}, LoRA r16, batch 2, H100 [2]", "tokens/s", rate, automodel_lora(*job).tokens_per_second, CHOSEN)
        for job, (name, rate) in published.items()
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


if __name__ == "__main__":
    main()
