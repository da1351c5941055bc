"""Ending cells that several threads wait for: all of them, and none leaves a record."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Process(Protocol):
    """A cell's worker, as FreshProcess and WarmProcess are."""

    def wait(self, timeout_seconds: float | None) -> int | None: ...

    def kill(self) -> None: ...

    def end(self) -> None: ...


class Interrupted(BaseException):
    """Raised in a thread whose cell was ended from outside. Like KeyboardInterrupt it is no Exception."""


class Running:
    """The workers that run now. Thread-safe; one is shared by the cells of a sweep that run at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: set[Process] = set()
        self.interrupted = threading.Event()

    @contextmanager
    def holding(self, process: Process) -> Iterator[None]:
        """Raises Interrupted where all were ended before or within the block, whatever else was raised there."""
        with self._lock:
            self._processes.add(process)
        try:
            self.check()
            yield
        finally:
            with self._lock:
                self._processes.discard(process)
            self.check()

    def check(self) -> None:
        if self.interrupted.is_set():
            raise Interrupted

    def end_all(self) -> None:
        """End every worker, now and from now on. Returns at once; the threads that wait for them raise."""
        self.interrupted.set()
        with self._lock:
            for process in self._processes:
                process.end()
