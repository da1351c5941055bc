"""Peaks by phase. The one owner of the counter's peak: nobody else may reset it while a meter lives.

At every edge of a phase the peak since the edge before goes into each phase that is open, and is reset. So a phase's
peak is the device's highest point while it was open, what was already there included; phases do not add up.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from memexp.measure.counters import Counter

OUTER_PHASES = ("load", "warmup", "measured", "worst_case")
_TRAINING = ("warmup", "measured")  # what `peak_allocated_bytes` covers


class MemoryMeter:
    """Outer phases are those of `OUTER_PHASES`; any other name is an inner one, such as `forward` in a step.

    Only the edges of outer phases wait for the device. Inner phases count in warmup and measured alone, so that
    `phases["forward"]` never mixes training with the worst case.
    """

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._open: list[str] = []
        self._open_at_error: tuple[str, ...] = ()
        self._phases: dict[str, _Peak] = {}
        self._training = _Peak()
        self._training_peak_phase: str | None = None
        self._step = _Peak()
        self._steps: list[dict[str, Any]] = []
        self._steps_done = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure a block. An exception closes the phase, and what was left open in it, without waiting for the device;
        `open_phases` then still says where it happened, until the next `enter`.
        """
        self.enter(name)
        try:
            yield
        except BaseException:
            self._open_at_error = self._open_at_error or tuple(self._open)
            self._close(name, wait=False)
            raise
        self.leave(name)

    def enter(self, name: str) -> None:
        """Open a phase inside those already open. For callbacks; every `enter` needs its `leave`, but no `finally`: a
        phase that an exception left open is closed, and remembered, by the `phase` around it.
        """
        self._edge(wait=name in OUTER_PHASES)
        self._open_at_error = ()
        self._open.append(name)
        self._phases.setdefault(name, _Peak())
        if name in OUTER_PHASES:
            self._step = _Peak()

    def leave(self, name: str) -> None:
        """Close the innermost phase of that name, and any left open inside it. Raises ValueError if none is open."""
        self._close(name, wait=name in OUTER_PHASES)
        self._open_at_error = ()

    def step_done(self, step: int, phase: str) -> None:
        """End an optimizer step: `step` is its number, the first being 1, and `phase` the outer phase it was part of.

        The step's peak is since the end of the step before, or since its outer phase began.
        """
        self._edge(wait=False)
        self._steps.append({"step": step, "phase": phase, **self._step.to_dict()})
        self._step = _Peak()
        self._steps_done = step

    @property
    def open_phases(self) -> tuple[str, ...]:
        """Open phases, the outermost first; after an exception, those that were open when it was raised."""
        return self._open_at_error or tuple(self._open)

    @property
    def current_phase(self) -> str | None:
        """The inner phase of the step (the outermost of them: `generation`, not a `forward` within), else the outer
        phase, else None. Stays readable after an exception.
        """
        return _inner(self.open_phases)

    @property
    def current_step(self) -> int | None:
        """The number of the optimizer step under way, the first being 1; None outside of warmup and measured."""
        return self._steps_done + 1 if set(_TRAINING) & set(self.open_phases) else None

    def summary(self) -> dict[str, Any]:
        """Fields of `memexp.results.record.Memory`, None where the phase never ran. `peak_phase` is the inner phase in
        which `peak_allocated_bytes` was reached, or the outer one where that was between inner phases.
        """
        never = _Peak()
        return {
            "load_peak_allocated_bytes": self._phases.get("load", never).allocated_bytes,
            "peak_allocated_bytes": self._training.allocated_bytes,
            "peak_reserved_bytes": self._training.reserved_bytes,
            "peak_phase": self._training_peak_phase,
            "phases": {name: peak.to_dict() for name, peak in self._phases.items() if peak.allocated_bytes is not None},
            "worst_case_peak_allocated_bytes": self._phases.get("worst_case", never).allocated_bytes,
            "per_step": tuple(self._steps),
            "alloc_retries": self._counter.alloc_retries(),
            "capacity_bytes": self._counter.capacity_bytes(),
        }

    def _close(self, name: str, wait: bool) -> None:
        if name not in self._open:
            raise ValueError(f"phase {name!r} is not open; open are {self._open or 'none'}")
        self._edge(wait)
        while self._open.pop() != name:
            pass

    def _edge(self, wait: bool) -> None:
        if wait:
            self._counter.synchronize()
        allocated, reserved = self._counter.peak_allocated_bytes(), self._counter.peak_reserved_bytes()
        self._counter.reset_peak()
        training = any(name in _TRAINING for name in self._open)
        for name in self._open:
            if training or name in OUTER_PHASES:
                self._phases[name].fold(allocated, reserved)
        self._step.fold(allocated, reserved)
        if training and self._training.fold(allocated, reserved):
            self._training_peak_phase = _inner(self._open)


def _inner(phases: Sequence[str]) -> str | None:
    return next(iter(phases[1:2] or phases), None)


@dataclass
class _Peak:
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None

    def fold(self, allocated: int, reserved: int | None) -> bool:
        """Take in the peaks of one more stretch; True if it was the highest in allocated bytes so far."""
        if reserved is not None:
            self.reserved_bytes = max(reserved, self.reserved_bytes or 0)
        if self.allocated_bytes is not None and allocated <= self.allocated_bytes:
            return False
        self.allocated_bytes = allocated
        return True

    def to_dict(self) -> dict[str, int | None]:
        return {"peak_allocated_bytes": self.allocated_bytes, "peak_reserved_bytes": self.reserved_bytes}
