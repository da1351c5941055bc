"""A worker's process: the first of a group of its own, so that whatever it starts ends with it."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def start_worker(plan_path: Path, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """A worker in an interpreter of its own, which writes at the end of the log beside its plan. Raises OSError."""
    with open(plan_path.with_name("log.txt"), "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "memexp.run.worker", str(plan_path), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def end_group(leader: int) -> None:
    """SIGKILL for the process of that number and all that it started and left behind. Returns at once."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)
