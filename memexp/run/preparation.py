"""What a built trainer has to train on: the lengths of its rows, whether they teach anything, and how many steps."""

from typing import Any

from memexp.plan.plan import Work
from memexp.run.budget import Steps, count_steps
from memexp.run.meters import Meters
from memexp.run.refusal import Refused
from memexp.run.row_lengths import (
    RowLengths,
    document_lengths,
    has_something_to_learn,
    has_something_to_prefer,
    pair_lengths,
    prompt_lengths,
)


def prepared_lengths(trainer: Any, kind: str, meters: Meters) -> RowLengths:
    """The lengths of the trainer's own dataset. Raises Refused where nothing can be learned from it."""
    rows, longest = trainer.train_dataset, getattr(trainer.args, "max_length", None)
    if kind == "documents":
        if not has_something_to_learn(rows):
            raise Refused("invalid_data", f"no token with a label is left within max_length={longest}.")
        return document_lengths(rows)
    if kind == "pairs":
        keeps_end = getattr(trainer.args, "truncation_mode", "keep_start") == "keep_end"
        if not has_something_to_prefer(rows, longest, keeps_end):
            raise Refused("invalid_data", f"no pair with a difference is left within max_length={longest}.")
        return pair_lengths(rows, longest)
    lengths = prompt_lengths(rows, trainer.processing_class)
    if 0 in lengths.tokens:
        row = lengths.tokens.index(0) + 1
        raise Refused("invalid_data", f"row {row}, column prompt: it has no token to begin a completion from.")
    meters.samples_what_it_trains_on = True
    meters.tokenised(rows, lengths)
    return lengths


def steps_to_take(trainer: Any, work: Work, lengths: RowLengths) -> Steps:
    """The plan's budget in optimizer steps. Raises Refused where the prompts do not fill a single batch."""
    args, budget = trainer.args, work.budget
    accumulation = args.gradient_accumulation_steps
    if work.trainer.rows != "prompts":
        return count_steps(
            budget, lengths.tokens, args.per_device_train_batch_size, accumulation, processes=work.processes
        )
    # GRPO and RLOO repeat a prompt for each of its completions, and leave out what does not fill a batch.
    micro_batches = len(trainer.get_train_dataloader())
    if micro_batches == 0:
        raise Refused(
            "invalid_data",
            f"{len(lengths.tokens)} prompts do not fill a batch. Type a smaller batch_size, or give more rows.",
        )
    return count_steps(budget, [1] * micro_batches, 1, accumulation)


def longest_kept(trainer: Any) -> int | None:
    """Tokens beyond which a row of the dataset loses some; None where nothing is ever cut."""
    args = getattr(trainer, "args", None)
    longest: int | None = getattr(args, "max_length", None)
    sampled: int | None = getattr(args, "max_new_tokens", None)
    return longest if longest is None or sampled is None else longest - sampled
