"""Effects and interactions in words, one sentence each, for what stands below a table."""

from memexp.results.compare import METRICS
from memexp.results.effects import Effect, Effects, Interaction
from memexp.results.format import bytes_text, change_text, visible
from memexp.results.matched_pairs import Change

_MOST_INTERACTIONS = 4
_NOTHING_PERCENT = 1.0


def effect_sentences(effects: Effects) -> tuple[str, ...]:
    """`offload=true: peak allocated -2.19 GiB (-5.87 GiB to 0 B), real tokens/s -41.2% (-83.9% to -1.6%)`.

    The mean over all cells that differ in nothing else, and in brackets the least and the most. Where another axis
    decides, these come first: `peak allocated -5.00 GiB to -307 MiB by checkpointing (mean -2.65 GiB)`. Plain text.
    """
    lines = [_effect(effect) for effect in effects.effects]
    lines += [_interaction(each) for each in effects.interactions[:_MOST_INTERACTIONS]]
    return tuple(lines)


def _effect(effect: Effect) -> str:
    name = _place(effect.group) + visible(f"{effect.axis}={effect.option}")
    parts = [_change(change) for change in effect.changes if change.pairs]
    if not parts:
        reference = visible(f"{effect.axis}={effect.reference}")
        return f"{name}: unknown, since no ok cell differs from another in nothing but {reference}"
    pairs = max(change.pairs for change in effect.changes)
    few = f", over {pairs} of {effect.possible} pairs" if pairs < effect.possible else ""
    return f"{name}: {', '.join(parts)}{few}"


def _change(change: Change) -> str:
    if METRICS[change.metric] == "memory":
        assert change.mean is not None and change.least is not None and change.most is not None
        mean, span = signed_bytes(change.mean), (signed_bytes(change.least), signed_bytes(change.most))
        name = "peak allocated"
    else:
        if change.mean_percent is None or change.least_percent is None or change.most_percent is None:
            return "real tokens/s unknown"
        mean, span = (
            change_text(change.mean_percent),
            (change_text(change.least_percent), change_text(change.most_percent)),
        )
        name = "real tokens/s"
    if span[0] == span[1]:
        return f"{name} {mean}"
    if change.decided_by is not None:
        return f"{name} {span[0]} to {span[1]} by {visible(change.decided_by)} (mean {mean})"
    return f"{name} {mean} ({span[0]} to {span[1]})"


def _interaction(each: Interaction) -> str:
    subject = _place(each.group) + visible(f"{each.axis}={each.option}")
    first, second = (visible(f"{each.beside}={text}") for text in (each.beside_reference, each.beside_option))
    if METRICS[each.metric] == "memory":
        sizes = ((each.at_reference, each.at_reference_percent), (each.at_option, each.at_option_percent))
        said = [_memory(change, percent) for change, percent in sizes]
    else:
        said = [_speed(percent) for percent in (each.at_reference_percent, each.at_option_percent)]
    verb = "" if METRICS[each.metric] == "memory" else "is "
    return f"{subject} {verb}{said[0]} with {first}, {said[1]} with {second}"


def _memory(change: float, percent: float) -> str:
    if abs(percent) < _NOTHING_PERCENT:
        return "changes nothing"
    return f"{'saves' if change < 0 else 'adds'} {bytes_text(abs(change))}"


def _speed(percent: float) -> str:
    if abs(percent) < _NOTHING_PERCENT:
        return "as fast"
    return f"{change_text(abs(percent)).lstrip('+')} {'slower' if percent < 0 else 'faster'}"


def _place(group: dict[str, str]) -> str:
    return visible(" ".join(f"{axis}={text}" for axis, text in group.items())) + ": " if group else ""


def signed_bytes(count: float) -> str:
    """-1.23 GiB, +512 MiB; `0` for less than a byte."""
    return f"{'-' if count < 0 else '+'}{bytes_text(abs(count))}" if abs(count) >= 1 else "0"
