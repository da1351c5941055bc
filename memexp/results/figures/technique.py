"""The mean effect of each option on memory and speed, with its range over the other factors."""

from collections.abc import Sequence

from memexp.results.compare import METRICS, Comparison
from memexp.results.effect_sentences import effect_sentences
from memexp.results.effects import Effect, Effects, effects
from memexp.results.figures.figure import Figure
from memexp.results.format import listing, visible
from memexp.results.grid import Grid
from memexp.results.matched_pairs import Change

_MOST_EFFECTS = 24


def effect_figure(grid: Grid, comparison: Comparison) -> Figure | None:
    """None where fewer than two axes were swept, or no two cells differ in one option alone."""
    found = effects(grid, comparison)
    rows = [
        (
            _name(effect),
            METRICS[change.metric],
            change.mean_percent,
            change.least_percent,
            change.most_percent,
            _pairs(effect, change),
        )
        for effect in found.effects[:_MOST_EFFECTS]
        for change in effect.changes
        if change.mean_percent is not None
    ]
    if not rows:
        return None
    references = _references(found.effects[:_MOST_EFFECTS])
    return Figure(
        key="effects",
        title="What each technique does",
        about=f"Mean change against {references}, over all pairs of cells that differ in nothing else. "
        "The bar is the range over these pairs.",
        fields={"effect": "option", "measure": "of", "mean": "mean, %", "least": "least, %", "most": "most, %"}
        | {"pairs": "pairs"},
        rows=tuple(rows),
        notes=effect_sentences(Effects(interactions=found.interactions)),
    )


def _references(effects: Sequence[Effect]) -> str:
    """`packing=none and offload=false`: what stands behind `vs` in the names."""
    return listing(list(dict.fromkeys(visible(f"{each.axis}={each.reference}") for each in effects)))


def _name(effect: Effect) -> str:
    group = "".join(f"{axis}={text} " for axis, text in effect.group.items())
    return visible(f"{group}{effect.axis}={effect.option} vs {effect.reference}")


def _pairs(effect: Effect, change: Change) -> str:
    return f"{change.pairs} of {effect.possible}"
