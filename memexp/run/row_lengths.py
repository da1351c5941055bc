"""What data preparation kept, cut and packed, counted from the rows before and after it. No torch in here."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# trl 1.16 packs each batch of datasets.map on its own, and this is the size of such a batch.
_PACKING_BATCH_ROWS = 1000


@dataclass(frozen=True)
class RowLengths:
    """For each row the real tokens that a step on it trains on, and the width, in tokens, that it gives its batch.

    A pair has two halves, each with the prompt: its tokens are those of both, its width is that of the longer one.
    A prompt has the tokens of the prompt alone: what is sampled from it is not known yet.
    """

    tokens: list[int]
    widths: list[int]


def document_lengths(rows: Any) -> RowLengths:
    """Of rows with `input_ids`."""
    lengths = row_lengths(rows)
    return RowLengths(lengths, lengths)


def pair_lengths(rows: Any, max_length: int | None = None) -> RowLengths:
    """Of rows with `chosen_ids` and `rejected_ids`, and `prompt_ids` where they are apart, cut at `max_length`."""
    prompts = row_lengths(rows, "prompt_ids") if "prompt_ids" in rows.column_names else itertools.repeat(0)
    halves = zip(prompts, row_lengths(rows, "chosen_ids"), row_lengths(rows, "rejected_ids"), strict=False)
    cut = [
        tuple(prompt + half if max_length is None else min(prompt + half, max_length) for half in (chosen, rejected))
        for prompt, chosen, rejected in halves
    ]
    return RowLengths([sum(pair) for pair in cut], [max(pair) for pair in cut])


def prompt_lengths(rows: Any, tokenizer: Any) -> RowLengths:
    """Of rows with a `prompt`, text or conversation, tokenised as TRL's trainers do when they sample from it."""
    prompts = list(rows["prompt"])
    if isinstance(prompts[0], str):
        ids = tokenizer(prompts)["input_ids"]
    else:
        ids = tokenizer.apply_chat_template(prompts, add_generation_prompt=True, tokenize=True, return_dict=True)[
            "input_ids"
        ]
    lengths = [len(row) for row in ids]
    return RowLengths(lengths, lengths)


def row_lengths(rows: Any, column: str = "input_ids") -> list[int]:
    """Tokens of each row of a datasets.Dataset, counted by Arrow: walking the rows takes a second for a thousand."""
    import pyarrow.compute

    lengths: list[int] = pyarrow.compute.list_value_length(rows.with_format("arrow")[:][column]).to_pylist()
    return lengths


def has_something_to_learn(rows: Any) -> bool:
    """Whether any row has a token that is predicted: a label that is not ignored, behind the first of its row."""
    return any(label != -100 for labels in rows["labels"] for label in labels[1:])


def has_something_to_prefer(rows: Any, max_length: int | None = None, keep_end: bool = False) -> bool:
    """Whether the halves of any pair differ in the `max_length` tokens that are kept, of the start or of the end."""
    kept = slice(None) if max_length is None else slice(-max_length, None) if keep_end else slice(max_length)
    for row in rows:
        prompt = row.get("prompt_ids", [])
        chosen, rejected = ((prompt + row[half])[kept] for half in ("chosen_ids", "rejected_ids"))
        if chosen != rejected:
            return True
    return False


def describe_data(
    rows_in: int,
    tokenised: Sequence[int],
    prepared: Sequence[int],
    packing: str,
    max_length: int | None,
    widths: Sequence[int] | None = None,
) -> dict[str, Any]:
    """The fields of record.Data about the prepared dataset. `tokenised` and `prepared` are tokens of each row before
    and after it, `widths` how long a row before it is where that is not its tokens.

    `cut_rows` are rows that lost tokens, were broken in two or were left out, whichever happens to what is too long.
    """
    before, kept = sum(tokenised), sum(prepared)
    packed = packing != "none"
    return {
        "rows_in": rows_in,
        "rows_kept": sum(length > 0 for length in tokenised) if packed else len(prepared),
        "rows_packed": len(prepared) if packed else None,
        "kept_tokens": kept,
        "kept_fraction": kept / before if before else None,
        "cut_rows": _cut_rows(tokenised if widths is None else widths, packing, max_length),
    }


def _cut_rows(tokenised: Sequence[int], packing: str, max_length: int | None) -> int:
    if max_length is None:
        return 0
    if packing != "wrapped":
        return sum(length > max_length for length in tokenised)
    starts = range(0, len(tokenised), _PACKING_BATCH_ROWS)
    return sum(_broken(tokenised[start : start + _PACKING_BATCH_ROWS], max_length) for start in starts)


def _broken(lengths: Sequence[int], max_length: int) -> int:
    """Documents that a block's end falls inside of, in one stream of them."""
    ends = list(itertools.accumulate(lengths))
    starts = [0, *ends[:-1]]
    return sum(
        length > 0 and start // max_length != (end - 1) // max_length
        for length, start, end in zip(lengths, starts, ends, strict=True)
    )
