"""What each swept option does, over all cells that differ in nothing else: mean, range, where it depends on another.

Only matched pairs are compared, a cell with the option and its partner at the axis's reference, so that a grid with
refused or failed cells is not averaged wrongly: what has no partner counts for nothing, and how many pairs there were
is said. Repeats are medians first. Left out: axes of more than eight options, numbers mostly, whose effects would fill
pages. Sentences for people are in `effect_sentences`.
"""

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from memexp.frozen import Frozen
from memexp.results.compare import METRICS, REPEATS, Compared, Comparison, is_apart, is_swept, number
from memexp.results.few_rows import timed_on_few_rows
from memexp.results.format import option_text
from memexp.results.grid import Grid, option
from memexp.results.matched_pairs import Change, Key, apart, change_of, changes_of, moved
from memexp.results.record import Record
from memexp.results.repeats import summarised

EFFECT_METRICS = ("peak_allocated_bytes", "real_tokens_per_second")
# An interaction is worth a sentence where an option's effect differs by so many percent: five times what memory differs
# between runs of one job, and what speed differs between machines.
WORTH_SAYING_PERCENT = {"peak_allocated_bytes": 5.0, "real_tokens_per_second": 15.0}
_MOST_OPTIONS = 8


@dataclass(frozen=True)
class Effect(Frozen):
    """`axis` at `option` against `reference`, within one job (`group`: a model, data, trainer or card that is swept).

    `possible` counts the pairs of the grid; those of `changes` are fewer where a cell is missing, not ok or fell back.
    """

    group: dict[str, str]
    axis: str
    option: str
    reference: str
    possible: int
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Interaction(Frozen):
    """The mean effect of `axis` at `option`, apart for `beside` at its reference and at `beside_option`.

    Both means are over the same settings of all other axes. Absolute figures are in the metric's unit, `change_*` in
    percent of the partner; `size_percent` is how far the two are apart: bytes in percent of the peak at the references,
    rates as a ratio of ratios.
    """

    group: dict[str, str]
    metric: str
    axis: str
    option: str
    beside: str
    beside_reference: str
    beside_option: str
    at_reference: float
    at_option: float
    at_reference_percent: float
    at_option_percent: float
    size_percent: float
    settings: int


@dataclass(frozen=True)
class Effects(Frozen):
    """Of every option but the references, in grid order; interactions with the strongest first."""

    effects: tuple[Effect, ...] = ()
    interactions: tuple[Interaction, ...] = ()


def effects(grid: Grid, comparison: Comparison) -> Effects:
    """Empty where fewer than two axes were swept: with one, the table says it all."""
    axes = [axis.name for axis in grid.sweep.axes if axis.name != REPEATS and not is_apart(axis.name)]
    if len(axes) < 2:
        return Effects()
    rows = [cell for cell in summarised(grid, comparison) if cell.record.is_ok and not _fell_back(grid, cell)]
    found: list[Effect] = []
    interactions: list[Interaction] = []
    for group, cells in _jobs(grid, rows):
        design = _Design(grid, axes, group, cells)
        found += design.effects()
        interactions += design.interactions()
    return Effects(tuple(found), tuple(sorted(interactions, key=lambda each: -each.size_percent)))


def _fell_back(grid: Grid, cell: Compared) -> bool:
    """A cell that did not do what its options say tells nothing of them."""
    return any(is_swept(grid, name) for name in cell.fell_back)


def _jobs(grid: Grid, rows: Sequence[Compared]) -> Iterator[tuple[dict[str, str], list[Record]]]:
    axes = [axis for axis in grid.axes if is_apart(axis)]
    keys = dict.fromkeys(tuple(option(cell.record, axis) for axis in axes) for cell in rows)
    for key in keys:
        cells = [cell.record for cell in rows if tuple(option(cell.record, axis) for axis in axes) == key]
        yield dict(zip(axes, key, strict=True)), cells


@dataclass(frozen=True)
class _Contrast:
    """Two axes by their place, and an option of each that is not its reference."""

    place: int
    option: str
    beside: int
    beside_option: str


