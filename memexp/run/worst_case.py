"""One more full step, on the longest rows there are: what kills a long run that a short one survives.

Kept out of loss, tokens and speed. The batch is as full as a batch gets: of the prepared rows, which are cut or packed
to `max_length` already, the longest, repeated where there are fewer than a batch.
"""

from collections.abc import Callable, Sequence
from typing import Any

from memexp.run.metered import Meters
from memexp.run.prepared import row_lengths


def worst_case_step(trainer: Any, meters: Meters, on_begin: Callable[[], None]) -> None:
    """Forward, backward and optimizer step on the worst batch, metered as the phase `worst_case`."""
    args = trainer.args
    lengths = row_lengths(trainer.train_dataset)
    rows = longest_rows(lengths, args.per_device_train_batch_size)
    assert meters.collator is not None
    batch = meters.collator([_collated(trainer, index) for index in rows])
    meters.counting = False
    with meters.memory.phase("worst_case"):
        on_begin()
        for index in range(args.gradient_accumulation_steps):
            trainer.accelerator.gradient_state._set_sync_gradients(index == args.gradient_accumulation_steps - 1)
            trainer.training_step(trainer.model_wrapped, dict(batch))
        trainer.accelerator.clip_grad_norm_(trainer.model.parameters(), args.max_grad_norm)
        trainer.optimizer.step()
        trainer.model.zero_grad()


def longest_rows(lengths: Sequence[int], batch_size: int) -> list[int]:
    """Indices of the longest rows, as many as a batch holds; of equals the first, repeated where there are few."""
    by_length = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    return [by_length[index % len(by_length)] for index in range(batch_size)]


def _collated(trainer: Any, index: int) -> dict[str, Any]:
    columns = ("input_ids", "labels", "seq_lengths")
    row = trainer.train_dataset[index]
    return {column: row[column] for column in columns if column in row}
