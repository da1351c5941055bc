"""Speed against memory, and the cells on the Pareto front. Not among them: what fell back, or was timed on few rows."""

from collections.abc import Sequence

from memexp.results.compare import fell_back_techniques, is_apart, number
from memexp.results.few_rows import timed_on_few_rows
from memexp.results.figures.figure import Figure, capacity
from memexp.results.format import GIB, bytes_text, rate_text
from memexp.results.grid import Grid, grouped, option
from memexp.results.pareto import front
from memexp.results.predicted import tilde
from memexp.results.record import Record

_MOST_POINTS = 2000
_MOST_NOTES = 12
_HIDES = 0.03

_Row = tuple[str, float, float, int | None, str]


def places_on_the_front(grid: Grid) -> dict[str, int]:
    """Record ids on the Pareto front, counted from 1 by memory. Jobs that are apart have a front each."""
    places: dict[str, int] = {}
    for _, cells in _jobs(grid):
        for position in front([_point(record) for record in cells]):
            places[cells[position].id] = len(places) + 1
    return places


def speed_against_memory(grid: Grid) -> Figure | None:
    """None where there are not two cells to tell apart."""
    places = places_on_the_front(grid)
    cells = [(job, record) for job, records in _jobs(grid) for record in records]
    if len(cells) < 2:
        return None
    cells.sort(key=lambda pair: places.get(pair[1].id, len(places) + 1))
    shown = cells[: max(_MOST_POINTS, len(places))]
    rows = [_row(grid, job, record, places) for job, record in shown]
    left_out = f" {len(cells) - len(shown):,} cells behind it are not drawn." if len(shown) < len(cells) else ""
    return Figure(
        key="speed",
        title="Speed against memory",
        about=f"A point is a cell. {len(places):,} of {len(cells):,} are on the Pareto front: nothing else is as fast "
        f"with as little memory.{left_out}",
        fields={"cell": "cell", "memory": "peak allocated, GiB", "speed": "real tokens/s", "place": "on the front"}
        | {"job": "job", "numbers": "drawn as"},
        rows=tuple((*row, numbers) for row, numbers in zip(rows, _numbers(rows), strict=True)),
        notes=tuple(_note(grid, record) for _, record in shown[: min(len(places), _MOST_NOTES)]),
        rules=capacity(grid, [row[1] for row in rows]),
    )


def _jobs(grid: Grid) -> list[tuple[str, list[Record]]]:
    """Cells whose memory and speed compare, under the options of model, data, trainer and card that they share."""
    apart = [axis for axis in grid.axes if is_apart(axis)]
    few = timed_on_few_rows(grid.ok)
    usable = [r for r in grid.ok if not fell_back_techniques(r) and _is_known(r) and r.id not in few]
    jobs = grouped(usable, lambda record: tuple(option(record, axis) for axis in apart))
    return [(grid.typed({axis: [option(cells[0], axis)] for axis in apart}) if apart else "", cells) for cells in jobs]


def _is_known(record: Record) -> bool:
    return None not in (number(record, "peak_allocated_bytes"), number(record, "real_tokens_per_second"))


def _point(record: Record) -> tuple[float, float]:
    memory, speed = number(record, "peak_allocated_bytes"), number(record, "real_tokens_per_second")
    assert memory is not None and speed is not None
    return memory, speed


def _row(grid: Grid, job: str, record: Record, places: dict[str, int]) -> _Row:
    memory, speed = _point(record)
    return grid.label(record), memory / GIB, speed, places.get(record.id), job


def _note(grid: Grid, record: Record) -> str:
    memory, speed = _point(record)
    allocated = tilde(record, "memory.peak_allocated_bytes") + bytes_text(memory)
    rate = tilde(record, "speed.real_tokens_per_second") + rate_text(speed)
    return f"{grid.label(record)}: {allocated}, {rate} tokens/s"


def _numbers(rows: Sequence[_Row]) -> list[str]:
    """What to write at each point: its place, or for points that hide each other the places of all at the first."""
    width = max(row[1] for row in rows) - min(row[1] for row in rows)
    height = max(row[2] for row in rows) - min(row[2] for row in rows)
    texts, leader = [""] * len(rows), 0
    for position, (_, memory, speed, place, _) in enumerate(rows):
        if place is None:
            continue
        near = abs(memory - rows[leader][1]) <= _HIDES * width and abs(speed - rows[leader][2]) <= _HIDES * height
        if position and near:
            texts[leader] += f", {place}"
        else:
            leader, texts[position] = position, str(place)
    return texts
