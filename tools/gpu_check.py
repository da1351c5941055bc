"""`make gpu-check`: a dozen cells measured on this machine's GPU beside their predictions, in at most six minutes.

    python -m tools.gpu_check [--dry-run] [--out FOLDER] [--minutes 6] [--only SWEEP,...]

Prints predicted against measured for each cell, and the median, 95th percentile and worst of the differences. Predicted
is under the torch of this machine, beside the measuring. Records of both land in FOLDER (default results/gpu_check);
what the allocator did in each measured cell lands in FOLDER/../reference, without frames, for `make check-traces`.
Sweeps that do not end in time are left out and named. `--dry-run` predicts on both sides, so that the script can be
tried where there is no GPU. Installs nothing: `tools.gpu_wheels` has the packages it takes along.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from memexp.measure.trace import VARIABLE
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
FIGURES: dict[str, Callable[[Record], float | None]] = {
    "allocated": lambda record: record.memory.peak_allocated_bytes,
    "reserved": lambda record: record.memory.peak_reserved_bytes,
    "step": lambda record: record.speed.median_step_seconds,
}
# By the words of the driver's name for the card; the first that fits.
CARDS = {
    "H200": "h200_141gb", "H100": "h100_80gb", "A100-SXM4-80GB": "a100_80gb", "A100": "a100_40gb", "L40S": "l40s_48gb",
    "4090": "rtx4090_24gb", "3090": "rtx3090_24gb", "L4": "l4_24gb", "T4": "t4_16gb",
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """0 where anything could be compared, 1 where nothing could, 2 where there is no GPU."""
    given = _arguments(arguments)
    gpus = this_machine().gpus
    if not gpus and not given.dry_run:
        print("gpu-check needs an NVIDIA GPU, and the driver shows none here. --dry-run tries the script without one.")
        return 2
    card = next((card for words, card in CARDS.items() if gpus and words in gpus[0]), "h100_80gb")
    print(f"{gpus[0] if gpus else 'no GPU'}: predicted on {card}", flush=True)
    end = time.monotonic() + 60 * given.minutes
    names = [name for name in SWEEPS if name in given.only]
    predicting = {name: _start(given.out, f"{name}_predicted", "simulate", card, SWEEPS[name]) for name in names}
    pairs: list[tuple[Record, Record]] = []
    try:
        measured, late = _measure(given, names, card, end)
        for name, process in predicting.items():
            if name in measured and _wait(process, end) is not None:
                pairs += zip(_records(given.out, f"{name}_predicted"), measured[name], strict=True)
            elif name not in late:
                late.append(name)
    finally:
        for process in predicting.values():
            _stop(process)
    for line in (*compare(pairs), *(f"{name}: left out, there was no time for it" for name in late)):
        print(line)
    return 0 if pairs else 1


def compare(pairs: Sequence[tuple[Record, Record]]) -> list[str]:
    """A line a cell, and one a figure over the cells that both sides could run."""
    lines: list[str] = []
    differences: dict[str, list[float]] = {name: [] for name in FIGURES}
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


def _measure(
    given: argparse.Namespace, names: Sequence[str], card: str, end: float
) -> tuple[dict[str, list[Record]], list[str]]:
    """One sweep after the other, as they share the GPU; those that the time was too short for are named."""
    backend = "simulate" if given.dry_run else "cuda"
    measured, late = {}, []
    for name in names:
        traces = {VARIABLE: str((given.out.parent / "reference" / name).resolve())}
        process = _start(given.out, f"{name}_measured", backend, card, SWEEPS[name], traces)
        if _wait(process, end) is None:
            _stop(process)
            late.append(name)
        else:
            measured[name] = _records(given.out, f"{name}_measured")
    return measured, late


def _start(
    out: Path, name: str, backend: str, card: str, overrides: list[str], variables: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    fixed = [f"results_dir={out}", f"sweep={name}", f"backend={backend}", f"gpu={card}", "steps=2", "logger=none"]
    command = [sys.executable, "-m", "memexp", "-m", *fixed, "unmeasured_steps=2", *overrides]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **(variables or {})})


def _wait(process: subprocess.Popen[bytes], end: float) -> int | None:
    """Its exit code; None where it has none by `end`. Raises SystemExit for a sweep that could not be planned."""
    try:
        code = process.wait(timeout=max(1.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    if code not in (0, 1):
        sys.exit(code)
    return code


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Does nothing to one that has ended."""
    process.terminate()
    process.wait()


def _records(out: Path, name: str) -> list[Record]:
    folder = SweepFolder(out / name)
    return list(read_records(folder, read_sweep(folder)).records)


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_check", description="Predicted against measured.")
    parser.add_argument("--dry-run", action="store_true", help="predict on both sides")
    parser.add_argument("--out", type=Path, default=Path("results/gpu_check"))
    parser.add_argument("--minutes", type=float, default=6.0, help="stop then")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(SWEEPS), metavar="SWEEP,...")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
