"""What tests ask of processes: whether one runs, which there are, and to wait for what another one does.

Whatever happens in another process is waited for by its effect and never for a time: the machine is noisy.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from memexp.run.warm import WarmProcess


def wait_until(condition: Callable[[], bool]) -> None:
    """Gives up after what no machine needs."""
    end = time.monotonic() + 300
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


@contextmanager
def times_begin_when(condition: Callable[[], bool]) -> Iterator[None]:
    """The `timeout_seconds` of every cell of a warm server begin to count when this holds, however slow its start."""
    wait = WarmProcess.wait

    def wait_for_both(process: WarmProcess, timeout_seconds: float | None) -> int | None:
        wait_until(condition)
        return wait(process, timeout_seconds)

    with patch.object(WarmProcess, "wait", wait_for_both):
        yield


def is_running(pid: int) -> bool:
    """A process that has ended and waits for its parent to ask is not."""
    try:
        return _stat(pid)[0] not in "ZX"
    except OSError:
        return False


def parent_of(pid: int) -> int:
    return int(_stat(pid)[1])


def command_lines() -> Iterator[tuple[int, str]]:
    """Of each process that runs now: its number, and its arguments with spaces between them."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield int(path.parent.name), path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue


def _stat(pid: int) -> list[str]:
    """State, parent and so on, see proc(5); what stands before them is a name that may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
