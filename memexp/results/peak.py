"""What is on the card when a cell peaks, and when that is: text for `memexp report`, one block a cell.

Categories are known where the device was simulated; phases and steps are known of every cell that trained.
"""

from collections.abc import Iterator, Sequence

from memexp.results.compare import REPEATS
from memexp.results.format import bytes_text, visible
from memexp.results.grid import Grid, grouped, option
from memexp.results.predicted import tilde
from memexp.results.record import Record

_BAR = 30
_PHASES = ("load", "forward", "backward", "optimizer", "worst_case")
_SPARKS = "▁▂▃▄▅▆▇█"


def peak_lines(grid: Grid) -> Iterator[str]:
    """Plain lines, none of them markup. Nothing for cells that have no peak; of repeats the first."""
    beside = [axis for axis in grid.axes if axis != REPEATS]
    for repeats in grouped(grid.records, lambda record: tuple(option(record, axis) for axis in beside)):
        record = repeats[0]
        if record.memory.peak_allocated_bytes:
            yield ""
            yield from _cell(grid.label(record), record)


def _cell(name: str, record: Record) -> Iterator[str]:
    memory = record.memory
    assert memory.peak_allocated_bytes is not None
    peak = tilde(record, "memory.peak_allocated_bytes") + bytes_text(memory.peak_allocated_bytes)
    where = f" in {visible(memory.peak_phase)}" if memory.peak_phase else ""
    yield f"{name}: peaks at {peak}{where}"
    yield from _bars(memory.peak_categories)
    phases = [(name, memory.phases.get(name, {}).get("peak_allocated_bytes")) for name in _PHASES]
    known = [(name.replace("_", " "), size) for name, size in phases if size is not None]
    if known:
        yield "  by phase     " + ", ".join(f"{name} {bytes_text(size)}" for name, size in known)
    steps = [step.get("peak_allocated_bytes") for step in memory.per_step]
    sizes = [size for size in steps if size is not None]
    if len(sizes) > 1:
        yield f"  by step      {_spark(sizes)}  {bytes_text(min(sizes))} to {bytes_text(max(sizes))}"


def _bars(categories: dict[str, int | None]) -> Iterator[str]:
    known = {name: size for name, size in categories.items() if size}
    for name, size in sorted(known.items(), key=lambda item: -item[1]):
        bar = "█" * max(1, round(_BAR * size / sum(known.values())))
        yield f"  {visible(name.removesuffix('_bytes')):<12} {bytes_text(size):>10}  {bar}"


def _spark(sizes: Sequence[int]) -> str:
    """Heights above the lowest step: what matters of steps is whether they grow."""
    low, high = min(sizes), max(sizes)
    span = max(high - low, 1)
    return "".join(_SPARKS[(len(_SPARKS) - 1) * (size - low) // span] for size in sizes)
