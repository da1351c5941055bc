"""The warm server: what it gives, what it survives, and that nothing of it is left."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from processes import command_lines, is_running, parent_of, wait_until
from sweeping import sweep

from memexp.plan import load
from memexp.run import warm
from memexp.run.warm import ADDRESS_VARIABLE, server_address, warm_server
from tools.quick_cells import quick_python, quick_server

SHORT = ("steps=1", "unmeasured_steps=0", "max_length=16", "batch_size=2", "logger=none")


def servers(parent: int) -> set[int]:
    """Warm servers that `parent` started. A cell is a fork of its server, and has the server for its parent."""
    found = set()
    for pid, command in command_lines():
        with suppress(OSError):  # it has ended since
            if "memexp.run.warm_server" in command and parent_of(pid) == parent:
                found.add(pid)
    return found


def test_a_server_ends_with_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    before = servers(os.getpid())
    with warm_server([load("backend=cpu")]):
        assert server_address() is not None
        wait_until(lambda: bool(servers(os.getpid()) - before))  # between its fork and its exec it has our name
        (server,) = servers(os.getpid()) - before
    assert not is_running(server)
    assert server_address() is None


def test_no_server_is_started_for_cells_that_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    with warm_server([load("backend=cpu", "isolation=fresh"), load("backend=cpu", "offload=true")]):
        assert server_address() is None


def test_a_server_that_dies_costs_time_and_no_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    start = warm._start_server

    def start_and_kill(*arguments: object) -> "subprocess.Popen[bytes]":
        server = start(*arguments)  # type: ignore[arg-type]
        server.kill()
        return server

    monkeypatch.setattr(warm, "_start_server", start_and_kill)
    monkeypatch.setattr(sys, "executable", str(quick_python(tmp_path / "python")))
    result = sweep(tmp_path / "results", *SHORT)
    (record,) = result.records
    assert record["status"] == "ok"
    assert record["environment"]["process"] == "fresh"


def test_a_server_that_hangs_in_its_imports_costs_time_and_no_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    monkeypatch.setattr(warm, "START_SECONDS", 0.5)

    def start_and_hang(listener: socket.socket, alive: int, model_types: list[str]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(["sleep", "600"], pass_fds=(listener.fileno(), alive))

    monkeypatch.setattr(warm, "_start_server", start_and_hang)
    asked: list[str] = []
    ask = warm.WarmProcess.__init__
    monkeypatch.setattr(warm.WarmProcess, "__init__", lambda self, *more: (asked.append(more[0]), ask(self, *more))[1])
    # Whose worker is of no matter here: it is started, and ends at once.
    monkeypatch.setattr(sys, "executable", "/bin/true")
    result = sweep(tmp_path / "results", "-m", "seed=0,1", *SHORT)
    assert [record["status"] for record in result.records] == ["failed", "failed"]
    assert "exited with code 0 and left no record" in result.records[0]["reason"]
    assert len(asked) == 1  # the second cell does not wait for a server that hangs


def test_a_server_killed_under_a_cell_takes_the_cell_with_it(tmp_path: Path) -> None:
    seen: list[int] = []

    def kill_its_server() -> None:
        wait_until(lambda: any(path.read_text() for path in tmp_path.glob("mine/cells/*/child")))
        (path,) = tmp_path.glob("mine/cells/*/child")
        seen.append(child := int(path.read_text()))
        seen.append(cell := parent_of(child))
        os.kill(parent_of(cell), signal.SIGKILL)

    with quick_server({0: "hangs"}):
        killer = threading.Thread(target=kill_its_server)
        killer.start()
        result = sweep(tmp_path, "logger=none", "sweep=mine")
        killer.join()
    (record,) = result.records
    assert record["status"] == "killed"
    assert len(seen) == 2
    wait_until(lambda: not any(map(is_running, seen)))  # a signal sent is not yet a process gone


def test_an_address_is_short_enough_for_the_kernel_wherever_temporary_files_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (deep := tmp_path / ("a" * 100)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with quick_server():
        assert [record["status"] for record in sweep(tmp_path / "results", "logger=none").records] == ["ok"]


def test_a_parent_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "memexp", "backend=cpu", f"results_dir={tmp_path}", *SHORT]
    environment = {name: value for name, value in os.environ.items() if name != ADDRESS_VARIABLE}
    parent = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    wait_until(lambda: parent.poll() is not None or bool(servers(parent.pid)))
    started = servers(parent.pid)
    assert started
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not any(map(is_running, started)))  # the server sees it when it has done its imports
