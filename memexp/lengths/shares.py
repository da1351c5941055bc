"""What one `max_length` cuts, and what share of the slots each packing would leave empty. Packing is TRL's own code.

Packing looks at lengths alone, so that rows of one-byte zeros stand for the tokens: 100,000 rows take seconds.
"""

from collections.abc import Sequence
from typing import Any

import datasets
import numpy as np
import pyarrow as pa

PACKINGS = ("bfd", "bfd_split", "wrapped")


def shares(lengths: Sequence[int], max_length: int, batch_sizes: Sequence[int]) -> dict[str, Any]:
    """All fractions are of the rows' tokens, of the rows, or of the slots of the tensors that are trained on.

    `padding` is what is left without packing, for each batch size: rows in the data's order, each batch as long as its
    longest row. `packings` has for each strategy the number of packed rows, the fraction of their slots that stays
    empty, and the fraction of all tokens that is kept; a row has `max_length` slots.
    """
    tokens = np.asarray(lengths, dtype=np.int64)
    cut = np.minimum(tokens, max_length)
    return {
        "max_length": max_length,
        "rows_cut_fraction": float((tokens > max_length).mean()),
        "tokens_cut_fraction": 1 - float(cut.sum() / tokens.sum()),
        "padding": {str(size): padding_fraction(cut, size) for size in batch_sizes},
        "packings": {name: _packed(tokens, max_length, name) for name in PACKINGS},
    }


def padding_fraction(lengths: "np.ndarray[Any, np.dtype[np.int64]]", batch_size: int) -> float:
    """Slots without a token, of all slots, where each batch is padded to its longest row; the last may be smaller."""
    starts = np.arange(0, len(lengths), batch_size)
    longest = np.maximum.reduceat(lengths, starts)
    rows = np.diff(np.append(starts, len(lengths)))
    return 1 - float(lengths.sum() / (longest * rows).sum())


def _packed(lengths: "np.ndarray[Any, np.dtype[np.int64]]", max_length: int, strategy: str) -> dict[str, Any]:
    from trl.data_utils import pack_dataset

    offsets = np.concatenate(([0], np.cumsum(lengths)))
    zeros = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(np.zeros(offsets[-1], np.int8)))
    # A name of its own for the result: fingerprinting all zeros takes longer than packing them.
    fingerprint = {"new_fingerprint": f"{strategy}-{max_length}", "load_from_cache_file": False}
    rows = pack_dataset(datasets.Dataset(pa.table({"input_ids": zeros})), max_length, strategy, fingerprint)
    packed = np.asarray(pa.compute.list_value_length(rows.with_format("arrow")[:]["input_ids"]))
    return {
        "rows": len(packed),
        "empty_fraction": 1 - float(packed.sum() / (len(packed) * max_length)),
        "kept_fraction": float(packed.sum() / lengths.sum()),
    }
