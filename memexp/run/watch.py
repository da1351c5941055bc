"""Watch a sweep's folder while its cells run: live lines on a terminal, one line a finished cell elsewhere.

It reads files alone, so it works under any launcher. It also tells W&B's exporter of each cell that has finished.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from memexp.plan.plan import Plan
from memexp.results.format import bytes_text, rate_text, seconds_text
from memexp.results.outcome import outcome
from memexp.results.record import Record
from memexp.results.sweep import SweepFolder
from memexp.run.progress import STARTING, read_progress
from memexp.run.progress import Progress as Place
from memexp.run.silence import Silence
from memexp.run.time_left import TimeLeft

CellDone = Callable[[Path, dict[str, Any]], None]
_POLL_SECONDS = 0.2
_PAUSES_PER_LOOK = 10  # it looks a tenth of the time, however many cells there are
_LONGEST_PAUSE_SECONDS = 5.0
_MOST_LINES = 8  # of running cells, below the bar
_SOON_SECONDS = 120  # without news, before the live line says so


class Watch:
    """A context manager; `on_done(record_path, config)` is called once a cell, refused and earlier ones included."""

    def __init__(self, folder: SweepFolder, plans: Sequence[Plan], console: Console, on_done: CellDone) -> None:
        self.folder, self.plans, self.console, self.on_done = folder, plans, console, on_done
        self._open = {plan.id: plan for plan in plans}
        self._time_left = TimeLeft()
        self._silence = Silence()
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
            self._look_at_running()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._stop.set()
            self._thread.join()
            self._look(announce=True)
        finally:  # a second Ctrl-C must not leave the terminal without its cursor
            if self._live is not None:
                self._live.stop()

    def _run(self) -> None:
        pause = _POLL_SECONDS
        while not self._stop.wait(pause):
            started = time.monotonic()
            self._look(announce=True)
            took = time.monotonic() - started
            pause = min(max(_POLL_SECONDS, _PAUSES_PER_LOOK * took), _LONGEST_PAUSE_SECONDS)

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
                self._time_left.cell_ended()
                done = len(self.plans) - len(self._open)
                self._print(f"[{done}/{len(self.plans)}] {record.cell or 'this cell'}: {self._said(record)}")
        self._look_at_running()

    def _said(self, record: Record) -> str:
        # The table of a single run has one line, and that is the reason.
        return record.status if len(self.plans) == 1 and not record.is_ok else _outcome(record)

    def _print(self, line: str) -> None:
        console = self._live.console if self._live is not None else self.console
        console.print(line, markup=False, highlight=False)

    def _look_at_running(self) -> None:
        running = []
        for plan in list(self._open.values()):
            progress = read_progress(self.folder.progress(plan.id))
            if progress is None:
                continue
            silent_seconds = self._silence.seconds(plan.id, progress)
            running.append(_where(plan, self._named(plan, progress), silent_seconds))
            if self._silence.is_news(plan.id, progress):
                self._print(_silent(plan, progress, silent_seconds))
        if self._live is not None:
            self._show_running(self._live, running)

    def _named(self, plan: Plan, progress: Place) -> Place:
        """Where a cell that starts spends its time: a fresh interpreter imports torch, a warm server does it once."""
        if progress.phase != STARTING or (plan.isolation == "warm" and self._ran):
            return progress
        return replace(progress, phase="importing torch" + (", once for all" if plan.isolation == "warm" else ""))

    def _show_running(self, live: Live, now: Sequence[str]) -> None:
        done = len(self.plans) - len(self._open)
        # One cell stands beside the bar; several take a line each below it.
        alone = now[0] if len(now) == 1 else f"{len(now)} running" if now else "starting"
        self._bar.update(self._task, completed=done, description=alone, left=self._left())
        below = now[:_MOST_LINES] if len(now) > 1 else []
        more = [f"and {len(now) - len(below)} more"] if below and len(now) > len(below) else []
        lines = (Text(f"    {line}", no_wrap=True, overflow="ellipsis") for line in (*below, *more))
        live.update(Group(self._bar, *lines))

    def _left(self) -> str:
        seconds = self._time_left.seconds(len(self._open))
        return "" if seconds is None else f"about {seconds_text(seconds)} left"


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


def _where(plan: Plan, progress: Place, silent_seconds: float) -> str:
    steps = f" step {progress.step}/{progress.steps}" if progress.steps and progress.step else ""
    silent = f", nothing new for {_minutes(silent_seconds)}" if silent_seconds >= _SOON_SECONDS else ""
    return f"{plan.name or 'this cell'}: {progress.phase}{steps}{silent}"


def _silent(plan: Plan, progress: Place, silent_seconds: float) -> str:
    advice = "" if plan.timeout_seconds else "; timeout_seconds=… would end a cell that hangs"
    return f"{_where(plan, progress, silent_seconds)}{advice}"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.0f} h"


def _outcome(record: Record) -> str:
    if record.status == "oom":
        return outcome(record)  # torch's own message is a paragraph
    if not record.is_ok:
        return f"{record.status}: {record.reason or record.reason_kind or 'no reason known'}"
    peak, rate = record.memory.peak_allocated_bytes, record.speed.real_tokens_per_second
    seconds = record.timing.wall_seconds
    parts = [
        bytes_text(peak) if peak is not None else "",
        f"{rate_text(rate)} tokens/s" if rate is not None else "",
        f"in {seconds_text(seconds)}" if seconds is not None else "",
    ]
    return "ok, " + ", ".join(part for part in parts if part)
