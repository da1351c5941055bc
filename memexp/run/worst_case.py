"""One more full step, on the longest rows there are: what kills a long run that a short one survives.

Kept out of loss, tokens and speed. The batch is as full as a batch gets: of the prepared rows, which are cut or packed
to `max_length` already, the longest, repeated where there are fewer than a batch. Where completions are sampled, each
runs to its longest.
"""

from collections.abc import Callable, Sequence
from typing import Any

import transformers

from memexp.run.meters import Meters


def worst_case_step(trainer: Any, meters: Meters, widths: Sequence[int], on_begin: Callable[[], None]) -> None:
    """Forward, backward and optimizer step on the worst batch, metered as the phase `worst_case`.

    `widths` are those of the rows of the trainer's dataset. A trainer that samples generates for all micro-batches of
    the step at the first of them.
    """
    batches = _batches(trainer, meters, widths)
    _run_to_the_longest(trainer)
    meters.counting = False
    with meters.memory.phase("worst_case"):
        on_begin()
        for batch in batches:
            _step(trainer, batch)


def _step(trainer: Any, batch: Any) -> None:
    args = trainer.args
    for index in range(args.gradient_accumulation_steps):
        trainer.accelerator.gradient_state._set_sync_gradients(index == args.gradient_accumulation_steps - 1)
        trainer.training_step(trainer.model_wrapped, dict(batch) if isinstance(batch, dict) else batch, None)
    trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), args.max_grad_norm)
    trainer.optimizer.step()
    trainer.model.zero_grad()


def _batches(trainer: Any, meters: Meters, widths: Sequence[int]) -> list[Any]:
    """What the data loader would give for the longest rows, and for as wide a batch with padding in it."""
    args = trainer.args
    batch_size = args.per_device_train_batch_size
    if meters.collator is not None:
        rows = longest_rows(widths, batch_size)
        picks = [rows]
        if not getattr(trainer, "padding_free", False):
            padded = with_padding(widths, rows)
            picks += [padded] if padded is not None else []
        return [meters.collator([_collated(trainer, index) for index in pick]) for pick in picks]
    # trl 1.16: GRPO and RLOO take a whole generation batch, each prompt as often as it has completions.
    copies = getattr(args, "num_generations", 1)
    rows = longest_rows(widths, batch_size * getattr(args, "steps_per_generation", 1) // copies)
    return [trainer.data_collator([trainer.train_dataset[index] for index in rows for _ in range(copies)])]


def _run_to_the_longest(trainer: Any) -> None:
    config = getattr(trainer, "generation_config", None)
    if isinstance(config, transformers.GenerationConfig):
        config.min_new_tokens = config.max_new_tokens
    if hasattr(trainer, "_buffered_inputs"):
        trainer._buffered_inputs = None  # what was sampled before is of other prompts


def longest_rows(lengths: Sequence[int], batch_size: int) -> list[int]:
    """Indices of the longest rows, as many as a batch holds; of equals the first, repeated where there are few."""
    by_length = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    return [by_length[index % len(by_length)] for index in range(batch_size)]


def with_padding(lengths: Sequence[int], rows: Sequence[int]) -> list[int] | None:
    """The same rows, the last exchanged for the longest shorter one. None where they have padding, or never do.

    Rows of one length need no attention mask, and a mask takes memory: such a batch is wide but not the worst.
    """
    width = lengths[rows[0]]
    shorter = [index for index, length in enumerate(lengths) if length < width]
    if len(rows) < 2 or not shorter or any(lengths[index] != width for index in rows):
        return None
    return [*rows[:-1], max(shorter, key=lambda index: (lengths[index], -index))]


def _collated(trainer: Any, index: int) -> dict[str, Any]:
    columns = (
        *("input_ids", "labels", "seq_lengths", "prompt_ids", "chosen_ids", "rejected_ids", "margin"),
        *("ref_chosen_logps", "ref_rejected_logps"),
    )
    row = trainer.train_dataset[index]
    return {column: row[column] for column in columns if column in row}
