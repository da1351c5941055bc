"""The part of `make bench` that is about many cells: what a cell costs that trains nothing, and two cells at once.

Absolute seconds are this machine's. Hydra's composing is printed beside memexp's own share.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tools.quick_cells import quick_server

CELLS = 1000
JOB = ("backend=simulate", "model=qwen2_5_0_5b", "max_length=512", "steps=4", "logger=none", "sweep=bench")


def main() -> None:
    load(CELLS)
    at_once()


def load(cells: int) -> None:
    """A sweep of cells whose worker writes a record and ends."""
    grid = ("-m", f"seed=range(0,{cells})", "backend=cpu", "logger=none", "sweep=bench")
    with tempfile.TemporaryDirectory() as folder, quick_server():
        said, _ = _memexp(folder, *grid, "--dry-run")  # which tells of Hydra's part however short it was
        composing = float(re.findall(r"Hydra composed in ([\d.]+) s", said)[0])
        started = time.perf_counter()
        _, peaks = _memexp(folder, *grid)
        seconds = time.perf_counter() - started
        rows = (Path(folder) / "bench" / "records.jsonl").read_text(encoding="utf-8").count("\n")
    assert rows == cells
    print(
        f"load   {cells:,} cells that only write a record: {1000 * (seconds - composing) / cells:.0f} ms a cell, "
        f"beside {1000 * composing / cells:.0f} ms of Hydra's composing; the parent held "
        f"{peaks[len(peaks) // 4]:.0f} MiB after a quarter of the time and at most {max(peaks):.0f} MiB"
    )


def at_once() -> None:
    """The same cells one after another and two at once, warm servers and first cells left out."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = {}
        for jobs in (1, 2):
            _memexp(f"{folder}/{jobs}", "-m", *JOB, f"jobs={jobs}", "seed=range(0,8)")
            text = (Path(folder) / str(jobs) / "bench" / "records.jsonl").read_text(encoding="utf-8")
            records = [json.loads(line) for line in text.splitlines()]
            seconds[jobs] = sum(record["timing"]["wall_seconds"] for record in records[2:]) / jobs
    cores = len(os.sched_getaffinity(0))
    print(f"jobs=2 on {cores} cores: {seconds[1] / seconds[2]:.2f} times as fast as jobs=1, six cells of {JOB[1]}")


def _memexp(results: str, *arguments: str) -> tuple[str, list[float]]:
    """What it printed, and the memory (MiB) that its process held each tenth of a second."""
    command = [sys.executable, "-m", "memexp", *arguments, f"results_dir={results}"]
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        held = []
        while process.poll() is None:
            held.append(_resident_mib(process.pid))
            time.sleep(0.1)
        out.seek(0)
        said = out.read()
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}:\n{said}")
    return said, held


def _resident_mib(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (OSError, IndexError):
        return 0.0


if __name__ == "__main__":
    main()
