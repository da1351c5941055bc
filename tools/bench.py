"""`make bench`: what memexp costs beside the training, measured side by side in one run.

Runs the four cells of a tiny sweep warm and fresh, and plans a sweep of 200 cells. Absolute seconds are this machine's;
the ratios are what to look at.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SWEEP = ("backend=cpu", "model=tiny", "packing=none,bfd,bfd_split,wrapped", "logger=none", "sweep=bench")
GRID = ("backend=cpu", "packing=none,bfd,bfd_split,wrapped", "batch_size=1,2,4,8,16", "max_length=64,128,256,512,1024",
        "checkpointing=none,full")  # fmt: skip


def main() -> None:
    outside = {isolation: _outside_training(isolation) for isolation in ("warm", "fresh")}
    for isolation, seconds in outside.items():
        first, *later = seconds
        print(f"{isolation:5}  first cell {first:5.2f} s outside its training, later ones {_mean(later):5.2f} s")
    print(f"fresh / warm, after the first cell: {_mean(outside['fresh'][1:]) / _mean(outside['warm'][1:]):.1f} times")
    _memexp("-m", *GRID, "--dry-run", show=r"^\d+ cells.*")


def _outside_training(isolation: str) -> list[float]:
    """Wall seconds of each cell less the seconds it trained, in the order run."""
    with tempfile.TemporaryDirectory() as folder:
        _memexp("-m", *SWEEP, f"isolation={isolation}", f"results_dir={folder}")
        records = (Path(folder) / "bench" / "records.jsonl").read_text(encoding="utf-8").splitlines()
        timings = [json.loads(record)["timing"] for record in records]
    return [timing["wall_seconds"] - timing["train_seconds"] for timing in timings]


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
