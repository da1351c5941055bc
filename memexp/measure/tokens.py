"""How many tokens a batch trains on, counted from the collator's rows and never from a padding token's id.

Three meanings of "token" are kept apart: `real_tokens` are those of the rows, `loss_tokens` those that the loss is
taken over, `slots` those that the model computes on, padding included.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class BatchCount:
    """One micro-batch on one process. `loss_tokens` is None where the loss is not over tokens, `samples` is None where
    packing has broken documents apart.
    """

    real_tokens: int
    loss_tokens: int | None
    slots: int
    samples: int | None


def count_batch(rows: Sequence[Mapping[str, Any]], batch: Mapping[str, Any], packed: bool = False) -> BatchCount:
    """Count one batch: `rows` is what TRL's collator was given and `batch` what it made of them.

    `packed` says that the rows were packed; without `seq_lengths` in them that is packing by a fixed length, whose
    documents cannot be counted. Preference rows have no `input_ids`: theirs are counted by the attention mask, a
    sample is then one pair, and the loss is over the completions, or over no tokens where they are not marked.
    """
    samples: int | None
    if "seq_lengths" in rows[0]:
        samples = sum(len(row["seq_lengths"]) for row in rows)
    else:
        samples = None if packed else len(rows)
    if "input_ids" in rows[0]:
        real_tokens = sum(len(row["input_ids"]) for row in rows)
    else:
        real_tokens = int(batch["attention_mask"].sum())
    return BatchCount(real_tokens, _loss_tokens(batch), batch["input_ids"].numel(), samples)


def count_completions(prompt_mask: torch.Tensor, completion_mask: torch.Tensor) -> BatchCount:
    """Count sampled completions behind their prompts by the masks, 0 where there is padding, each (rows, tokens).

    A sample is one completion, and the loss is over its tokens. Waits for the device that the masks are on.
    """
    prompt_tokens, completion_tokens = (int(mask.cpu().sum()) for mask in (prompt_mask, completion_mask))
    slots = prompt_mask.numel() + completion_mask.numel()
    return BatchCount(prompt_tokens + completion_tokens, completion_tokens, slots, len(completion_mask))


def total(counts: Iterable[BatchCount]) -> BatchCount | None:
    """The sum, field by field; a field that is None in one count is None in the sum. None if there are no counts."""
    listed = list(counts)
    if not listed:
        return None
    loss_tokens, samples = [c.loss_tokens for c in listed], [c.samples for c in listed]
    return BatchCount(
        real_tokens=sum(count.real_tokens for count in listed),
        loss_tokens=None if None in loss_tokens else sum(n for n in loss_tokens if n is not None),
        slots=sum(count.slots for count in listed),
        samples=None if None in samples else sum(n for n in samples if n is not None),
    )


class CountingCollator:
    """A collator that also counts what it makes. Batches are the wrapped collator's own, unchanged.

    A data loader asks for batches ahead of the step that trains on them, so counts wait in the order of the batches:
    `pop` one for each micro-batch. With `dataloader_num_workers` above 0 the counts stay in the workers.
    """

    def __init__(self, collator: Callable[[list[dict[str, Any]]], Any], packed: bool = False) -> None:
        self._collator = collator
        self._packed = packed
        self._waiting: deque[BatchCount | None] = deque()

    def __call__(self, rows: list[dict[str, Any]]) -> Any:
        batch = self._collator(rows)
        countable = isinstance(batch, Mapping) and "input_ids" in batch
        self._waiting.append(count_batch(rows, batch, self._packed) if countable else None)
        return batch

    def pop(self) -> BatchCount | None:
        """The count of the oldest batch not popped yet; None if it had no `input_ids`, as prompts for generation.

        Raises LookupError if no batch was collated in this process.
        """
        if not self._waiting:
            raise LookupError("no batch was collated in this process; token counts need dataloader_num_workers=0")
        return self._waiting.popleft()


def _loss_tokens(batch: Mapping[str, Any]) -> int | None:
    # A causal model predicts token i + 1 at position i, so the first token of a row is never predicted.
    labels: torch.Tensor | None = batch.get("labels")
    if labels is not None:
        return int((labels[..., 1:] != -100).sum())
    completion_mask: torch.Tensor | None = batch.get("completion_mask")
    return None if completion_mask is None else int(completion_mask[..., 1:].sum())
