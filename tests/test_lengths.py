"""Rows of stated lengths: exact where they are stated exactly, near where they are drawn, and the same each time."""

import subprocess
import sys
from collections import Counter
from math import log
from random import Random
from statistics import median, pstdev
from typing import Any

import pytest

from memexp.plan.length_distributions import (
    DRAWN,
    ConstantLength,
    LengthDistribution,
    ListedLengths,
    LognormalLengths,
    UniformLengths,
    length_distribution,
    length_rows,
)

SETTINGS = {"length": 7, "minimum": 8, "maximum": 4096, "median": 200, "sigma": 0.8}
LOGNORMAL = LognormalLengths(median=200, sigma=0.8, minimum=8, maximum=4096)
EVERY_DISTRIBUTION = [ListedLengths((5, 9, 13)), ConstantLength(7), UniformLengths(3, 40), LOGNORMAL]


def lengths_of(rows: list[dict[str, list[int]]]) -> list[int]:
    return [len(row["input_ids"]) for row in rows]


def test_a_list_of_lengths_gives_exactly_those_rows_in_that_order() -> None:
    assert lengths_of(length_rows(1, ListedLengths((5, 9, 13, 3)), seed=0, vocab_size=64)) == [5, 9, 13, 3]


def test_a_constant_length_is_the_length_of_each_row() -> None:
    assert lengths_of(length_rows(3, ConstantLength(17), seed=0, vocab_size=64)) == [17, 17, 17]


def test_uniform_lengths_reach_both_bounds_and_favour_none() -> None:
    counts = Counter(UniformLengths(3, 6).draw(4_000, Random(0)))
    assert set(counts) == {3, 4, 5, 6}
    assert all(count == pytest.approx(1_000, rel=0.15) for count in counts.values())


@pytest.mark.parametrize("minimum", [8, 190])
def test_the_median_of_lognormal_lengths_is_near_the_stated_one_however_one_tail_is_cut(minimum: int) -> None:
    lengths = LognormalLengths(median=200, sigma=0.8, minimum=minimum, maximum=4096).draw(4_000, Random(0))
    assert median(lengths) == pytest.approx(200, rel=0.05)


def test_sigma_is_the_standard_deviation_of_the_logarithm_of_a_length() -> None:
    lengths = LognormalLengths(median=1_000, sigma=0.5, minimum=1, maximum=1_000_000).draw(4_000, Random(0))
    assert pstdev(map(log, lengths)) == pytest.approx(0.5, rel=0.05)


def test_a_lognormal_length_past_a_bound_becomes_that_bound() -> None:
    lengths = LognormalLengths(median=200, sigma=1_000, minimum=50, maximum=4096).draw(1_000, Random(0))
    assert set(lengths) <= {50, *range(51, 4096), 4096}
    assert min(lengths.count(50), lengths.count(4096)) > 400


@pytest.mark.parametrize("distribution", EVERY_DISTRIBUTION)
def test_the_same_seed_gives_the_same_rows_and_another_seed_others(distribution: LengthDistribution) -> None:
    rows = length_rows(20, distribution, seed=3, vocab_size=4_096)
    assert rows == length_rows(20, distribution, seed=3, vocab_size=4_096)
    assert rows != length_rows(20, distribution, seed=4, vocab_size=4_096)


@pytest.mark.parametrize("distribution", EVERY_DISTRIBUTION)
def test_the_vocabulary_does_not_change_the_lengths(distribution: LengthDistribution) -> None:
    small = length_rows(20, distribution, seed=3, vocab_size=16)
    assert lengths_of(small) == lengths_of(length_rows(20, distribution, seed=3, vocab_size=151_936))


def test_token_ids_reach_from_the_lowest_to_the_last_and_no_further() -> None:
    rows = length_rows(100, ConstantLength(50), seed=0, vocab_size=12, lowest_token_id=7)
    assert {token for row in rows for token in row["input_ids"]} == {7, 8, 9, 10, 11}


def test_labels_equal_the_tokens_and_are_a_list_of_their_own() -> None:
    row = length_rows(1, ConstantLength(5), seed=0, vocab_size=64)[0]
    assert row["labels"] == row["input_ids"]
    assert row["labels"] is not row["input_ids"]


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ([5, 9, 13], ListedLengths((5, 9, 13))),
        ("constant", ConstantLength(7)),
        ("uniform", UniformLengths(8, 4096)),
        ("lognormal", LOGNORMAL),
    ],
)
def test_a_distribution_takes_its_own_settings_out_of_all(chosen: Any, expected: LengthDistribution) -> None:
    assert length_distribution(chosen, SETTINGS) == expected


def test_an_unknown_distribution_is_refused_with_the_names_of_those_there_are() -> None:
    with pytest.raises(ValueError, match="distribution=normal is not known") as refusal:
        length_distribution("normal", SETTINGS)
    assert all(name in str(refusal.value) for name in DRAWN)


@pytest.mark.parametrize(
    ("chosen", "changed", "named"),
    [
        ([], {}, "distribution=[]"),
        ([5, 0], {}, "length=0"),
        ([5, True], {}, "length=True"),
        (5, {}, "distribution=5"),
        ("constant", {"length": None}, "length"),
        ("constant", {"length": 2.5}, "length=2.5"),
        ("uniform", {"minimum": 0}, "minimum=0"),
        ("uniform", {"maximum": 7}, "minimum=8"),
        ("lognormal", {"median": 5000}, "median=5000"),
        ("lognormal", {"median": 7}, "median=7"),
        ("lognormal", {"sigma": -1}, "sigma=-1"),
        ("lognormal", {"sigma": float("nan")}, "sigma=nan"),
        ("lognormal", {"sigma": float("inf")}, "sigma=inf"),
    ],
)
def test_a_value_that_cannot_be_is_refused_in_one_line_that_says_what_to_type(
    chosen: Any, changed: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError) as refusal:
        length_distribution(chosen, SETTINGS | changed)
    message = str(refusal.value)
    assert named in message
    assert "Type " in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("rows", "lowest_token_id", "named"), [(0, 4, "rows=0"), (1, 64, "vocab_size=64"), (1, -1, "lowest_token_id=-1")]
)
def test_rows_that_cannot_be_drawn_are_refused(rows: int, lowest_token_id: int, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        length_rows(rows, ConstantLength(5), seed=0, vocab_size=64, lowest_token_id=lowest_token_id)


def test_drawing_rows_imports_neither_torch_nor_numpy() -> None:
    program = "import sys, memexp.plan.length_distributions; print({'torch', 'numpy'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"
