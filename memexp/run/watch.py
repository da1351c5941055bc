"""Watch a sweep's folder while its cells run: live lines on a terminal, one line a finished cell elsewhere.

It reads files alone, so it works under any launcher. It also tells W&B's exporter of each cell that has finished.
"""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from memexp.plan.plan import Plan
from memexp.results.format import bytes_text, rate_text, seconds_text
from memexp.results.record import Record
from memexp.results.sweep import SweepFolder
from memexp.run.progress import read_progress

CellDone = Callable[[Path, dict[str, Any]], None]
_POLL_SECONDS = 0.2
_MOST_LINES = 8  # of running cells, below the bar


class Watch:
    """A context manager; `on_done(record_path, config)` is called once a cell, refused and earlier ones included."""

    def __init__(self, folder: SweepFolder, plans: Sequence[Plan], console: Console, on_done: CellDone) -> None:
        self.folder, self.plans, self.console, self.on_done = folder, plans, console, on_done
        self._open = {plan.id: plan for plan in plans}
        self._started = time.monotonic()
        self._ran = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memexp-watch", daemon=True)
        self._bar = _bar(console)
        self._task = self._bar.add_task("", total=len(self.plans), completed=0, left="")
        self._live = Live(console=console, transient=True, auto_refresh=True) if console.is_terminal else None

    def __enter__(self) -> Self:
        self._look(announce=False)
        if self._live is not None:
            self._live.start()
            self._show_running()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._look(announce=True)
        if self._live is not None:
            self._live.stop()

    def _run(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            self._look(announce=True)

    def _look(self, announce: bool) -> None:
        for plan in list(self._open.values()):
            path = self.folder.record(plan.id)
            if not path.exists():
                continue
            try:
                record = Record.read(path)
            except (OSError, TypeError, ValueError):
                continue  # what is there and damaged is named when the sweep ends
            del self._open[plan.id]
            self.on_done(path, {"choices": plan.choices, **plan.work.to_dict()})
            if announce:
                self._ran += 1
                self._print(record)
        self._show_running()

    def _print(self, record: Record) -> None:
        done = len(self.plans) - len(self._open)
        console = self._live.console if self._live is not None else self.console
        name = record.cell or "this cell"
        line = f"[{done}/{len(self.plans)}] {name}: {_outcome(record)}"
        console.print(line, markup=False, highlight=False)

    def _show_running(self) -> None:
        if self._live is None:
            return
        running = [(plan, read_progress(self.folder.progress(plan.id))) for plan in list(self._open.values())]
        now = [_where(plan, progress) for plan, progress in running if progress is not None]
        done = len(self.plans) - len(self._open)
        # One cell stands beside the bar; several take a line each below it.
        alone = now[0] if len(now) == 1 else f"{len(now)} running" if now else "starting"
        self._bar.update(self._task, completed=done, description=alone, left=self._time_left())
        below = now[:_MOST_LINES] if len(now) > 1 else []
        more = [f"and {len(now) - len(below)} more"] if below and len(now) > len(below) else []
        lines = (Text(f"    {line}", no_wrap=True, overflow="ellipsis") for line in (*below, *more))
        self._live.update(Group(self._bar, *lines))

    def _time_left(self) -> str:
        if self._ran == 0 or not self._open:
            return ""
        seconds = (time.monotonic() - self._started) / self._ran * len(self._open)
        return f"about {seconds_text(seconds)} left"


def _bar(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        MofNCompleteColumn(),
        BarColumn(bar_width=20),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}", markup=False),
        console=console,
        auto_refresh=False,  # the live display around it draws
    )


def _where(plan: Plan, progress: Any) -> str:
    steps = f" step {progress.step}/{progress.steps}" if progress.steps and progress.step else ""
    return f"{plan.name}: {progress.phase}{steps}"


def _outcome(record: Record) -> str:
    if record.status != "ok":
        return f"{record.status}: {record.reason or record.reason_kind or 'no reason known'}"
    peak, rate = record.memory.peak_allocated_bytes, record.speed.real_tokens_per_second
    seconds = record.timing.wall_seconds
    parts = [
        bytes_text(peak) if peak is not None else "",
        f"{rate_text(rate)} tokens/s" if rate is not None else "",
        f"in {seconds_text(seconds)}" if seconds is not None else "",
    ]
    return "ok, " + ", ".join(part for part in parts if part)
