"""Speeds of a handful of rows: shown, and compared with nothing that was timed on other rows."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_records import GIB, made, swept

from memexp.results.compare import compare
from memexp.results.effects import effects
from memexp.results.few_rows import FEW_ROWS, timed_on_few_rows
from memexp.results.figures import figures
from memexp.results.figures.front import places_on_the_front
from memexp.results.grid import Grid
from memexp.results.page import make_page
from memexp.results.recommend import judge
from memexp.results.record import Record
from memexp.results.sweep import Axis
from memexp.results.table import make_table

BATCHES = Axis("batch_size", (1, 10, 12), 1)


def timed(plan_id: str, batch_size: int, rate: float, steps: int = 1, **fields: int) -> Record:
    record = made(plan_id, batch_size * GIB, rate=rate, choices={"batch_size": batch_size, **fields})
    return replace(record, speed=replace(record.speed, step_seconds=(0.1,) * steps))


def probes() -> list[Record]:
    return [timed("a", 1, 9000.0), timed("b", 10, 100.0), timed("c", 12, 110.0)]


@pytest.mark.parametrize(
    ("cells", "few"),
    [
        (probes(), {"a"}),
        ([timed("a", 1, 1.0), timed("b", 1, 2.0)], set()),  # the same row in both
        ([timed("a", 1, 1.0, steps=8), timed("b", 4, 1.0, steps=8)], set()),
        ([timed("a", 1, 1.0, steps=2, gradient_accumulation=4), timed("b", 4, 1.0, steps=3)], set()),
        ([timed("a", 1, 1.0, steps=7), timed("b", 4, 1.0, steps=7)], {"a"}),
    ],
)
def test_fewer_than_eight_rows_are_few_where_others_were_timed_on_more(cells: list[Record], few: set[str]) -> None:
    assert timed_on_few_rows(cells) == few


def test_packed_rows_are_full_however_few_they_are() -> None:
    packed = [replace(record, data=replace(record.data, rows_packed=3)) for record in probes()]
    assert timed_on_few_rows(packed) == frozenset()


def test_the_speed_of_one_row_wins_nothing(tmp_path: Path) -> None:
    sweep, records = swept(BATCHES, cells="abc"), probes()
    grid = Grid(sweep, records)
    comparison, table = compare(grid), make_table(sweep, records)
    assert [cell.flags for cell in comparison.cells] == [(FEW_ROWS,), (), ()]
    assert all(cell.vs_baseline["real_tokens_per_second"] is None for cell in comparison.cells[1:])
    assert comparison.cells[1].vs_baseline["peak_allocated_bytes"] == 900.0
    page = make_page(grid, table, figures(grid, comparison, tmp_path))
    assert {fact.name: fact.of for fact in page.facts}["Fastest"] == "batch_size=12"
    assert "a" not in places_on_the_front(grid)
    assert any(line.startswith("batch_size=1: timed on 1 row, too few") for line in table.remarks)
    candidates, left_out = judge(grid)
    assert [each.id for each in candidates] == ["c", "b"]
    assert "timed on fewer than 8 rows" in left_out[0].reason


def test_two_cells_of_the_same_row_compare() -> None:
    axes = BATCHES, Axis("offload", ("false", "true"), "false")
    cells = [timed("a", 1, 100.0), timed("b", 1, 90.0), timed("c", 10, 50.0)]
    choices = ("false", "true", "false")
    records = [
        replace(cell, choices={**cell.choices, "offload": text}) for cell, text in zip(cells, choices, strict=True)
    ]
    found = compare(Grid(swept(*axes), records)).cells
    assert [cell.vs_baseline["real_tokens_per_second"] for cell in found] == [0.0, -10.0, None]


def test_an_effect_on_speed_is_not_that_of_one_row() -> None:
    axes = BATCHES, Axis("offload", ("false", "true"), "false")
    records = [
        replace(record, id=record.id + offload, choices={**record.choices, "offload": offload})
        for record in probes()
        for offload in ("false", "true")
    ]
    grid = Grid(swept(*axes), records)
    found = {(each.axis, each.option): each.changes for each in effects(grid, compare(grid)).effects}
    memory, speed = found["batch_size", "10"]
    assert (memory.pairs, speed.pairs) == (2, 0)
    assert found["offload", "true"][1].pairs == 2