class _Design:
    """The ok rows of one job by their options, and every comparison that they allow."""

    def __init__(self, grid: Grid, axes: Sequence[str], group: dict[str, str], records: Sequence[Record]) -> None:
        self.axes, self.group = list(axes), group
        at = {tuple(option(record, axis) for axis in axes): record for record in records}
        few = timed_on_few_rows(grid.ok)
        self.numbers = {
            metric: {
                key: None if record.id in few and METRICS[metric] == "speed" else number(record, metric)
                for key, record in at.items()
            }
            for metric in EFFECT_METRICS
        }
        self.options, self.references = _options(grid, axes)
        self._few = [place for place, texts in enumerate(self.options) if len(texts) <= _MOST_OPTIONS]
        self._keys: dict[tuple[int, str], list[Key]] = defaultdict(list)
        for key in at:
            for place, text in enumerate(key):
                self._keys[place, text].append(key)

    def effects(self) -> Iterator[Effect]:
        for place in self._few:
            possible = math.prod(len(texts) for other, texts in enumerate(self.options) if other != place)
            for text in self._others(place):
                pairs = list(self._pairs(place, text))
                changes = tuple(self._change(metric, place, pairs, possible) for metric in EFFECT_METRICS)
                yield Effect(self.group, self.axes[place], text, self.references[place], possible, changes)

    def interactions(self) -> Iterator[Interaction]:
        for place, beside in itertools.combinations(self._few, 2):
            for text, other in itertools.product(self._others(place), self._others(beside)):
                contrast = _Contrast(place, text, beside, other)
                found = (self._interaction(metric, contrast) for metric in EFFECT_METRICS)
                yield from (each for each in found if each is not None)

    def _change(self, metric: str, place: int, pairs: Sequence[tuple[Key, Key]], possible: int) -> Change:
        numbers = self.numbers[metric]
        change = change_of(metric, numbers, pairs)
        is_memory = METRICS[metric] == "memory"
        mean, least, most = (
            (change.mean, change.least, change.most)
            if is_memory
            else (change.mean_percent, change.least_percent, change.most_percent)
        )
        if mean is None or least is None or most is None or most - least <= abs(mean):
            return change  # no two means of some of the pairs are further apart than the pairs
        changes = changes_of(numbers, pairs)
        found: list[tuple[float, str]] = []
        for beside in self._few:
            between = None if beside == place else apart(changes, place, beside, len(changes) == possible)
            if between is None or between.percent < WORTH_SAYING_PERCENT[metric]:
                continue
            size = between.absolute if is_memory else between.percent
            found += [(size, self.axes[beside])] if size > abs(mean) else []
        return replace(change, decided_by=max(found)[1]) if found else change

    def _others(self, place: int) -> list[str]:
        return [text for text in self.options[place] if text != self.references[place]]

    def _pairs(self, place: int, text: str) -> Iterator[tuple[Key, Key]]:
        for key in self._keys[place, text]:
            base = moved(key, place, self.references[place])
            if base in self.numbers[EFFECT_METRICS[0]]:
                yield base, key

    def _interaction(self, metric: str, contrast: _Contrast) -> Interaction | None:
        """None where it is not worth saying. Only settings of the other axes that have all four corners count."""
        corners = list(self._corners(metric, contrast))
        if not corners:
            return None
        none, one, other, both = (fmean(column) for column in zip(*corners, strict=True))
        first = fmean(100 * (b - a) / a for a, b, _, _ in corners)
        second = fmean(100 * (d - c) / c for _, _, c, d in corners)
        if METRICS[metric] == "memory":
            size = 100 * abs((both - other) - (one - none)) / none
        else:
            # Rates multiply: two options that do not meet make 1.5 x 2 = 3 times as fast.
            size = 100 * abs((100 + second) / (100 + first) - 1)
        if size < WORTH_SAYING_PERCENT[metric]:
            return None
        return Interaction(
            group=self.group,
            metric=metric,
            axis=self.axes[contrast.place],
            option=contrast.option,
            beside=self.axes[contrast.beside],
            beside_reference=self.references[contrast.beside],
            beside_option=contrast.beside_option,
            at_reference=one - none,
            at_option=both - other,
            at_reference_percent=first,
            at_option_percent=second,
            size_percent=size,
            settings=len(corners),
        )

    def _corners(self, metric: str, contrast: _Contrast) -> Iterator[tuple[float, float, float, float]]:
        """Neither option, the first alone, the second alone, both; where all four are known and something."""
        for key in self._keys[contrast.place, contrast.option]:
            if key[contrast.beside] != self.references[contrast.beside]:
                continue
            base = moved(key, contrast.place, self.references[contrast.place])
            there = [moved(corner, contrast.beside, contrast.beside_option) for corner in (base, key)]
            none, one, other, both = (self.numbers[metric].get(corner) for corner in (base, key, *there))
            if none and one and other and both:
                yield none, one, other, both


def _options(grid: Grid, axes: Sequence[str]) -> tuple[list[list[str]], list[str]]:
    """Each axis's options as text, and the one that the others are held against: as for the baseline of a table."""
    named = grid.sweep.baseline or {}
    by_name = {axis.name: axis for axis in grid.sweep.axes}
    options = [list(dict.fromkeys(option_text(value) for value in by_name[name].options)) for name in axes]
    references = []
    for name, texts in zip(axes, options, strict=True):
        wanted = option_text(named[name]) if name in named else option_text(by_name[name].default)
        references.append(wanted if wanted in texts or not texts else texts[0])
    return options, references
