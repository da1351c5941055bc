"""What preparation kept, cut and packed, and which rows are the worst case."""

import pytest

from memexp.run.row_lengths import describe_data
from memexp.run.worst_case import longest_rows, with_padding


def test_truncation_cuts_what_is_longer() -> None:
    found = describe_data(4, [10, 70, 64, 65], [10, 64, 64, 64], "none", 64)
    assert (found["rows_in"], found["rows_kept"], found["rows_packed"]) == (4, 4, None)
    assert (found["kept_tokens"], found["kept_fraction"], found["cut_rows"]) == (202, 202 / 209, 2)


def test_rows_without_a_token_are_not_kept_under_any_packing() -> None:
    assert describe_data(3, [4, 0, 4], [4, 4], "none", 8)["rows_kept"] == 2
    assert describe_data(3, [4, 0, 4], [8], "bfd", 8)["rows_kept"] == 2


def test_wrapping_breaks_the_documents_that_a_block_ends_in() -> None:
    # One stream of 5+3+9+4 in blocks of 8: 0-5, 5-8, 8-17 (broken at 16), 17-21.
    assert describe_data(4, [5, 3, 9, 4], [8, 8, 5], "wrapped", 8)["cut_rows"] == 1
    assert describe_data(2, [8, 8], [8, 8], "wrapped", 8)["cut_rows"] == 0


def test_nothing_is_cut_without_a_length() -> None:
    assert describe_data(2, [5, 5000], [5, 5000], "none", None)["cut_rows"] == 0


def test_no_token_at_all_has_no_kept_fraction() -> None:
    assert describe_data(1, [0], [], "none", 8)["kept_fraction"] is None


@pytest.mark.parametrize(
    ("lengths", "batch_size", "rows"), [([3, 9, 5, 9], 2, [1, 3]), ([3, 9], 3, [1, 0, 1]), ([4], 4, [0, 0, 0, 0])]
)
def test_the_worst_batch_is_full_of_the_longest_rows(lengths: list[int], batch_size: int, rows: list[int]) -> None:
    assert longest_rows(lengths, batch_size) == rows


@pytest.mark.parametrize(
    ("lengths", "rows", "padded"),
    [
        ([8, 8, 3, 5, 8], [0, 1], [0, 3]),  # the longest of the shorter rows needs a mask beside one of 8
        ([8, 7, 3], [0, 1], None),  # has padding already
        ([8, 8, 8], [0, 1], None),  # never has any
        ([8, 3], [0], None),  # a batch of one row has none either
    ],
)
def test_a_wide_batch_without_padding_is_tried_with_some_too(
    lengths: list[int], rows: list[int], padded: list[int] | None
) -> None:
    assert with_padding(lengths, rows) == padded
