"""What report.html says beside its table and charts, as plain text: key figures, environment, commands."""

from collections.abc import Sequence
from dataclasses import dataclass

from memexp.frozen import Frozen
from memexp.results.compare import METRICS, compare, number
from memexp.results.few_rows import timed_on_few_rows
from memexp.results.figures import Figure
from memexp.results.figures.figure import card_name
from memexp.results.figures.front import places_on_the_front
from memexp.results.format import bytes_text, listing, one_line, option_text, rate_text, visible
from memexp.results.grid import Grid
from memexp.results.predicted import tilde
from memexp.results.record import STATUSES, Record
from memexp.results.repeats import is_repeated, without_repeats
from memexp.results.rows import Table
from memexp.results.software import versions_of

_ENVIRONMENT = ("gpu", "commit", "python", "platform", "cpu_count")
_NAMES = {"gpu": "device", "cpu_count": "CPU cores"}


@dataclass(frozen=True)
class Fact(Frozen):
    """One key figure: its name, the number, and the cell that has it."""

    name: str
    number: str
    of: str


@dataclass(frozen=True)
class Page(Frozen):
    """`places` and `commands` are by record id: the place on the Pareto front, and what runs a cell again alone."""

    name: str
    heading: tuple[str, ...]
    facts: tuple[Fact, ...]
    remarks: tuple[str, ...]
    figures: tuple[Figure, ...]
    environment: tuple[tuple[str, str], ...]
    command: str
    places: dict[str, int]
    commands: dict[str, str]


def make_page(grid: Grid, table: Table, figures: Sequence[Figure]) -> Page:
    """Every text is plain and visible; whoever writes HTML escapes it."""
    rows = without_repeats(grid, compare(grid)) if is_repeated(grid) else grid
    is_drawn = any(figure.key == "speed" for figure in figures)
    commands = {record.id: record.environment.get("replay") for record in grid.records}
    return Page(
        name=visible(table.name),
        heading=table.heading,
        facts=tuple(_facts(grid, rows)),
        remarks=table.remarks,
        figures=tuple(figures),
        environment=tuple(_environment(grid.records)),
        command=visible(table.command),
        places=places_on_the_front(rows) if is_drawn else {},
        commands={name: visible(command) for name, command in commands.items() if isinstance(command, str)},
    )


def _facts(grid: Grid, rows: Grid) -> list[Fact]:
    counts = {status: sum(record.status == status for record in grid.records) for status in STATUSES}
    others = ", ".join(f"{count:,} {status}" for status, count in counts.items() if count and status != "ok")
    facts = [Fact("Cells", f"{counts['ok']:,} of {len(grid.records):,} ok", others)]
    least = _best(rows, "peak_allocated_bytes", -1)
    fastest = _best(rows, "real_tokens_per_second", 1)
    if least is not None:
        memory = tilde(least, "memory.peak_allocated_bytes") + bytes_text(_known(least, "peak_allocated_bytes"))
        facts.append(Fact("Least memory", memory, rows.label(least)))
    if fastest is not None:
        rate = rate_text(_known(fastest, "real_tokens_per_second"))
        speed = f"{tilde(fastest, 'speed.real_tokens_per_second')}{rate} tokens/s"
        facts.append(Fact("Fastest", speed, rows.label(fastest)))
    capacities = {record.memory.capacity_bytes for record in grid.ok if record.memory.capacity_bytes}
    if len(capacities) == 1:
        cards = dict.fromkeys(_device(record) for record in grid.ok)
        name, size = card_name(grid.ok), bytes_text(capacities.pop())
        facts.append(Fact(name[0].upper() + name[1:], size, listing([card for card in cards if card])))
    return facts


def _best(grid: Grid, metric: str, sign: int) -> Record | None:
    few = timed_on_few_rows(grid.ok) if METRICS[metric] == "speed" else frozenset[str]()
    known = [r for r in grid.ok if number(r, metric) and not r.effective.get("fell_back") and r.id not in few]
    return max(known, key=lambda record: sign * _known(record, metric), default=None)


def _known(record: Record, metric: str) -> float:
    return number(record, metric) or 0.0


def _device(record: Record) -> str:
    return one_line(option_text(record.environment.get("gpu") or ""))


def _environment(records: Sequence[Record]) -> list[tuple[str, str]]:
    """What the cells ran on. Where they differ, every value there was."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        facts = {"memexp": record.environment.get("memexp"), **versions_of(record.environment)}
        facts |= {_NAMES.get(key, key): record.environment.get(key) for key in _ENVIRONMENT}
        for name, value in facts.items():
            if value not in (None, ""):
                found.setdefault(one_line(str(name)), {})[one_line(option_text(value))] = None
    return [(name, listing(list(values))) for name, values in found.items()]
