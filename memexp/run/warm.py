"""Warm cells: one server has the libraries imported and has run nothing; each cell is a fork of it.

A fresh interpreter spends about ten seconds on imports before it trains; a fork spends none. The server is started by a
sweep, listens on a Unix socket that any process of the sweep may use, and ends with the process that started it.

Protocol, one connection a cell, JSON lines: the parent sends {"plan", "log", "environment"}; the server answers {"pid"}
when it has forked and {"exit"} when the cell has ended. A parent that closes the connection ends the cell.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memexp.plan.plan import Plan
from memexp.run.cluster import scheduler_job
from memexp.run.environment import ALLOCATOR_VARIABLES, QUIET, without_keys, worker_changes
from memexp.run.process_group import end_group
from memexp.run.variables import changed_variables

# In the environment, so that the processes of any Hydra launcher on this machine find it.
ADDRESS_VARIABLE = "MEMEXP_WARM_SERVER"
_JOB_VARIABLE = "MEMEXP_WARM_SERVER_OF"
# What importing may take on a cold network disk. A server that has not forked by then hangs, and is not asked again.
START_SECONDS = 300.0
_LONGEST_FOLDER_BYTES = 80  # the rest of an address is a random name and the socket's


def server_address() -> str | None:
    """The socket of the sweep's server, or None where there is none (or where its socket is on another machine)."""
    address = os.environ.get(ADDRESS_VARIABLE)
    # A job of a cluster runs in what it was allotted, and not in a server beside the sweep that submitted it.
    is_ours = os.environ.get(_JOB_VARIABLE) == str(scheduler_job())
    return address if address and is_ours and Path(address).exists() else None


@contextmanager
def warm_server(plans: Sequence[Plan]) -> Iterator[None]:
    """A server for the warm cells among `plans`, from here to the end of the block. Starts nothing where there is none.

    Does not wait for the imports: the first cell does. The cells still running when the block ends are ended.
    """
    warm = [plan for plan in plans if plan.isolation == "warm" and plan.refusal is None]
    if not warm or server_address():
        yield
        return
    model_types = sorted({plan.work.model.model_type for plan in warm})
    with serving(lambda listener, alive: _start_server(listener, alive, model_types)):
        yield


@contextmanager
def serving(start: "Callable[[socket.socket, int], subprocess.Popen[bytes]]") -> Iterator[None]:
    """Have the processes of this sweep find the server that `start(listener, alive)` starts.

    The server ends when it reads the end of the pipe of which `alive` is the descriptor.
    """
    with tempfile.TemporaryDirectory(prefix="memexp-", dir=_folder_of_sockets()) as folder:
        address = str(Path(folder) / "warm")
        # The server reads this pipe's end: when we are gone, however we went, so is it.
        ours, theirs = os.pipe()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(64)
            server = start(listener, ours)
        os.close(ours)
        try:
            with _advertised(address):
                yield
        finally:
            os.close(theirs)
            try:
                server.wait(2)  # it may still be importing, and then has no cell to end
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _folder_of_sockets() -> str:
    """The usual one, unless its path makes an address longer than the kernel takes (107 bytes, unix(7))."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) <= _LONGEST_FOLDER_BYTES else "/tmp"


@contextmanager
def _advertised(address: str) -> Iterator[None]:
    """Have the processes of this sweep find the server at `address`."""
    with changed_variables({ADDRESS_VARIABLE: address, _JOB_VARIABLE: str(scheduler_job())}):
        yield


class WarmServerGone(OSError):
    """The server ended before it had forked the cell: nothing of the cell has run."""


class WarmProcess:
    """A cell forked from the server, asked for and not waited for: the server may still be importing.

    Raises OSError where there is no server to ask.
    """

    def __init__(self, address: str, plan: Plan, plan_path: Path, gpus: Sequence[str] = ()) -> None:
        log = plan_path.with_name("log.txt")
        request = {"plan": str(plan_path), "log": str(log), "environment": worker_changes(plan, gpus)}
        self._address = address
        self._socket = socket.socket(socket.AF_UNIX)
        self._received = b""
        try:
            self._socket.connect(address)
            self._socket.sendall((json.dumps(request) + "\n").encode())
        except OSError:
            self._close()
            raise
        self._pid: int | None = None

    def wait(self, timeout_seconds: float | None) -> int | None:
        """As FreshProcess.wait; the time begins when the cell does. A server that dies under it counts as a SIGKILL.

        Raises WarmServerGone.
        """
        try:
            self._socket.settimeout(START_SECONDS)
            self._pid = pid = int(self._answer()["pid"])
        except OSError as error:
            if isinstance(error, TimeoutError):
                Path(self._address).unlink(missing_ok=True)  # so that no other cell waits for it as long
            self._close()
            raise WarmServerGone from error
        self._socket.settimeout(timeout_seconds)
        try:
            code: int = self._answer()["exit"]
        except TimeoutError:
            self.kill()
            return None
        except OSError:
            end_group(pid)  # the server died, and the cell must not train on beside the next one
            code = -signal.SIGKILL
        self._close()
        return code

    def kill(self) -> None:
        """End the cell and whatever it started, and wait for the server to have seen it.

        One that has not begun is ended by the server, which finds that we hung up.
        """
        if self._pid is not None:
            end_group(self._pid)
            with contextlib.suppress(OSError):
                self._socket.settimeout(10)
                self._answer()
        self._close()

    def end(self) -> None:
        """End it from another thread than the one that waits for it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # the server sees it too, and ends the cell's group

    def _close(self) -> None:
        self._socket.close()

    def _answer(self) -> dict[str, Any]:
        # No file object over the socket: one that has timed out once cannot be read again.
        while b"\n" not in self._received:
            received = self._socket.recv(4096)
            if not received:
                raise ConnectionResetError("the warm server closed the connection")
            self._received += received
        line, _, self._received = self._received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


def _start_server(listener: socket.socket, alive: int, model_types: Sequence[str]) -> "subprocess.Popen[bytes]":
    # A cell's allocator settings are its own; torch reads these once a process, so the server must not have them.
    environment = {name: value for name, value in without_keys(os.environ).items() if name not in ALLOCATOR_VARIABLES}
    environment |= QUIET | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "memexp.run.warm_server", str(listener.fileno()), str(alive), *model_types]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        # What a library says when it is imported is no cell's; where importing fails, the cell's own log says so.
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(listener.fileno(), alive),
        env=environment,
        start_new_session=True,  # Ctrl-C is for the parent, which then ends the cells in its own order
    )
