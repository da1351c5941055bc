"""What a sweep does when its folder cannot be written, is gone or is somebody's, and when the clock goes back."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import is_running, wait_until
from sweeping import Swept, sweep

from memexp.results import store
from memexp.results.sweep import SweepFolder
from memexp.run import folder as folders
from memexp.run import launch
from memexp.run.progress import Progress, write_progress
from tools.quick_cells import quick_server

GRID = ("-m", "seed=0,1,2", "logger=none", "sweep=mine")


@pytest.fixture(autouse=True)
def _quick_cells() -> object:
    with quick_server():
        yield


def breaks_at(monkeypatch: pytest.MonkeyPatch, name: str, nth: int, code: int) -> None:
    """The parent's `nth` write of a file of that name fails as a full or read-only disk does, and so do all later."""
    write, seen = store.write_atomically, []

    def failing(path: Path, text: str, durable: bool = True) -> None:
        seen.extend([path] if path.name == name else [])
        if len(seen) >= nth:
            raise OSError(code, os.strerror(code), str(path))
        write(path, text, durable)

    monkeypatch.setattr(store, "write_atomically", failing)


@pytest.mark.parametrize(
    ("code", "said", "jobs"), [(errno.ENOSPC, "No space left", 1), (errno.EROFS, "Read-only file system", 2)]
)
def test_a_disk_that_is_full_or_read_only_is_one_line_and_keeps_what_finished(
    code: int, said: str, jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as disk:
        breaks_at(disk, "record.json", 2, code)
        stopped = sweep(tmp_path, *GRID, f"jobs={jobs}")
    assert stopped.code == 1
    (line,) = stopped.err.splitlines()
    assert said in line
    assert "record.json" in line
    assert f"{GRID[0]} {GRID[1]}" in line
    assert len(list(tmp_path.glob("mine/cells/*/record.json"))) == 1
    assert not list(tmp_path.rglob("*.tmp"))
    again = sweep(tmp_path, *GRID)
    assert "2 to run, 1 finished before" in again.out
    assert [record["status"] for record in again.records] == ["ok"] * 3


def test_a_disk_that_is_full_before_the_first_cell_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    breaks_at(monkeypatch, "sweep.json", 1, errno.ENOSPC)
    stopped = sweep(tmp_path, *GRID)
    assert stopped.code == 2
    assert len(stopped.err.splitlines()) == 1
    assert "No space left" in stopped.err


def test_a_progress_file_that_cannot_be_written_ends_no_cell(tmp_path: Path) -> None:
    write_progress(tmp_path / "gone" / "progress.json", Progress("measured"))


def test_half_a_progress_file_does_not_stay(tmp_path: Path) -> None:
    (tmp_path / "progress.json").mkdir()  # which no file can replace
    write_progress(tmp_path / "progress.json", Progress("measured"))
    assert not list(tmp_path.glob("*.tmp"))


def test_what_a_killed_process_left_half_written_is_gone_when_the_sweep_goes_on(tmp_path: Path) -> None:
    first = sweep(tmp_path, *GRID)
    (cell,) = (tmp_path / "mine" / "cells").glob(first.records[1]["id"])
    (cell / "record.json").unlink()
    for half in (tmp_path / "mine" / ".table.md.0a1b2c3d.tmp", cell / ".measured.json.0a1b2c3d.tmp"):
        half.write_text("{")
    sweep(tmp_path, *GRID)
    assert not list(tmp_path.rglob("*.tmp"))


def test_where_a_killed_sweep_stood_is_forgotten_when_it_goes_on(tmp_path: Path) -> None:
    first = sweep(tmp_path, *GRID)
    (cell,) = (tmp_path / "mine" / "cells").glob(first.records[1]["id"])
    (cell / "record.json").unlink()
    write_progress(cell / "progress.json", Progress("measured", 3, 7))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("memexp.sweeper.run_cells", lambda *_: None)
        sweep(tmp_path, *GRID)
    assert not (cell / "progress.json").exists()


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_folder_that_is_deleted_meanwhile_is_one_line(tmp_path: Path, jobs: int) -> None:
    command = [sys.executable, "-m", "memexp", *GRID, "backend=cpu", f"jobs={jobs}", f"results_dir={tmp_path}"]
    with quick_server(seconds=1.5):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: any(tmp_path.glob("mine/cells/*/log.txt")))
        # Moved first: a cell that writes between the files would leave the folder there.
        shutil.rmtree((tmp_path / "mine").rename(tmp_path / "gone"))
        _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    (line,) = said.splitlines()
    assert str(tmp_path / "mine") in line
    assert "No such file or directory" in line
    assert not (tmp_path / "mine").exists()


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As root every folder can be written, so the lock's file is a folder here.
    (tmp_path / "mine" / ".lock").mkdir(parents=True)
    refused = sweep(tmp_path, *GRID)
    assert refused.code == 2
    assert "mine cannot be written" in refused.err


