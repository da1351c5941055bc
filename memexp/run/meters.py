"""What one run fills: memory, time, tokens and loss of every step. Told of edges by the metered trainer."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

from memexp.measure.memory import MemoryMeter
from memexp.measure.speed import StepClock
from memexp.measure.tokens import BatchCount, CountingCollator, count_completions
from memexp.run.budget import Steps
from memexp.run.row_lengths import RowLengths

OnStep = Callable[[str, int], None]


class Meters:
    """`on_step(phase, step)` is told when a step begins, from 1."""

    def __init__(self, memory: MemoryMeter, clock: StepClock, on_step: OnStep) -> None:
        self.memory, self.clock, self.on_step = memory, clock, on_step
        self.collator: CountingCollator | None = None
        self.on_tokenised: Callable[[Any], None] = lambda rows: None
        self.counting = True  # off for a step that is no part of the run
        self.steps = Steps(0, 0, 0)
        self.before = RowLengths([], [])  # of the rows before anything was cut or packed
        self.samples_what_it_trains_on = False
        self.batch_keys: tuple[str, ...] = ()
        self.losses: list[float] = []
        self.counts: list[list[BatchCount]] = []  # for each step, a count of each of its batches
        self.step = 0
        self._step_loss: torch.Tensor | None = None
        self._step_counts: list[BatchCount] = []
        self._sampled: list[Mapping[str, torch.Tensor]] = []

    def tokenised(self, rows: Any, lengths: RowLengths) -> None:
        self.before = lengths
        self.on_tokenised(rows)

    def begin(self, steps: Steps) -> None:
        self.steps = steps
        self._begin_step()

    def phase(self, name: str) -> AbstractContextManager[Any]:
        """A part of a step, in memory and in time."""
        stack = ExitStack()
        stack.enter_context(self.memory.phase(name))
        stack.enter_context(self.clock.phase(name))
        return stack

    def enter(self, name: str) -> None:
        self.memory.enter(name)
        self.clock.enter(name)

    def leave(self, name: str) -> None:
        self.memory.leave(name)
        self.clock.leave(name)

    def optimizer_begins(self) -> None:
        """From backward to the optimizer. May be said twice: DeepSpeed steps within what the trainer calls backward."""
        open_phases = self.memory.open_phases
        if "backward" in open_phases:
            self.leave("backward")
        if "optimizer" not in open_phases:
            self.enter("optimizer")

    def sampled(self, batch: Mapping[str, torch.Tensor]) -> None:
        """A micro-batch of sampled completions, with `prompt_mask` and `completion_mask`. Looked at between steps:
        to read a mask is to wait for the device.
        """
        if self.counting:
            self._sampled.append({name: batch[name] for name in ("prompt_mask", "completion_mask")})

    def counted(self, count: BatchCount) -> None:
        """A micro-batch whose tokens the caller has counted."""
        if self.counting:
            self._step_counts.append(count)

    def batch_trained(self, loss: torch.Tensor) -> None:
        if not self.counting:
            return
        # transformers adds up the losses of a step's batches, each divided by their number already.
        self._step_loss = loss if self._step_loss is None else self._step_loss + loss
        count = self.collator.pop() if self.collator is not None else None
        if count is not None:
            self._step_counts.append(count)

    def end_step(self) -> None:
        phase = self._phase()
        self.clock.end_step()
        self.memory.step_done(self.step, phase)
        assert self._step_loss is not None
        self.losses.append(self._step_loss.item())
        self._step_counts += [count_completions(**masks) for masks in self._sampled]
        self.counts.append(self._step_counts)
        self._step_loss, self._step_counts, self._sampled = None, [], []
        if self.step == self.steps.total or self.step == self.steps.unmeasured:
            self.memory.leave(phase)
        if self.step < self.steps.total:
            self._begin_step()

    def _begin_step(self) -> None:
        self.step += 1
        phase = self._phase()
        if self.step == 1 or self.step == self.steps.unmeasured + 1:
            self.memory.enter(phase)
        self.on_step(phase, self.step)
        if phase == "measured":
            # From the end of the step before: fetching the batch and logging are part of what a step takes.
            self.clock.begin_step()

    def _phase(self) -> str:
        return "warmup" if self.step <= self.steps.unmeasured else "measured"
