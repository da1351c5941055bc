"""`make bench`: what memexp costs beside the training, measured side by side in one run.

Runs the four cells of a tiny sweep warm and fresh, plans a sweep of 200 cells, and simulates two large models at
growing depth, batch and length. Absolute seconds are this machine's; the ratios are what to look at.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SWEEP = ("backend=cpu", "model=tiny", "packing=none,bfd,bfd_split,wrapped", "logger=none", "sweep=bench")
GRID = ("backend=cpu", "packing=none,bfd,bfd_split,wrapped", "batch_size=1,2,4,8,16", "max_length=64,128,256,512,1024",
        "checkpointing=none,full")  # fmt: skip
# Three steps: the first has no optimizer state, the last is the worst case's.
SIMULATED = ("backend=simulate", "gpu=h200_141gb", "logger=none", "sweep=bench", "data=lengths", "data.rows=64",
             "data.distribution=constant", "precision=bf16_weights", "packing=bfd",
             "steps=1", "unmeasured_steps=1")  # fmt: skip
MOST_SECONDS = {"mistral_7b": 10, "llama3_1_8b": 12}
DEPTHS = (8, 16, 32)


def main() -> None:
    outside = {isolation: _outside_training(isolation) for isolation in ("warm", "fresh")}
    for isolation, seconds in outside.items():
        first, *later = seconds
        print(f"{isolation:5}  first cell {first:5.2f} s outside its training, later ones {_mean(later):5.2f} s")
    print(f"fresh / warm, after the first cell: {_mean(outside['fresh'][1:]) / _mean(outside['warm'][1:]):.1f} times")
    _memexp("-m", *GRID, "--dry-run", show=r"^\d+ cells.*")
    simulation()


def simulation() -> None:
    """Seconds of a simulated cell after the imports, beside the layers it has, and what batch and length add."""
    for model, most in MOST_SECONDS.items():
        for depth in DEPTHS:
            (seconds,) = _cell_seconds(f"model={model}", f"model.config.num_hidden_layers={depth}", *_shape(4, 1024))
            print(f"{model:12} {depth:2} layers {seconds:6.2f} s, {1000 * seconds / depth:4.0f} ms a layer", flush=True)
        print(f"{model:12} asked for: {most} s at {DEPTHS[-1]} layers on two free cores")
    base, batch, length = (
        _cell_seconds("model=mistral_7b", f"model.config.num_hidden_layers={DEPTHS[0]}", *shape)[0]
        for shape in (_shape(1, 512), _shape(8, 512), _shape(1, 4096))
    )
    print(f"batch 8 / batch 1: {batch / base:.2f} times; length 4,096 / length 512: {length / base:.2f} times")


def _shape(batch: int, length: int) -> tuple[str, ...]:
    return f"batch_size={batch}", f"max_length={length}", f"data.length={length}"


def _cell_seconds(*arguments: str) -> list[float]:
    return [timing["setup_seconds"] + timing["train_seconds"] for timing in _timings(*SIMULATED, *arguments)]


def _outside_training(isolation: str) -> list[float]:
    """Wall seconds of each cell less the seconds it trained, in the order run."""
    timings = _timings("-m", *SWEEP, f"isolation={isolation}")
    return [timing["wall_seconds"] - timing["train_seconds"] for timing in timings]


def _timings(*arguments: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        _memexp(*arguments, f"results_dir={folder}")
        records = (Path(folder) / "bench" / "records.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(record)["timing"] for record in records]


def _memexp(*arguments: str, show: str | None = None) -> None:
    done = subprocess.run([sys.executable, "-m", "memexp", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"memexp {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    if show:
        print("\n".join(re.findall(show, done.stdout, re.MULTILINE)))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
