"""Pre-tokenised rows of stated lengths, for when the shape of the data matters and its meaning does not.

The token ids are random, so a loss on them says nothing about learning. Needs the standard library alone.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from random import Random
from typing import Any

# The ids 0 to 3 of the shipped tokenizer.
SHIPPED_SPECIAL_TOKENS = 4


def length_rows(
    rows: int,
    distribution: "LengthDistribution",
    seed: int,
    vocab_size: int,
    lowest_token_id: int = SHIPPED_SPECIAL_TOKENS,
) -> list[dict[str, list[int]]]:
    """Rows of `input_ids` and equal `labels`: every token is trained on. The same arguments give the same rows.

    A list of lengths is one row for each, whatever `rows` says. Ids are drawn from `lowest_token_id` up to and without
    `vocab_size`; where special tokens come last, as Qwen's do, pass the first of them as `vocab_size`. Neither changes
    the lengths. Raises ValueError for what cannot be drawn.
    """
    _check_count("rows", rows)
    if not 0 <= lowest_token_id < vocab_size:
        raise ValueError(
            f"lowest_token_id={lowest_token_id} leaves no token below vocab_size={vocab_size}. "
            "Type a lowest_token_id of at least 0 and a vocab_size above it."
        )
    random = Random(seed)
    lengths = distribution.draw(rows, random)
    drawn = [random.choices(range(lowest_token_id, vocab_size), k=length) for length in lengths]
    return [{"input_ids": ids, "labels": list(ids)} for ids in drawn]


def length_distribution(chosen: str | list[int] | tuple[int, ...], settings: Mapping[str, Any]) -> "LengthDistribution":
    """What `data.distribution` names, a list or a word, with its own settings taken out of all that `data` has.

    Raises ValueError for a name, a missing setting or a value that it cannot have.
    """
    if isinstance(chosen, list | tuple):
        return ListedLengths(tuple(chosen))
    if not isinstance(chosen, str) or chosen not in DRAWN:
        raise ValueError(
            f"distribution={chosen} is not known. Type {', '.join(DRAWN)} or a list of lengths: distribution=[5,9,13]."
        )
    needed = [field.name for field in fields(DRAWN[chosen])]
    for name in needed:
        if settings.get(name) is None:
            raise ValueError(f"distribution={chosen} has no {name}. Type all of: {', '.join(needed)}.")
    return DRAWN[chosen](**{name: settings[name] for name in needed})


@dataclass(frozen=True)
class ListedLengths:
    """Exactly these lengths, in this order."""

    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.lengths:
            raise ValueError("distribution=[] has no rows. Type at least one length: distribution=[5,9,13].")
        for length in self.lengths:
            _check_count("length", length)

    def draw(self, rows: int, random: Random) -> list[int]:
        return list(self.lengths)


@dataclass(frozen=True)
class ConstantLength:
    """The same length in each row."""

    length: int

    def __post_init__(self) -> None:
        _check_count("length", self.length)

    def draw(self, rows: int, random: Random) -> list[int]:
        return [self.length] * rows


@dataclass(frozen=True)
class UniformLengths:
    """Each length from `minimum` to `maximum`, both included, as likely as another."""

    minimum: int
    maximum: int

    def __post_init__(self) -> None:
        _check_bounds(self.minimum, self.maximum)

    def draw(self, rows: int, random: Random) -> list[int]:
        return [random.randint(self.minimum, self.maximum) for _ in range(rows)]


@dataclass(frozen=True)
class LognormalLengths:
    """Many short rows and a long tail, as text has; `sigma` is the standard deviation of the length's logarithm.

    A length past a bound becomes that bound and is not drawn again. So the median stays as stated, and a low `maximum`
    gives many rows of just that length.
    """

    median: int
    sigma: float
    minimum: int
    maximum: int

    def __post_init__(self) -> None:
        _check_bounds(self.minimum, self.maximum)
        _check_count("median", self.median)
        if not self.minimum <= self.median <= self.maximum:
            raise ValueError(
                f"median={self.median} lies outside minimum={self.minimum} and maximum={self.maximum}. "
                "Type a median between them."
            )
        if type(self.sigma) not in (int, float) or not 0 <= self.sigma < math.inf:
            raise ValueError(f"sigma={self.sigma} is not a spread. Type a number of at least 0, such as sigma=0.8.")

    def draw(self, rows: int, random: Random) -> list[int]:
        middle, lowest, highest = (math.log(length) for length in (self.median, self.minimum, self.maximum))
        logarithms = (random.gauss(middle, self.sigma) for _ in range(rows))
        return [round(math.exp(min(max(logarithm, lowest), highest))) for logarithm in logarithms]


LengthDistribution = ListedLengths | ConstantLength | UniformLengths | LognormalLengths

DRAWN: dict[str, type[ConstantLength | UniformLengths | LognormalLengths]] = {
    "constant": ConstantLength,
    "uniform": UniformLengths,
    "lognormal": LognormalLengths,
}


def _check_bounds(minimum: int, maximum: int) -> None:
    _check_count("minimum", minimum)
    _check_count("maximum", maximum)
    if minimum > maximum:
        raise ValueError(f"minimum={minimum} is above maximum={maximum}. Type a minimum of at most {maximum}.")


def _check_count(name: str, value: int) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name}={value} is not a count. Type a whole number of at least 1.")
