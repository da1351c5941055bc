"""Seconds of the measured steps, and what follows from them. Which steps are measured is the caller's choice.

A step waits for the device at its two edges and never between them, so that its seconds are those of the work it
issued. Begin each step at the end of the one before, or what lies between (fetching a batch, logging) is left out.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from memexp.measure.tokens import BatchCount, total


class Event(Protocol):
    """A mark in the device's queue, such as `torch.cuda.Event(enable_timing=True)`."""

    def record(self) -> object:
        """Put the mark behind all work issued so far."""
        ...

    def elapsed_time(self, end_event: Any, /) -> float:
        """Milliseconds from this mark to the later one, once the device has passed both."""
        ...


class StepClock:
    """Times steps, and phases within them. Outside a step `enter` and `leave` do nothing, so that callbacks may call
    them in steps that are not measured.

    `now` tells seconds, the host's where it is not given. `events` makes an `Event`: with it phases are timed on the
    device. Without it they are timed by `now`, which is right only where ops are done when they return, as on the CPU.
    """

    def __init__(
        self,
        synchronize: Callable[[], None],
        events: Callable[[], Event] | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._synchronize = synchronize
        self._now = now or time.perf_counter
        self._new_mark: Callable[[], Any] = events or (lambda: _HostMark(self._now))
        self._started: float | None = None
        self._open: dict[str, Event] = {}
        self._spans: list[tuple[str, Event, Event]] = []
        self._step_seconds: list[float] = []
        self._phase_seconds: defaultdict[str, list[float]] = defaultdict(list)

    @property
    def step_seconds(self) -> tuple[float, ...]:
        """Seconds of each whole step so far."""
        return tuple(self._step_seconds)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time one optimizer step, all its micro-batches included. A step that raises is left out."""
        self.begin_step()
        try:
            yield
        except BaseException:
            self._forget_step()
            raise
        self.end_step()

    def begin_step(self) -> None:
        """Wait for the device and start. A step that was begun and never ended is forgotten."""
        self._forget_step()
        self._synchronize()
        self._started = self._now()

    def end_step(self) -> None:
        """Wait for the device and stop. Does nothing if no step was begun."""
        if self._started is None:
            return
        self._synchronize()
        self._step_seconds.append(self._now() - self._started)
        seconds: defaultdict[str, float] = defaultdict(float)
        for name, start, end in self._spans:
            seconds[name] += start.elapsed_time(end) / 1000
        for name, value in seconds.items():
            self._phase_seconds[name].append(value)
        self._forget_step()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a part of a step, without waiting for the device."""
        self.enter(name)
        try:
            yield
        finally:
            self.leave(name)

    def enter(self, name: str) -> None:
        """Start a part of a step. A phase within one of the same name belongs to the outer one."""
        if self._started is not None and name not in self._open:
            self._open[name] = self._mark()

    def leave(self, name: str) -> None:
        """End a part of a step; parts of one name add up within the step. Does nothing if it was not entered."""
        if name in self._open:
            self._spans.append((name, self._open.pop(name), self._mark()))

    def phases(self) -> dict[str, dict[str, float]]:
        """For each part its `median_seconds` a step, over the measured steps that had it."""
        return {name: {"median_seconds": statistics.median(values)} for name, values in self._phase_seconds.items()}

    def _mark(self) -> Event:
        mark: Event = self._new_mark()
        mark.record()
        return mark

    def _forget_step(self) -> None:
        self._started = None
        self._open.clear()
        self._spans.clear()


def rates(step_seconds: Sequence[float], counts: Iterable[BatchCount]) -> dict[str, float | None]:
    """Fields of `memexp.results.record.Speed`: sums of `counts` over the sum of seconds, and the median step.

    `counts` are those of every micro-batch of these steps and of no other. None where nothing was timed or counted.
    """
    seconds, counted = sum(step_seconds), total(counts)

    def per_second(field: str) -> float | None:
        amount: int | None = getattr(counted, field, None)
        return None if amount is None or not seconds else amount / seconds

    return {
        "median_step_seconds": statistics.median(step_seconds) if step_seconds else None,
        "real_tokens_per_second": per_second("real_tokens"),
        "loss_tokens_per_second": per_second("loss_tokens"),
        "slot_tokens_per_second": per_second("slots"),
        "samples_per_second": per_second("samples"),
    }


class _HostMark:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._seconds = 0.0

    def record(self) -> None:
        self._seconds = self._now()

    def elapsed_time(self, end_event: "_HostMark", /) -> float:
        return (end_event._seconds - self._seconds) * 1000