def test_a_folder_that_is_no_sweep_is_never_made_one(tmp_path: Path) -> None:
    there = "notes.txt"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / there).write_text("somebody's own")
    refused = sweep(tmp_path, *GRID)
    assert refused.code == 2
    assert "is no sweep" in refused.err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == [there]


@pytest.mark.parametrize(
    "damage", [lambda path: path.unlink(), lambda path: os.truncate(path, 20)], ids=["gone", "cut"]
)
def test_a_sweep_whose_own_file_is_lost_goes_on_with_its_records(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    first = sweep(tmp_path, *GRID)
    (tmp_path / "mine" / "cells" / first.records[1]["id"] / "record.json").unlink()
    damage(tmp_path / "mine" / "sweep.json")
    again = sweep(tmp_path, *GRID)
    assert again.code == 0
    assert "1 to run, 2 finished before" in again.out
    assert [record["id"] for record in again.records] == [record["id"] for record in first.records]
    assert again.records[0] == first.records[0]


def test_a_file_system_without_locks_is_no_reason_to_run_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(folders.fcntl, "flock", unsupported)
    assert sweep(tmp_path, *GRID).code == 0


def test_a_limit_of_the_system_is_one_line_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more_processes(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with monkeypatch.context() as limit:
        limit.setattr(launch.subprocess, "Popen", no_more_processes)
        stopped = sweep(tmp_path, *GRID, "isolation=fresh")
    assert stopped.code == 1
    (line,) = stopped.err.splitlines()
    assert line.startswith("memexp: Resource temporarily unavailable. Once that is put right: python -m memexp ")


def test_a_damaged_sweep_json_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sweep.json").write_text('{"name": 5}')
    refused = sweep(tmp_path, *GRID)
    assert refused.code == 2
    assert "sweep.json is damaged" in refused.err


def test_last_is_the_sweep_started_last_also_when_the_clock_was_set_back(tmp_path: Path) -> None:
    sweep(tmp_path, "logger=none", "sweep=older")
    ahead = time.time() + 7200  # what was written before the clock went back lies in the future
    os.utime(tmp_path / "older" / "sweep.json", (ahead, ahead))
    sweep(tmp_path, "logger=none", "sweep=newest")
    assert folders._choose(tmp_path, "last").name == "newest"
    sweep(tmp_path, "logger=none", "sweep=older")
    assert folders._choose(tmp_path, "last").name == "older"


def test_a_cells_seconds_are_none_of_the_clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hours = iter(range(1_000_000, 0, -1))
    monkeypatch.setattr(time, "time", lambda: 3600.0 * next(hours))  # an hour back, whenever it is asked
    result = sweep(tmp_path, *GRID)
    assert [record["status"] for record in result.records] == ["ok"] * 3
    assert all(0 < record["timing"]["wall_seconds"] < 60 for record in result.records)


def test_the_second_of_two_sweeps_in_one_folder_changes_nothing_in_it(tmp_path: Path) -> None:
    first = sweep(tmp_path, *GRID)
    assert first.folder is not None
    (first.folder / "cells" / first.records[0]["id"] / "record.json").unlink()
    before = content(first)
    with folders.only_run(SweepFolder(first.folder)):
        second = sweep(tmp_path, "-m", "seed=0,1,2,3", "logger=none", "sweep=mine", "rerun=ok")
    assert second.code == 2
    assert "another process" in second.err
    assert content(first) == before


def content(swept: Swept) -> dict[str, bytes]:
    assert swept.folder is not None
    return {str(path): path.read_bytes() for path in swept.folder.rglob("*") if path.is_file()}


def test_a_sweep_killed_at_any_moment_resumes_with_what_it_had_and_leaves_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "memexp", "-m", "seed=range(0,7)", "backend=cpu", "logger=none", "sweep=mine",
               "jobs=2", f"results_dir={tmp_path}"]  # fmt: skip
    cells = tmp_path / "mine" / "cells"
    had: dict[str, bytes] = {}
    with quick_server({6: "hangs"}, seconds=0.15):
        for finished in (1, 3, 6):
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as parent:
                # At whatever moment it has so many records: their number is read while it goes on. At last only the
                # cell that hangs is left, and begins a moment after the record before it.
                wait_until(
                    lambda finished=finished: (
                        len(list(cells.glob("*/record.json"))) >= finished
                        and (finished < 6 or any(path.read_text() for path in cells.glob("*/child")))
                    )
                )
                parent.send_signal(signal.SIGKILL)
            now = {path.parent.name: path.read_bytes() for path in cells.glob("*/record.json")}
            assert had.items() <= now.items()  # what was finished is what it was, to the byte
            had = now
        children = [int(path.read_text()) for path in cells.glob("*/child")]
        assert len(children) == 1
        wait_until(lambda: not any(map(is_running, children)))
    with quick_server():
        whole = sweep(tmp_path, *command[3:-1])
    assert whole.code == 0
    assert [record["status"] for record in whole.records] == ["ok"] * 7
    after = {path.parent.name: path.read_bytes() for path in cells.glob("*/record.json")}
    assert had.items() <= after.items()
