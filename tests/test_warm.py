"""The warm server: what it gives, what it survives, and that nothing of it is left."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from sweeping import sweep, write_rows

from memexp.plan import load
from memexp.run import warm
from memexp.run.warm import ADDRESS_VARIABLE, server_address, warm_server

SHORT = ("steps=1", "unmeasured_steps=0", "max_length=16", "batch_size=2", "logger=none")


def servers(parent: int) -> set[int]:
    """Warm servers that `parent` started. A cell is a fork of its server, and has the server for its parent."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            is_server = b"memexp.run.warm_server" in (path / "cmdline").read_bytes()
            if is_server and int((path / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.add(int(path.name))
        except OSError:
            continue
    return found


def is_running(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_server_ends_with_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    before = servers(os.getpid())
    with warm_server([load("backend=cpu")]):
        assert server_address() is not None
        while not (started := servers(os.getpid()) - before):
            time.sleep(0.01)  # between its fork and its exec it has our name
        (server,) = started
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
    rows = write_rows(tmp_path / "rows.jsonl")
    result = sweep(tmp_path / "results", "data=jsonl", f"data.path={rows}", *SHORT)
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


def test_a_server_killed_under_a_cell_takes_the_cell_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS_VARIABLE, raising=False)
    before = servers(os.getpid())
    killer = threading.Thread(target=_kill_server_of_a_running_cell, args=(tmp_path, before))
    killer.start()
    result = sweep(tmp_path, "steps=5000", "max_length=32", "batch_size=1", "logger=none", "sweep=mine")
    killer.join()
    (record,) = result.records
    assert record["status"] == "killed"
    for _ in range(100):  # a signal sent is not yet a process gone
        if not any(map(is_running, CELLS)):
            break
        time.sleep(0.05)
    assert not any(map(is_running, CELLS))


CELLS: list[int] = []


def _kill_server_of_a_running_cell(results: Path, before: set[int]) -> None:
    while not any('"measured"' in path.read_text() for path in results.glob("mine/cells/*/progress.json")):
        time.sleep(0.05)
    (server,) = servers(os.getpid()) - before
    CELLS.extend(servers(server))
    assert CELLS
    os.kill(server, signal.SIGKILL)


def test_a_parent_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "memexp", "backend=cpu", f"results_dir={tmp_path}", *SHORT]
    environment = {name: value for name, value in os.environ.items() if name != ADDRESS_VARIABLE}
    parent = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    while not (started := servers(parent.pid)):
        time.sleep(0.05)
        assert parent.poll() is None
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    # The server sees it when it has done its imports.
    for _ in range(600):
        if not any(map(is_running, started)):
            break
        time.sleep(0.1)
    assert not any(map(is_running, started))
