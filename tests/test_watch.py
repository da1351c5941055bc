"""What a person sees while a sweep runs: a live line on a terminal, one line a finished cell elsewhere."""

import io
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until
from rich.console import Console

from memexp.plan import load
from memexp.results.store import write_record
from memexp.results.sweep import SweepFolder
from memexp.run.launch import base_record
from memexp.run.progress import Progress, read_progress, write_progress
from memexp.run.watch import Watch


def watch(folder: Path, terminal: bool) -> tuple[str, list[Path]]:
    """Two cells, of which the second is training when the first ends; what was printed, and what was handed over."""
    plans = [replace(load("backend=cpu", f"seed={seed}"), name=f"seed={seed}") for seed in (0, 1)]
    paths = SweepFolder(folder)
    for plan in plans:
        paths.cell(plan.id).mkdir(parents=True)
    out, done = io.StringIO(), []

    def on_done(path: Path, config: dict[str, Any]) -> None:
        done.append(path)

    console = Console(file=out, force_terminal=terminal, width=120)
    with Watch(paths, plans, console, on_done):
        write_progress(paths.progress(plans[1].id), Progress("measured", 3, 7))
        write_record(paths.record(plans[0].id), replace(base_record(plans[0], "s"), status="failed", reason="it broke"))
        wait_until(lambda: bool(done) and (not terminal or "step 3/7" in out.getvalue()))
    return out.getvalue(), done


def test_a_finished_cell_is_a_line_with_its_reason_wherever_it_is_printed(tmp_path: Path) -> None:
    for terminal in (False, True):
        said, done = watch(tmp_path / str(terminal), terminal)
        assert "[1/2] seed=0: failed: it broke" in said
        assert len(done) == 1


def test_a_terminal_shows_the_phase_and_step_of_the_running_cell(tmp_path: Path) -> None:
    said, _ = watch(tmp_path, terminal=True)
    assert "seed=1: measured step 3/7" in said
    assert "left" in said


def test_a_log_has_no_live_line(tmp_path: Path) -> None:
    said, _ = watch(tmp_path, terminal=False)
    assert "\x1b" not in said
    assert len(said.splitlines()) == 1


def test_progress_that_is_not_there_or_broken_is_no_progress(tmp_path: Path) -> None:
    assert read_progress(tmp_path / "progress.json") is None
    (tmp_path / "progress.json").write_text('{"phase": "me')
    assert read_progress(tmp_path / "progress.json") is None


def test_a_sweep_runs_on_a_real_terminal(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "memexp", "-m", "offload=true", "seed=0,1", "backend=cpu", "logger=none",
               f"results_dir={tmp_path}"]  # fmt: skip
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=follower, stderr=follower)
    os.close(follower)
    said = b""
    with pytest.raises(OSError, match="Input/output error"):  # how Linux says that the other end is closed
        while True:
            said += os.read(leader, 4096)
    os.close(leader)
    assert process.wait() == 0
    assert b"Traceback" not in said
    assert b"needs_hardware" in said
