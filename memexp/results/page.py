"""What report.html says beside its table and charts, as plain text: key figures, environment, commands."""

from collections.abc import Sequence
from dataclasses import dataclass

from memexp.frozen import Frozen
from memexp.results.compare import number
from memexp.results.figures import Figure
from memexp.results.figures.front import places_on_the_front
from memexp.results.format import bytes_text, listing, one_line, option_text, rate_text, visible
from memexp.results.grid import Grid
from memexp.results.record import STATUSES, Record
from memexp.results.rows import Table

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
    commands = {record.id: record.environment.get("replay") for record in grid.records}
    return Page(
        name=visible(table.name),
        heading=table.heading,
        facts=tuple(_facts(grid)),
        remarks=table.remarks,
        figures=tuple(figures),
        environment=tuple(_environment(grid.records)),
        command=visible(table.command),
        places=places_on_the_front(grid),
        commands={name: visible(command) for name, command in commands.items() if isinstance(command, str)},
    )


def _facts(grid: Grid) -> list[Fact]:
    counts = {status: sum(record.status == status for record in grid.records) for status in STATUSES}
    others = ", ".join(f"{count:,} {status}" for status, count in counts.items() if count and status != "ok")
    facts = [Fact("Cells", f"{counts['ok']:,} of {len(grid.records):,} ok", others)]
    least = _best(grid, "peak_allocated_bytes", -1)
    fastest = _best(grid, "real_tokens_per_second", 1)
    if least is not None:
        facts.append(
            Fact("Least memory", _about(least) + bytes_text(_known(least, "peak_allocated_bytes")), grid.label(least))
        )
    if fastest is not None:
        speed = rate_text(_known(fastest, "real_tokens_per_second"))
        facts.append(Fact("Fastest", f"{_about(fastest)}{speed} tokens/s", grid.label(fastest)))
    capacities = {record.memory.capacity_bytes for record in grid.ok if record.memory.capacity_bytes}
    if len(capacities) == 1:
        cards = dict.fromkeys(_device(record) for record in grid.ok)
        facts.append(Fact("Card", bytes_text(capacities.pop()), listing([card for card in cards if card])))
    return facts


def _best(grid: Grid, metric: str, sign: int) -> Record | None:
    known = [record for record in grid.ok if number(record, metric) and not record.effective.get("fell_back")]
    return max(known, key=lambda record: sign * _known(record, metric), default=None)


def _known(record: Record, metric: str) -> float:
    return number(record, metric) or 0.0


def _about(record: Record) -> str:
    return "~" if record.predicted else ""


def _device(record: Record) -> str:
    gpu = record.environment.get("gpu")
    return one_line(str(gpu.get("name") if isinstance(gpu, dict) else gpu)) if gpu else ""


def _environment(records: Sequence[Record]) -> list[tuple[str, str]]:
    """What the cells ran on. Where they differ, every value there was."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        versions = record.environment.get("versions")
        facts = {"memexp": record.environment.get("memexp"), **(versions if isinstance(versions, dict) else {})}
        facts |= {_NAMES.get(key, key): record.environment.get(key) for key in _ENVIRONMENT} | {
            "device": _device(record)
        }
        for name, value in facts.items():
            if value not in (None, ""):
                found.setdefault(one_line(str(name)), {})[one_line(option_text(value))] = None
    return [(name, listing(list(values))) for name, values in found.items()]
