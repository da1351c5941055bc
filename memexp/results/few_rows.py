"""Whose speed is that of a handful of rows, where others of the sweep were timed on more: the two do not compare.

A batch of 1 that is timed for one step is as fast as that one row happens to be long. Cells that were timed on as many
rows were timed on the same ones, however few, and compare.
"""

from collections.abc import Sequence

from memexp.results.record import Record

FEW_ROWS = "few rows timed"
ENOUGH_ROWS = 8


def rows_timed(record: Record) -> int | None:
    """Rows on one device that went into the record's rates: batches, by how many rows a batch has.

    None where that is unknown, and for packed rows, which are full whichever they are.
    """
    shape = [record.choices.get(key) for key in ("batch_size", "gradient_accumulation")]
    rows, accumulated = shape[0], 1 if shape[1] is None else shape[1]
    if not isinstance(rows, int) or not isinstance(accumulated, int) or record.data.rows_packed is not None:
        return None
    return rows * accumulated * len(record.speed.step_seconds) or None


def timed_on_few_rows(records: Sequence[Record]) -> frozenset[str]:
    """Ids of the ok records, all of one sweep, whose speed is of fewer than `ENOUGH_ROWS` and not of as many rows as
    that of the others.
    """
    timed = {record.id: rows for record in records if record.is_ok and (rows := rows_timed(record)) is not None}
    if len(set(timed.values())) < 2:
        return frozenset()
    return frozenset(name for name, rows in timed.items() if rows < ENOUGH_ROWS)
