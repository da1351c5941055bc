"""The warm server's own process: import, then fork a worker for each connection. Runs no torch op itself.

python -m memexp.run.warm_server LISTENER_FD ALIVE_FD MODEL_TYPE...
"""

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from typing import Any, NoReturn

from memexp.run.process_group import end_group
from memexp.run.variables import change_variables
from memexp.run.worker import main as work

# A parent that was stopped between connecting and asking must not hold up the cells of others.
_REQUEST_SECONDS = 10

# What a TRL job imports only when it first needs it: seconds a cell, if each fork pays for them again.
_LAZY = (
    "torch",
    "datasets",
    "transformers",
    "trl",
    "peft",
    "memexp.simulate.gpu",
    "memexp.simulate.patches",
    "torch._dynamo",
    "torch.utils.checkpoint",
    "accelerate.optimizer",
    "accelerate.scheduler",
    "accelerate.data_loader",
    "datasets.arrow_writer",
    "transformers.models.auto.modeling_auto",
    "transformers.tokenization_utils_tokenizers",
    "trl.trainer.sft_trainer",
    "peft.tuners.lora",
)


def main(listener_fd: int, alive_fd: int, model_types: list[str]) -> None:
    """Serve until the other end of `alive_fd` closes, then end the cells that still run."""
    _import(model_types)
    # What the libraries made will not go away: a cell's own collections need not walk through it again.
    gc.collect()
    gc.freeze()
    Server(socket.socket(fileno=listener_fd), alive_fd).serve()


class Server:
    """One loop: a new connection is a cell to fork, a closed one a cell to end, a dead child an answer to send."""

    def __init__(self, listener: socket.socket, alive_fd: int) -> None:
        self.listener, self.alive_fd = listener, alive_fd
        self.cells: dict[int, socket.socket] = {}
        self.child_died, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake)
        self.selector = selectors.DefaultSelector()
        for fd in (listener.fileno(), alive_fd, self.child_died):
            self.selector.register(fd, selectors.EVENT_READ)

    def serve(self) -> None:
        while True:
            for key, _ in self.selector.select():
                if key.fd == self.alive_fd:
                    return self._end()
                if key.fd == self.child_died:
                    os.read(self.child_died, 4096)
                    self._answer_deaths()
                elif key.fd == self.listener.fileno():
                    self._fork(self.listener.accept()[0])
                elif key.data in self.cells:
                    end_group(key.data)  # its parent hung up
                    self.selector.unregister(key.fd)

    def _fork(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(_REQUEST_SECONDS)
            request: dict[str, Any] = json.loads(connection.makefile("r", encoding="utf-8").readline())
            connection.settimeout(None)
        except (ValueError, OSError):
            connection.close()
            return
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_worker(request, connection, server)
        # Here too, so that the group is there to be ended whichever of the two comes first.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        self.cells[pid] = connection
        self.selector.register(connection, selectors.EVENT_READ, data=pid)
        _send(connection, {"pid": pid})

    def _answer_deaths(self) -> None:
        while self.cells:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            end_group(pid)
            connection = self.cells.pop(pid)
            if connection in self.selector.get_map():
                self.selector.unregister(connection)
            _send(connection, {"exit": os.waitstatus_to_exitcode(status)})
            connection.close()

    def _end(self) -> None:
        for pid in self.cells:
            end_group(pid)

    def _become_worker(self, request: dict[str, Any], connection: socket.socket, parent: int) -> NoReturn:
        code = 1
        try:
            with contextlib.suppress(OSError):
                os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self.selector.close()
            for inherited in (connection, self.listener, *self.cells.values()):
                inherited.close()
            os.close(self.alive_fd)
            _redirect(request["log"])
            change_variables(os.environ, request["environment"])
            code = work(request["plan"], parent, process="warm")
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _import(model_types: list[str]) -> None:
    lazy = [*_LAZY, *(f"transformers.models.{name}.modeling_{name}" for name in model_types if name)]
    for module in lazy:
        try:
            importlib.import_module(module)
        except ImportError:
            # What only some version has is imported later where it is missing: slower, never wrong.
            continue


def _send(connection: socket.socket, message: dict[str, int]) -> None:
    with contextlib.suppress(OSError):  # the parent is gone, and its cell with it
        connection.sendall((json.dumps(message) + "\n").encode())


def _redirect(log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
