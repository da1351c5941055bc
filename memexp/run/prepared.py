"""What data preparation kept, cut and packed, counted from the rows before and after it. No torch in here."""

import itertools
from collections.abc import Sequence
from typing import Any

# trl 1.16 packs each batch of datasets.map on its own, and this is the size of such a batch.
_PACKING_BATCH_ROWS = 1000


def row_lengths(rows: Any) -> list[int]:
    """Tokens of each row of a datasets.Dataset, counted by Arrow: walking the rows takes a second for a thousand."""
    import pyarrow.compute

    lengths: list[int] = pyarrow.compute.list_value_length(rows.with_format("arrow")[:]["input_ids"]).to_pylist()
    return lengths


def has_something_to_learn(rows: Any) -> bool:
    """Whether any row has a token that is predicted: a label that is not ignored, behind the first of its row."""
    return any(label != -100 for labels in rows["labels"] for label in labels[1:])


def describe_data(
    rows_in: int, tokenised: Sequence[int], prepared: Sequence[int], packing: str, max_length: int | None
) -> dict[str, Any]:
    """The fields of record.Data about the prepared dataset. `tokenised` and `prepared` are row lengths in tokens.

    `cut_rows` are documents that lost tokens or were broken in two, whichever the packing does to them.
    """
    before, kept = sum(tokenised), sum(prepared)
    packed = packing != "none"
    return {
        "rows_in": rows_in,
        "rows_kept": sum(length > 0 for length in tokenised) if packed else len(prepared),
        "rows_packed": len(prepared) if packed else None,
        "kept_tokens": kept,
        "kept_fraction": kept / before if before else None,
        "cut_rows": _cut_rows(tokenised, packing, max_length),
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
