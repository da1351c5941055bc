"""A warm server whose cells train nothing: each writes a record, or comes to grief as told, and ends.

For tests of everything around a cell, which then take milliseconds: run as a program this is the server, and
`quick_server` starts it. The parent's side is memexp's own, unchanged.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from memexp.run.warm import serving

PEAK = 2**30


@contextmanager
def quick_server(faults: Mapping[int, str] | None = None, seconds: float = 0.0) -> Iterator[None]:
    """Cells that take `seconds` each; `faults` maps a cell's seed to what befalls it, and -1 stands for every seed."""

    def start(listener: socket.socket, alive: int) -> "subprocess.Popen[bytes]":
        command = [sys.executable, __file__, str(listener.fileno()), str(alive), json.dumps(faults or {}), str(seconds)]
        return subprocess.Popen(command, pass_fds=(listener.fileno(), alive), start_new_session=True)

    with serving(start):
        yield


def quick_python(script: Path) -> Path:
    """A program to stand for `python` where a fresh worker is started: it runs one cell as the server's cells run."""
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} "$3"\n', encoding="utf-8")
    script.chmod(0o755)
    return script


def quick_work(plan_path: str, faults: dict[str, str], seconds: float, process: str = "warm") -> int:
    from memexp.plan.plan import Plan
    from memexp.results.record import Memory
    from memexp.results.store import write_record
    from memexp.run.environment import describe_worker
    from memexp.run.measured import measured_path
    from memexp.run.progress import Progress, write_progress
    from memexp.run.unmeasured import base_record

    path = Path(plan_path)
    plan = Plan.read(path)
    write_progress(path.with_name("progress.json"), Progress("measured", 1, 5))
    come_to_grief(faults.get(str(plan.work.seed)) or faults.get("-1"), path)
    time.sleep(seconds)
    memory = Memory(peak_allocated_bytes=PEAK + plan.work.seed)
    record = replace(base_record(plan, path.parents[2].name), status="ok", memory=memory)
    write_record(measured_path(path), replace(record, environment=describe_worker(process)))
    return 0


def come_to_grief(fault: str | None, plan_path: Path) -> None:
    if fault == "raises":
        raise ArithmeticError(f"seed {plan_path.parent.name} cannot be counted")
    if fault == "exits":
        raise SystemExit(3)
    if fault == "segfaults":
        os.kill(os.getpid(), signal.SIGSEGV)
    if fault == "hangs":
        # A child that ignores what it is asked: only the end of the whole group ends it.
        child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, 1); time.sleep(600)"])
        plan_path.with_name("child").write_text(str(child.pid))
        time.sleep(600)


def serve() -> None:
    faults, seconds = json.loads(sys.argv[3]), float(sys.argv[4])
    # In the place of the worker that would import torch.
    worker = types.ModuleType("memexp.run.worker")
    worker.main = lambda plan, parent, process: quick_work(plan, faults, seconds)  # type: ignore[attr-defined]
    sys.modules["memexp.run.worker"] = worker
    from memexp.run import unmeasured  # noqa: F401
    from memexp.run.warm_server import Server

    Server(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])).serve()


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.exit(quick_work(sys.argv[1], {}, 0.0, "fresh"))
    serve()
