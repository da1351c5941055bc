"""Which phase sets the peak, what is on the card then, and so which techniques can lower it: a line below the table.

What a technique acts on is data of its option files (`acts_on`); no technique is named here. Where nobody knows what
was on the card at the peak, as on a real one, what a phase can hold at all decides.
"""

from collections.abc import Mapping, Sequence

from memexp.plan import conf
from memexp.results.format import fraction_text, listing, one_line
from memexp.results.grid import THIS_CELL, Grid, grouped
from memexp.results.record import CATEGORIES, Record

_NAMES = tuple(name.removesuffix("_bytes") for name in CATEGORIES)
# Activations live from forward to the end of backward, gradients from backward to the optimizer's step; weights and the
# optimizer's state stay throughout.
HELD = {
    "forward": ("weights", "optimizer", "activations", "logits"),
    "backward": ("weights", "gradients", "optimizer", "activations", "logits"),
    "optimizer": ("weights", "gradients", "optimizer"),
    "worst_case": ("weights", "gradients", "optimizer", "activations", "logits"),
}
_MOST_TECHNIQUES = 12
STATE = {"optimizer": "the optimizer's state"}


def phase_sentences(grid: Grid, acts_on: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    """One sentence for each kind of peak, that of the most cells first. `acts_on` is conf's own where it is None.

    Of the techniques that do not act on it only those are named that the sweep tries.
    """
    techniques = conf.acts_on() if acts_on is None else acts_on
    known = [record for record in grid.ok if record.memory.peak_phase in HELD]
    groups = grouped(known, lambda record: (record.memory.peak_phase, largest_part(record)))
    sentences = (_sentence(grid, cells, techniques) for cells in sorted(groups, key=lambda cells: -len(cells)))
    return [sentence for sentence in sentences if sentence]


def _sentence(grid: Grid, cells: Sequence[Record], techniques: Mapping[str, Sequence[str]]) -> str | None:
    """None where nothing is known but the phase, and no technique is idle in it."""
    largest = largest_part(cells[0])
    held = {largest} if largest else set(HELD[str(cells[0].memory.peak_phase)])
    acting = sorted(group for group, acts in techniques.items() if held & set(acts))
    idle = sorted(group for group, acts in techniques.items() if not held & set(acts))
    if not idle and largest is None:
        return None
    if not idle and acting:
        acting = ["every technique"]
    idle = [group for group in idle if group in grid.axes]
    parts = [f"{listing(acting, at_most=_MOST_TECHNIQUES)} {verb(acting, 'act')} on that"] if acting else []
    parts += [f"{listing(idle, at_most=_MOST_TECHNIQUES)} {verb(idle, 'do')} not"] if idle else []
    advice = f": {', '.join(parts)}" if parts else ""
    phase = one_line(str(cells[0].memory.peak_phase))
    return f"{_who(grid, cells)} in {phase}, {_what_is_there(cells, largest)}{advice}"


def _who(grid: Grid, cells: Sequence[Record]) -> str:
    name = grid.describe(cells, grid.ok)
    if " and " in name:  # cells named one by one
        return f"{len(cells):,} of {len(grid.ok):,} cells {verb(cells, 'peak')}"
    return f"{name[0].upper() + name[1:] if name.startswith(('every', THIS_CELL)) else name} peaks"


def _what_is_there(cells: Sequence[Record], largest: str | None) -> str:
    if largest is None:
        held = [STATE.get(name, name) for name in HELD[str(cells[0].memory.peak_phase)]]
        return f"which holds {listing(held, at_most=len(held))}"
    fractions = sorted(round(shares(record)[largest], 2) for record in cells)
    span = dict.fromkeys(fraction_text(fraction) for fraction in (fractions[0], fractions[-1]))
    return f"when the largest part is {STATE.get(largest, largest)} ({' to '.join(span)})"


def verb(things: Sequence[object], plural: str) -> str:
    """`act` of several things, `acts` of one."""
    singular = {"do": "does"}.get(plural, f"{plural}s")
    return plural if len(things) > 1 else singular


def largest_part(record: Record) -> str | None:
    """The category that is most of the peak, as `weights`; None where that is not known."""
    of_peak = shares(record)
    return max(of_peak, key=lambda name: of_peak[name]) if of_peak else None


def shares(record: Record) -> dict[str, float]:
    """Each category's fraction of the peak; empty where they are not known."""
    sizes = {name: record.memory.peak_categories.get(f"{name}_bytes") for name in _NAMES}
    known = {name: size for name, size in sizes.items() if isinstance(size, int | float) and size > 0}
    total = sum(known.values())
    return {name: size / total for name, size in known.items()} if total else {}
