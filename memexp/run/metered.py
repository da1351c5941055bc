"""TRL's own trainer, with a meter at each edge. It looks where it must and changes nothing that is computed.

What differs between trainers is what they are given: documents, pairs, or prompts to sample from. Where the rows are
prepared or sampled, each kind has a class here; the steps have one.
"""

import copy
from typing import Any

import torch
import transformers

from memexp.measure.tokens import count_completions
from memexp.run.meters import Meters
from memexp.run.refusal import Refused
from memexp.run.row_lengths import document_lengths, has_something_to_learn, has_something_to_prefer, pair_lengths
from memexp.run.sharding import innermost


def metered(base: Any, meters: Meters, rows: str = "documents") -> Any:
    """A subclass of TRL's trainer `base` that reports to `meters`, under the same name. `rows` is what it is given."""
    kinds: dict[str, type[_Steps]] = {"documents": _Documents, "pairs": _Pairs, "prompts": _Prompts}
    kind = kinds[rows]
    if rows == "prompts" and "compute_loss" not in vars(base):
        kind = _PromptsInOneStep
    return type(base.__name__, (kind, base), {"meters": meters})


class _Steps:
    meters: Meters

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self.meters.batch_keys = self.meters.batch_keys or tuple(inputs)
        with self.meters.phase("forward"):
            loss = super().compute_loss(model, inputs, *args, **kwargs)  # type: ignore[misc]
        self.meters.enter("backward")
        return loss

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(*args, **kwargs)  # type: ignore[misc]
        if self.accelerator.sync_gradients:  # type: ignore[attr-defined]
            # Clipping is the optimizer's: it comes after the last backward, and holds every gradient.
            self.meters.optimizer_begins()
        else:
            self.meters.leave("backward")
        self.meters.batch_trained(loss)
        return loss


class _Documents(_Steps):
    def _prepare_dataset(
        self, dataset: Any, processing_class: Any, args: Any, packing: bool, formatting_func: Any, dataset_name: str
    ) -> Any:
        prepare = super()._prepare_dataset  # type: ignore[misc]
        if "input_ids" not in dataset.column_names or "labels" not in dataset.column_names:
            # Tokenise first with nothing cut, to know what there was; TRL then skips what is tokenised already.
            dataset = prepare(
                dataset, processing_class, _uncut(args, shuffle_dataset=False), False, formatting_func, dataset_name
            )
        self.meters.tokenised(dataset, document_lengths(dataset))
        if not has_something_to_learn(dataset):
            raise Refused("invalid_data", "there is nothing to learn: no row has a second token with a label.")
        return prepare(dataset, processing_class, args, packing, None, dataset_name)


class _Pairs(_Steps):
    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, dataset_name: str) -> Any:
        prepare = super()._prepare_dataset  # type: ignore[misc]
        if "chosen_ids" not in dataset.column_names:
            dataset = prepare(dataset, processing_class, _uncut(args), dataset_name)
            ids = [name for name in ("prompt_ids", "chosen_ids", "rejected_ids") if name in dataset.column_names]
            # A margin is part of a reward's loss.
            dataset = dataset.select_columns([*ids, *(["margin"] if "margin" in dataset.column_names else [])])
        self.meters.tokenised(dataset, pair_lengths(dataset))
        if not has_something_to_prefer(dataset):
            raise Refused("invalid_data", "there is nothing to learn: chosen and rejected are the same in every row.")
        if "prompt_ids" not in dataset.column_names:
            return prepare(dataset, processing_class, args, dataset_name)
        # DPO tokenises whatever it is given, so the rest of what it does is said here again: trl 1.16 drops the rows
        # whose prompt alone fills max_length, where it keeps the start.
        if args.max_length is None or args.truncation_mode != "keep_start":
            return dataset
        return dataset.filter(lambda row: len(row["prompt_ids"]) < args.max_length)


class _Prompts(_Steps):
    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        with self.meters.phase("generation"):
            return super()._generate(*args, **kwargs)  # type: ignore[misc]

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        self.meters.sampled(inputs)
        return super().compute_loss(model, inputs, *args, **kwargs)


class _PromptsInOneStep(_Prompts):
    """trl 1.16, OnlineDPOTrainer: its training_step samples, takes the loss and goes backward without compute_loss."""

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        sampled = super()._generate(*args, **kwargs)
        prompt_ids, prompt_mask, completion_ids, completion_mask, *_ = sampled
        longest: int = self.max_length  # type: ignore[attr-defined]
        cut = max(0, prompt_ids.size(1) + completion_ids.size(1) - longest)  # from the left, as _forward does
        self.meters.counted(count_completions(prompt_mask[:, cut:], completion_mask))
        self.meters.enter("forward")
        return sampled

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        accelerator: Any = self.accelerator  # type: ignore[attr-defined]
        backward = accelerator.backward

        def metered_backward(*arguments: Any, **keywords: Any) -> None:
            self.meters.leave("forward")
            self.meters.enter("backward")
            backward(*arguments, **keywords)

        accelerator.backward = metered_backward
        try:
            return super().training_step(*args, **kwargs)
        finally:
            del accelerator.backward


def _uncut(args: Any, **more: Any) -> Any:
    whole = copy.copy(args)
    whole.max_length = None
    for name, value in more.items():
        setattr(whole, name, value)
    return whole


class StepEdges(transformers.TrainerCallback):  # type: ignore[misc]
    """Tells the meters where a step of the training loop ends, and where an optimizer steps by itself."""

    def __init__(self, meters: Meters) -> None:
        self.meters = meters

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        optimizer = innermost(kwargs["optimizer"])
        optimizer.register_step_pre_hook(lambda *_: self.meters.optimizer_begins())

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.meters.leave("optimizer")
        self.meters.end_step()
