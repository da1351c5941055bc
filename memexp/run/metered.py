"""TRL's own trainer, with a meter at each edge. It looks where it must and changes nothing that is computed."""

import copy
from collections.abc import Callable
from typing import Any

import torch
import transformers

from memexp.measure.memory import MemoryMeter
from memexp.measure.speed import StepClock
from memexp.measure.tokens import BatchCount, CountingCollator
from memexp.run.budget import Steps
from memexp.run.prepared import has_something_to_learn, row_lengths
from memexp.run.refusal import Refused

OnStep = Callable[[str, int], None]


class Meters:
    """What one run fills. `on_step(phase, step)` is told when a step begins, from 1."""

    def __init__(self, memory: MemoryMeter, clock: StepClock, on_step: OnStep) -> None:
        self.memory, self.clock, self.on_step = memory, clock, on_step
        self.collator: CountingCollator | None = None
        self.on_tokenised: Callable[[Any], None] = lambda rows: None
        self.counting = True  # off for a step that is no part of the run
        self.steps = Steps(0, 0, 0)
        self.tokenised_lengths: list[int] = []  # of the rows before anything was cut or packed
        self.batch_keys: tuple[str, ...] = ()
        self.losses: list[float] = []
        self.counts: list[list[BatchCount]] = []  # for each step, a count of each of its batches
        self.step = 0
        self._step_loss: torch.Tensor | None = None
        self._step_counts: list[BatchCount] = []

    def tokenised(self, rows: Any) -> None:
        self.tokenised_lengths = row_lengths(rows)
        self.on_tokenised(rows)

    def begin(self, steps: Steps) -> None:
        self.steps = steps
        self._begin_step()

    def batch_trained(self, loss: torch.Tensor) -> None:
        if not self.counting:
            return
        # transformers adds up the losses of a step's batches, each divided by their number already.
        self._step_loss = loss if self._step_loss is None else self._step_loss + loss
        assert self.collator is not None
        count = self.collator.pop()
        if count is not None:
            self._step_counts.append(count)

    def end_step(self) -> None:
        phase = self._phase()
        self.clock.end_step()
        self.memory.step_done(self.step, phase)
        assert self._step_loss is not None
        self.losses.append(self._step_loss.item())
        self.counts.append(self._step_counts)
        self._step_loss, self._step_counts = None, []
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


def metered(base: Any, meters: Meters) -> Any:
    """A subclass of TRL's trainer `base` that reports to `meters`, under the same name."""

    class Metered(base):  # type: ignore[misc]
        def _prepare_dataset(
            self, dataset: Any, processing_class: Any, args: Any, packing: bool, formatting_func: Any, dataset_name: str
        ) -> Any:
            prepare = super()._prepare_dataset
            if "input_ids" not in dataset.column_names or "labels" not in dataset.column_names:
                # Tokenise first with nothing cut, to know what there was; TRL then skips what is tokenised already.
                whole_args = copy.copy(args)
                whole_args.max_length, whole_args.shuffle_dataset = None, False
                dataset = prepare(dataset, processing_class, whole_args, False, formatting_func, dataset_name)
            meters.tokenised(dataset)
            if not has_something_to_learn(dataset):
                raise Refused("invalid_data", "there is nothing to learn: no row has a second token with a label.")
            return prepare(dataset, processing_class, args, packing, None, dataset_name)

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            with meters.memory.phase("forward"), meters.clock.phase("forward"):
                loss = super().compute_loss(*args, **kwargs)
            meters.memory.enter("backward")
            meters.clock.enter("backward")
            return loss

        def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
            meters.batch_keys = meters.batch_keys or tuple(inputs)
            loss: torch.Tensor = super().training_step(model, inputs, *args, **kwargs)
            meters.memory.leave("backward")
            meters.clock.leave("backward")
            meters.batch_trained(loss)
            if self.accelerator.sync_gradients:
                # Clipping is the optimizer's: it comes after the last backward, and holds every gradient.
                meters.memory.enter("optimizer")
                meters.clock.enter("optimizer")
            return loss

    Metered.__name__ = Metered.__qualname__ = base.__name__
    return Metered


class StepEdges(transformers.TrainerCallback):  # type: ignore[misc]
    """Tells the meters where a step of the training loop ends."""

    def __init__(self, meters: Meters) -> None:
        self.meters = meters

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.meters.memory.leave("optimizer")
        self.meters.clock.leave("optimizer")
        self.meters.end_step()
