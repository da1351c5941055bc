"""`make gpu-check`: a dozen cells measured on this machine's GPU beside their predictions, in about five minutes.

    python -m tools.gpu_check [--dry-run] [--out FOLDER]

Prints predicted against measured for each cell, and the median, 95th percentile and worst of the differences. The
records of both land in FOLDER (default results/gpu_check). `--dry-run` predicts on both sides, so that the script can
be tried where there is no GPU. Left out: memory snapshots, which the workers do not record.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from memexp.cli import main as memexp
from memexp.plan.machine import this_machine
from memexp.results.record import Record
from memexp.results.store import read_records, read_sweep
from memexp.results.sweep import SweepFolder

SWEEPS = {
    "qwen": ["model=qwen2_5_0_5b", "packing=none,bfd", "offload=false,true", "checkpointing=none,full"],
    "lora": ["model=qwen2_5_0_5b", "peft=lora", "packing=bfd", "allocator=default,expandable"],
    "optimizer": ["model=qwen2_5_0_5b", "packing=bfd", "optimizer=adamw,adafactor"],
    "seven_billion": [
        "model=mistral_7b",
        "peft=lora",
        "precision=bf16_weights",
        "checkpointing=full",
        "packing=bfd,wrapped",
    ],
}
FIGURES = {
    "allocated": lambda record: record.memory.peak_allocated_bytes,
    "reserved": lambda record: record.memory.peak_reserved_bytes,
    "step": lambda record: record.speed.median_step_seconds,
}
# By the words of the driver's name for the card; the first that fits.
CARDS = {
    "H200": "h200_141gb", "H100": "h100_80gb", "A100-SXM4-80GB": "a100_80gb", "A100": "a100_40gb", "L40S": "l40s_48gb",
    "4090": "rtx4090_24gb", "3090": "rtx3090_24gb", "L4": "l4_24gb", "T4": "t4_16gb",
}  # fmt: skip


def main() -> int:
    arguments = _arguments()
    gpus = this_machine().gpus
    if not gpus and not arguments.dry_run:
        print("gpu-check needs an NVIDIA GPU, and the driver shows none here. --dry-run tries the script without one.")
        return 2
    card = next((card for words, card in CARDS.items() if gpus and words in gpus[0]), "h100_80gb")
    print(f"{gpus[0] if gpus else 'no GPU'}: predicted on {card}")
    pairs: list[tuple[Record, Record]] = []
    for name, overrides in SWEEPS.items():
        measured = _run(arguments.out, f"{name}_measured", "simulate" if arguments.dry_run else "cuda", card, overrides)
        predicted = _run(arguments.out, f"{name}_predicted", "simulate", card, overrides)
        pairs += zip(predicted, measured, strict=True)
    for line in compare(pairs):
        print(line)
    return 0


def compare(pairs: Sequence[tuple[Record, Record]]) -> list[str]:
    """A line a cell, and one a figure over the cells that both sides could run."""
    lines, differences = [], {name: [] for name in FIGURES}  # type: dict[str, list[float]]
    for predicted, measured in pairs:
        parts = []
        for name, figure in FIGURES.items():
            ours, truth = figure(predicted), figure(measured)
            if ours is None or not truth:
                parts.append(f"{name} -")
                continue
            differences[name].append(abs(ours / truth - 1))
            parts.append(f"{name} {100 * (ours / truth - 1):+.2f}%")
        status = "" if predicted.status == measured.status else f"  PREDICTED {predicted.status}, WAS {measured.status}"
        lines.append(f"{measured.cell:60} {'  '.join(parts)}{status}")
    for name, found in differences.items():
        if found:
            ranked = sorted(found)
            high = ranked[min(len(ranked) - 1, round(0.95 * len(ranked)))]
            lines.append(
                f"{name}: median {100 * median(ranked):.2f}%, 95th {100 * high:.2f}%, worst {100 * ranked[-1]:.2f}%"
                f" of {len(ranked)} cells"
            )
    return lines


def _run(out: Path, name: str, backend: str, card: str, overrides: list[str]) -> list[Record]:
    fixed = [f"results_dir={out}", f"sweep={name}", f"backend={backend}", f"gpu={card}", "steps=3", "logger=none"]
    code = memexp(["-m", *fixed, *overrides])
    if code not in (0, 1):
        sys.exit(code)
    folder = SweepFolder(out / name)
    return list(read_records(folder, read_sweep(folder)).records)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_check", description="Predicted against measured.")
    parser.add_argument("--dry-run", action="store_true", help="predict on both sides")
    parser.add_argument("--out", type=Path, default=Path("results/gpu_check"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
