"""Cells that differ in one option alone: how their numbers change, and by which other option those changes differ.

A cell is a key, its options in the order of the axes. Nothing in here knows what the numbers mean.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from memexp.frozen import Frozen
from memexp.results.compare import percent_change

Key = tuple[str, ...]


@dataclass(frozen=True)
class Change(Frozen):
    """One number's change from reference to option: the mean over pairs, the least and the most.

    Absolute figures are in the metric's own unit; percent are of the partner at the reference, so their mean is a mean
    of ratios. None of them is known where no pair has the number on both sides. `decided_by` names the other axis by
    whose option the effect differs by more than its mean, so that the mean is the effect nowhere.
    """

    metric: str
    pairs: int
    mean: float | None = None
    least: float | None = None
    most: float | None = None
    mean_percent: float | None = None
    least_percent: float | None = None
    most_percent: float | None = None
    decided_by: str | None = None


def change_of(metric: str, numbers: Mapping[Key, float | None], pairs: Sequence[tuple[Key, Key]]) -> Change:
    """Over all pairs, each the key at the reference and that with the option."""
    values = [(numbers[base], numbers[key]) for base, key in pairs]
    known = [(base, value) for base, value in values if base is not None and value is not None]
    if not known:
        return Change(metric, 0)
    absolute = [value - base for base, value in known]
    percents = [change for base, value in known if (change := percent_change(value, base)) is not None]
    spans = (fmean(percents), min(percents), max(percents)) if percents else (None, None, None)
    return Change(metric, len(known), fmean(absolute), min(absolute), max(absolute), *spans)


@dataclass(frozen=True)
class Apart:
    """How far the mean effects at the options of another axis lie apart, in the metric's unit and in percent points."""

    absolute: float
    percent: float


def changes_of(numbers: Mapping[Key, float | None], pairs: Sequence[tuple[Key, Key]]) -> dict[Key, tuple[float, float]]:
    """Each pair's change, absolute and in percent, by the key with the option; where both numbers are known and
    the first is not 0."""
    both = [(key, numbers[base], numbers[key]) for base, key in pairs]
    return {key: (to - by, 100 * (to - by) / by) for key, by, to in both if by and to is not None}


def apart(changes: Mapping[Key, tuple[float, float]], place: int, beside: int, is_whole: bool) -> Apart | None:
    """None where fewer than two options of the axis `beside` have an effect of the axis `place`.

    Unless the grid `is_whole`, only settings of the remaining axes that each of them has count, so that nothing else
    differs between the means.
    """
    by_option: Mapping[str, dict[Key, tuple[float, float]]] = defaultdict(dict)
    for key, change in changes.items():
        by_option[key[beside]][key if is_whole else moved(moved(key, place, ""), beside, "")] = change
    if len(by_option) < 2:
        return None
    if not is_whole:
        shared = set.intersection(*map(set, by_option.values()))
        by_option = {text: {rest: found[rest] for rest in shared} for text, found in by_option.items()}
        if not shared:
            return None
    means = [[sum(column) / len(found) for column in zip(*found.values(), strict=True)] for found in by_option.values()]
    absolute, percent = (max(column) - min(column) for column in zip(*means, strict=True))
    return Apart(absolute, percent)


def moved(key: Key, place: int, text: str) -> Key:
    """The key with another option on the axis `place`."""
    return (*key[:place], text, *key[place + 1 :])
