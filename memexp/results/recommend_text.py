"""A recommendation in words: what to use, what comes next, what fits where, and what was left out and why."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from memexp.results.format import bytes_text, fraction_text, listing, rate_text, seconds_text, visible
from memexp.results.grid import THIS_CELL
from memexp.results.predicted import predicted_by
from memexp.results.recommend import CARD_SIZES, GIB, Candidate, Card, LeftOut, Recommendation

_MOST_ROWS = 20
_MEASURING = Console(width=10_000)
_MOST_OF_A_REASON = 3


def headline(found: Recommendation) -> Iterator[str]:
    """The answer first: plain lines, none of them markup."""
    card = found.card
    yield (
        f"For {visible(card.name)}: {bytes_text(card.usable_bytes)} of {bytes_text(card.total_bytes)} may be used "
        f"({fraction_text(card.headroom)} headroom). {bytes_text(card.context_bytes)} of the card go to "
        f"the CUDA context, which leaves PyTorch's allocator {bytes_text(card.total_bytes - card.context_bytes)}"
    )
    if found.best is not None:
        yield ""
        yield label(found.best)
        yield f"  {_numbers(found.best, card)}"
        yield from (f"  {line}" for line in _doubts(found.best))
    elif found.candidates:
        least = min(found.candidates, key=lambda each: each.needed_bytes(card))
        assert found.short_bytes is not None
        yield ""
        yield (
            f"Nothing fits. The smallest, {label(least)}, needs {_bytes(least, least.needed_bytes(card))}: "
            f"{bytes_text(found.short_bytes)} too much."
        )
    else:
        yield ""
        yield "No configuration can be recommended: see below what became of each."
    if found.best is not None and found.runner_up is not None:
        yield ""
        yield f"Runner-up: {label(found.runner_up)}: {_cost(found.best, found.runner_up, card)}"


def about(found: Recommendation, sweep: str) -> str:
    """What a script made for the best candidate says of itself."""
    assert found.best is not None
    name = label(found.best).replace(THIS_CELL, "one cell")
    room = f"{visible(found.card.name)} with {fraction_text(found.card.headroom)} headroom"
    return f"{name}, the fastest of {visible(sweep)} for {room}: {_numbers(found.best, found.card)}."


def left_out_lines(left_out: Sequence[LeftOut]) -> Iterator[str]:
    """One line a reason, with the configurations that it is the reason against."""
    by_reason: dict[str, list[str]] = {}
    for each in left_out:
        by_reason.setdefault(each.reason, []).append(label(each))
    for reason, names in by_reason.items():
        yield f"{listing(names, at_most=_MOST_OF_A_REASON)}: {visible(reason)}"


def fits_table(found: Recommendation, width: int) -> RichTable | None:
    """Candidates, the fastest first, against the sizes that cards come in. `best` is the fastest that fits a size.

    Where `width` is too little for all, how long an epoch takes goes first and then the speed; None where it is too
    little for the rest: see `fits_lines`.
    """
    columns = {
        "needs": [_bytes(each, each.needed_bytes(found.card)) for each in found.candidates],
        "tokens/s": [_rate(each) for each in found.candidates],
        "an epoch": [_epoch(each) for each in found.candidates],
    }
    while True:
        table = _fits_table(found, columns)
        if Measurement.get(_MEASURING, _MEASURING.options, table).maximum <= width:
            return table
        if len(columns) == 1:
            return None
        columns.popitem()


def fits_lines(found: Recommendation) -> Iterator[str]:
    """The same in two lines a candidate."""
    axes, best = _telling_axes(found), _best_by_size(found)
    for each in found.candidates[:_MOST_ROWS]:
        sizes = [size for size in CARD_SIZES if each.fits(_sized(size, found.card))]
        where = f"fits {sizes[0]} and more" if sizes else "fits none of them"
        first = [size for size in sizes if best[size] is each]  # next to each other: what is faster needs more
        where += f", best for {first[0]}" if first else ""
        where += f" to {first[-1]}" if len(first) > 1 else ""
        yield _typed({axis: each.options[axis] for axis in axes})
        yield f"  needs {_bytes(each, each.needed_bytes(found.card))}, {_rate(each)} tokens/s: {where}"


def _fits_table(found: Recommendation, columns: dict[str, list[str]]) -> RichTable:
    axes, best = _telling_axes(found), _best_by_size(found)
    table = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold", show_edge=False)
    for axis in axes:
        table.add_column(Text(visible(axis)), overflow="fold")
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for size in CARD_SIZES:
        table.add_column(f"{size}", justify="center", no_wrap=True)
    for number, each in enumerate(found.candidates[:_MOST_ROWS]):
        marks = [_mark(each, _sized(size, found.card), best[size]) for size in CARD_SIZES]
        options = [visible(each.options[axis]) for axis in axes]
        texts = [*options, *(texts[number] for texts in columns.values()), *marks]
        table.add_row(*(Text(text) for text in texts), style="bold" if each is found.best else "")
    return table


def _telling_axes(found: Recommendation) -> list[str]:
    """Those that set candidates apart. Where one alone is left, each of its options tells which it is."""
    options = [each.options for each in found.candidates]
    return [axis for axis in options[0] if len({of[axis] for of in options}) > 1 or len(options) == 1]


def _best_by_size(found: Recommendation) -> dict[int, Candidate | None]:
    cards = {size: _sized(size, found.card) for size in CARD_SIZES}
    return {size: next((each for each in found.candidates if each.fits(card)), None) for size, card in cards.items()}


def rows_left(found: Recommendation) -> str | None:
    """A line where the table does not show every candidate."""
    rest = len(found.candidates) - _MOST_ROWS
    return f"… and {rest:,} slower configurations" if rest > 0 else None


def label(each: Candidate | LeftOut) -> str:
    """`packing=bfd offload=true`, as it is typed."""
    return _typed(each.options)


def epoch_text(hours: float | None) -> str:
    """Seconds, minutes or hours, whichever reads best; `-` where that is unknown."""
    if hours is None:
        return "-"
    seconds = hours * 3600
    if seconds < 90:
        return seconds_text(seconds)
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{hours:,.1f} h"


def _typed(options: dict[str, str]) -> str:
    return visible(" ".join(f"{axis}={text}" for axis, text in options.items())) or THIS_CELL


def _numbers(each: Candidate, card: Card) -> str:
    kind = "reserved" if each.reserved_is_known else "allocated"
    worst = " at worst" if each.worst_case_is_known else ""
    epoch = f" ({_epoch(each)} an epoch)" if each.hours_per_epoch is not None else ""
    return (
        f"needs {_bytes(each, each.needed_bytes(card))} ({bytes_text(each.allocator_bytes)} {kind}{worst}), "
        f"trains on {_rate(each)} real tokens/s{epoch}"
    )


def _doubts(each: Candidate) -> Iterator[str]:
    if each.memory_is_predicted or each.speed_is_predicted:
        yield predicted_by([each.backend])
    if not each.reserved_is_known:
        yield "What the allocator reserves is unknown here, and is more than what is allocated."
    if not each.worst_case_is_known:
        yield "The worst case was not measured: a longer batch may need more."
    if each.kept_fraction is not None and each.kept_fraction < 1:
        yield f"It keeps {fraction_text(each.kept_fraction)} of the data's tokens."


def _cost(best: Candidate, other: Candidate, card: Card) -> str:
    slower = 1 - other.real_tokens_per_second / best.real_tokens_per_second
    memory = other.needed_bytes(card) - best.needed_bytes(card)
    speed = f"{fraction_text(slower)} slower" if slower > 0 else "as fast"
    if best.hours_per_epoch is not None and other.hours_per_epoch is not None:
        speed += f" ({_epoch(other)} an epoch)"
    return f"{speed}, needs {bytes_text(abs(memory))} {'less' if memory < 0 else 'more'}"


def _mark(each: Candidate, card: Card, first: Candidate | None) -> str:
    if each is first:
        return "best"
    return "yes" if each.fits(card) else "-"


def _sized(size: int, like: Card) -> Card:
    return Card(f"{size} GiB", size * GIB, like.context_bytes, like.headroom)


def _bytes(each: Candidate, count: int) -> str:
    return ("~" if each.memory_is_predicted else "") + bytes_text(count)


def _epoch(each: Candidate) -> str:
    is_predicted = each.speed_is_predicted and each.hours_per_epoch is not None
    return ("~" if is_predicted else "") + epoch_text(each.hours_per_epoch)


def _rate(each: Candidate) -> str:
    return ("~" if each.speed_is_predicted else "") + rate_text(each.real_tokens_per_second)
