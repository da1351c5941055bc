"""What a person sees while a sweep runs: a live line on a terminal, one line a finished cell elsewhere."""

import io
import os
import pty
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from processes import wait_until
from rich.console import Console

from memexp.announce import print_command, said_if_long
from memexp.plan import load
from memexp.results.store import write_record
from memexp.results.sweep import Sweep, SweepFolder
from memexp.results.table import make_table, print_table
from memexp.run.progress import STARTING, Progress, read_progress, write_progress
from memexp.run.silence import Silence
from memexp.run.time_left import TimeLeft
from memexp.run.unmeasured import base_record
from memexp.run.watch import Watch
from tools.quick_cells import quick_server


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
    write_progress(paths.progress(plans[1].id), Progress(STARTING))
    with Watch(paths, plans, console, on_done):
        wait_until(lambda: not terminal or "importing torch" in out.getvalue())
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
    assert "seed=1: importing torch, once for all" in said


def test_the_time_left_is_unknown_at_first_and_never_rises_while_no_cell_ends() -> None:
    now = 100.0
    left = TimeLeft(clock=lambda: now)
    now = 140.0
    assert left.seconds(4) is None
    left.cell_ended()  # 40 s for the first
    assert left.seconds(3) == 120
    now = 200.0
    assert left.seconds(3) == 60
    now = 261.0
    assert left.seconds(3) is None
    left.cell_ended()  # 161 s for two
    assert left.seconds(2) == 161


def test_a_command_to_be_pasted_is_one_line_on_a_narrow_terminal() -> None:
    out, command = io.StringIO(), "python -m memexp -m packing=bfd,wrapped " + "trainer.args.weight_decay=0.1 " * 9
    print_command(command, Console(file=out, force_terminal=True, width=40))
    assert out.getvalue() == f"{command}\n"


def test_what_is_waited_for_is_said_where_it_takes_long_and_else_not() -> None:
    out = io.StringIO()
    with said_if_long("Writing runs", Console(file=out), after_seconds=0):
        wait_until(lambda: "Writing runs" in out.getvalue())
    before = out.getvalue()
    with said_if_long("Writing runs", Console(file=out), after_seconds=3600):
        pass
    assert out.getvalue() == before


def test_the_reason_of_a_single_run_is_said_once(tmp_path: Path) -> None:
    plan, folder, out = load("backend=cpu"), SweepFolder(tmp_path), io.StringIO()
    record = replace(base_record(plan, "s"), status="refused", reason="no such rows", reason_kind="invalid_data")
    folder.cell(plan.id).mkdir(parents=True)
    console = Console(file=out, width=80, force_terminal=True)
    watch = Watch(folder, [plan], console, lambda *_: None)
    write_record(folder.record(plan.id), record)
    watch._look(announce=True)
    print_table(make_table(Sweep(name="s", cells=(plan.id,)), [record]), console)
    said = out.getvalue()
    assert ": refused\n" in said
    assert said.count("no such rows") == 1
    assert "\n\n\n" not in said


def test_a_log_has_no_live_line(tmp_path: Path) -> None:
    said, _ = watch(tmp_path, terminal=False)
    assert "\x1b" not in said
    assert len(said.splitlines()) == 1


def test_progress_that_is_not_there_or_broken_is_no_progress(tmp_path: Path) -> None:
    assert read_progress(tmp_path / "progress.json") is None
    (tmp_path / "progress.json").write_text('{"phase": "me')
    assert read_progress(tmp_path / "progress.json") is None


@pytest.mark.parametrize("end", ["a terminal that is closed", "a pipe that nobody reads"])
def test_a_sweep_goes_on_without_anybody_who_reads(tmp_path: Path, end: str) -> None:
    # As after `disown`, or in `| head -1`: what hangs up is ignored, and nothing can be printed any more.
    reads, writes = pty.openpty() if end.startswith("a terminal") else os.pipe()
    command = [sys.executable, "-m", "memexp", "-m", "seed=0,1,2", "backend=cpu", "logger=none", "sweep=mine",
               f"results_dir={tmp_path}"]  # fmt: skip
    with quick_server(seconds=0.3):
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=writes,
            stderr=writes,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        )
        os.close(writes)
        os.read(reads, 100)
        os.close(reads)
        assert process.wait() == 0
    assert len((tmp_path / "mine" / "records.jsonl").read_text().splitlines()) == 3
    assert (tmp_path / "mine" / "report.html").exists()


def test_a_cell_that_tells_nothing_new_for_long_is_named_once_a_place(tmp_path: Path) -> None:
    plan = replace(load("backend=cpu"), name="seed=0")
    paths = SweepFolder(tmp_path)
    paths.cell(plan.id).mkdir(parents=True)
    out, minutes = io.StringIO(), 0.0
    watch = Watch(paths, [plan], Console(file=out, width=120), lambda *_: None)
    watch._silence = Silence(clock=lambda: 60 * minutes)
    said = []
    for minutes, step in ((0, 3), (9, 3), (12, 3), (20, 3), (21, 4), (30, 4), (40, 4)):  # noqa: B007
        write_progress(paths.progress(plan.id), Progress("measured", step, 7))
        before = len(out.getvalue())
        watch._look(announce=True)
        said.append(out.getvalue()[before:].strip())
    advice = "; timeout_seconds=… would end a cell that hangs"
    assert said == ["", "", f"seed=0: measured step 3/7, nothing new for 12 min{advice}", "", "", "",
                    f"seed=0: measured step 4/7, nothing new for 19 min{advice}"]  # fmt: skip


def test_a_cell_that_waits_for_its_turn_is_not_said_to_hang() -> None:
    seconds = 0.0
    silence = Silence(clock=lambda: seconds)
    places = {"waits": Progress.waiting_for("SLURM (Priority)"), "trains": Progress("measured", 3, 7)}
    assert not any(silence.is_news(cell, place) for cell, place in places.items())
    seconds = 24 * 3600.0
    assert [cell for cell, place in places.items() if silence.is_news(cell, place)] == ["trains"]


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
