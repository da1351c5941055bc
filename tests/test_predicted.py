"""`~` stands before what is predicted and before nothing else, wherever a number of a cell is shown."""

import io
from collections.abc import Iterator
from dataclasses import replace

import pytest
from made_records import GIB, made, swept
from rich.console import Console

from memexp.frontier.search import Bounds
from memexp.frontier.table import frontier_table
from memexp.results.figures.front import speed_against_memory
from memexp.results.grid import Grid
from memexp.results.page import make_page
from memexp.results.peak import peak_lines
from memexp.results.recommend import Card, recommend
from memexp.results.recommend_text import headline
from memexp.results.record import Record
from memexp.results.sweep import Axis
from memexp.results.table import make_table, print_table

# As memexp/run/device.py says it of a cell on the CPU: what is reserved comes from a model, all else is counted.
ON_THE_CPU = ("memory.peak_reserved_bytes",)
SIMULATED = (*ON_THE_CPU, "memory.peak_allocated_bytes", "speed.real_tokens_per_second")
SIZES = Axis("batch_size", (1, 2), 1)


def everything_shown(records: list[Record]) -> Iterator[str]:
    sweep = swept(SIZES, cells="ab")
    grid = Grid(sweep, records)
    out = io.StringIO()
    table = make_table(sweep, records)
    for each in (table, frontier_table(sweep, records, "batch_size", Bounds(1, 2), 0)):
        print_table(each, Console(file=out, width=300))
    yield out.getvalue()
    figure = speed_against_memory(grid)
    assert figure is not None
    yield from figure.notes
    yield from (fact.number for fact in make_page(grid, table, [figure]).facts)
    yield from peak_lines(grid)
    yield from headline(recommend(grid, Card("24GiB", 24 * GIB, GIB // 2)))


@pytest.mark.parametrize(("backend", "predicted"), [("cpu", ON_THE_CPU), ("simulate", SIMULATED), ("cuda", ())])
def test_the_sign_stands_before_what_is_predicted_alone(backend: str, predicted: tuple[str, ...]) -> None:
    records = [
        made(name, 5 * GIB, reserved=7 * GIB, rate=1111.0 * size, choices={"batch_size": size}, backend=backend)
        for name, size in (("a", 1), ("b", 2))
    ]
    shown = "\n".join(everything_shown([replace(record, predicted=predicted) for record in records]))
    # 2,222 is the fastest, the largest and the best; 7.50 GiB are what is reserved and a context.
    for text, figure in (
        ("5.00 GiB", "memory.peak_allocated_bytes"),
        ("7.50 GiB", "memory.peak_reserved_bytes"),
        ("2,222", "speed.real_tokens_per_second"),
    ):
        signs = {shown[place - 1] == "~" for place in range(1, len(shown)) if shown.startswith(text, place)}
        assert signs == {figure in predicted}, f"{text}\n{shown}"
    whose = {"cpu": "a model of CUDA's caching allocator", "simulate": "the simulated GPU"}
    assert {name for name, by in whose.items() if by in shown} == ({backend} if predicted else set())
