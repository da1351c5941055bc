"""Repeats: one row a configuration, its median and spread, and differences that are none."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from made_records import GIB, PACKING, made, not_ok, swept
from rich.console import Console

from memexp.plan import load_sweep
from memexp.results.compare import compare
from memexp.results.figures import figures
from memexp.results.grid import Grid
from memexp.results.markdown import markdown
from memexp.results.page import make_page
from memexp.results.record import Record
from memexp.results.rows import Row, Table
from memexp.results.sweep import Axis
from memexp.results.table import make_table, print_table
from memexp.run.folder import in_running_order

SEEDS = Axis("seed", (0, 1, 2), 0)


def repeats(packing: str, rates: Sequence[float], peaks: Sequence[float] = (1, 1, 1), **fields: Any) -> list[Record]:
    return [
        made(f"{packing}{seed}", peak * GIB, rate=rate, choices={"seed": seed, "packing": packing}, **fields)
        for seed, (rate, peak) in enumerate(zip(rates, peaks, strict=True))
    ]


def tabled(*records: Record, axes: tuple[Axis, ...] = (SEEDS, PACKING)) -> Table:
    return make_table(swept(*axes), records)


def shown(table: Table, heading: str) -> dict[str, str]:
    column = [each.heading for each in table.columns].index(heading)
    return {" ".join(row.options): str(row.numbers[column]) for row in table.rows}


def row(table: Table, option: str) -> Row:
    (found,) = [row for row in table.rows if row.options == (option,)]
    return found


def test_a_configuration_is_a_row_with_its_median_and_its_furthest_repeat() -> None:
    table = tabled(*repeats("none", (100, 110, 104)), *repeats("bfd", (200, 230, 210)))
    # 110 is 5.8% above 104; 230 is 9.5% above 210; 210 is 101.9% above 104.
    assert shown(table, "real tokens/s") == {"none": "104 ±5.8%", "bfd": "210 ±9.5% (+101.9%)"}
    assert table.axes == ("packing",)
    assert any("median of seed=0,1,2" in line for line in table.heading)


def test_repeats_that_agree_have_no_spread_to_speak_of() -> None:
    (said,) = [line for line in tabled(*repeats("none", (100, 100, 100))).heading if "median" in line]
    assert "±" not in said
    predicted = tabled(*repeats("none", (100, 100, 100), backend="simulate"))
    (said,) = [line for line in predicted.heading if "median" in line]
    assert said.endswith("predictions differ between seeds only where the order of the rows does")


def test_the_page_speaks_of_rows_of_the_table_and_never_of_single_repeats() -> None:
    # Medians: none 2 GiB at 104 tokens/s, bfd 3 GiB at 210. Single repeats reach 1 GiB and 230 tokens/s.
    records = [*repeats("none", (100, 110, 104), (1, 2, 3)), *repeats("bfd", (200, 230, 210), (3, 3, 3))]
    sweep = swept(SEEDS, PACKING)
    grid = Grid(sweep, records)
    page = make_page(grid, make_table(sweep, records), figures(grid, compare(grid), Path("nowhere")))
    facts = {fact.name: (fact.number, fact.of) for fact in page.facts}
    assert facts["Least memory"] == ("2.00 GiB", "packing=none")
    assert facts["Fastest"] == ("210 tokens/s", "packing=bfd")
    assert page.places == {"none0": 1, "bfd0": 2}


def test_one_cell_has_no_place_on_a_front_that_is_not_drawn() -> None:
    records = [made("a", GIB, rate=1.0)]
    grid = Grid(swept(), records)
    page = make_page(grid, make_table(swept(), records), figures(grid, compare(grid), Path("nowhere")))
    assert page.places == {}


def test_the_csv_still_has_a_row_a_cell() -> None:
    table = tabled(*repeats("none", (100, 110, 104)), *repeats("bfd", (200, 230, 210)))
    assert [line[:2] for line in table.csv[1:]] == [
        (str(seed), packing) for packing in ("none", "bfd") for seed in range(3)
    ]


@pytest.mark.parametrize(
    ("rates", "change"),
    [
        ((103, 99, 107), "no difference"),  # 103 against 100: +3.0%, and repeats lie 3.9% and 2.0% apart
        ((109, 108, 110), "+9.0%"),  # 0.9% and 2.0% apart
        ((97.5, 97, 98), "no difference"),  # -2.5% within 0.5% and 2.0%
    ],
)
def test_a_speed_inside_the_spread_is_no_difference(rates: tuple[float, ...], change: str) -> None:
    table = tabled(*repeats("none", (98, 100, 102)), *repeats("bfd", rates))
    assert shown(table, "real tokens/s")["bfd"].endswith(f"({change})")


@pytest.mark.parametrize(("peak", "change"), [(1.009, "no difference"), (1.011, "+1.1%")])
def test_memory_has_a_tolerance_of_one_percent_where_its_repeats_agree(peak: float, change: str) -> None:
    table = tabled(*repeats("none", (1, 1, 1)), *repeats("bfd", (1, 1, 1), (peak,) * 3))
    assert shown(table, "peak allocated")["bfd"].endswith(f"({change})")


def test_speed_has_no_such_tolerance() -> None:
    table = tabled(*repeats("none", (1000, 1000, 1000)), *repeats("bfd", (1005, 1005, 1005)))
    assert shown(table, "real tokens/s")["bfd"].endswith("(+0.5%)")


def test_a_single_run_of_each_has_no_spread_and_its_difference_is_shown() -> None:
    records = [*repeats("none", (100, 100, 100))[:1], *repeats("bfd", (101, 101, 101))[:1]]
    assert shown(tabled(*records, axes=(PACKING,)), "real tokens/s")["bfd"] == "101 (+1.0%)"


def test_a_repeat_that_failed_is_said_and_is_not_in_the_median() -> None:
    records = repeats("bfd", (200, 220, 9000))
    records[2] = not_ok("bfd2", "oom", choices=records[2].choices)
    table = tabled(*repeats("none", (100, 100, 100)), *records)
    assert shown(table, "real tokens/s")["bfd"].startswith("210")
    assert row(table, "bfd").remark == "1 of 3 repeats not ok: OOM"


def test_a_configuration_none_of_whose_repeats_is_ok_is_a_row_with_its_reason() -> None:
    failed = [not_ok(f"bfd{seed}", "failed", "it broke", choices={"seed": seed, "packing": "bfd"}) for seed in range(3)]
    found = row(tabled(*repeats("none", (100, 100, 100)), *failed), "bfd")
    assert (found.status, found.remark) == ("failed", "failed: it broke")


def test_seeds_alone_are_one_row_and_nothing_is_compared() -> None:
    table = tabled(*repeats("none", (100, 110, 104)), axes=(SEEDS,))
    assert len(table.rows) == 1
    assert [number.change for number in table.rows[0].numbers] == [""] * len(table.columns)
    assert not table.rows[0].is_baseline
    assert "104 ±5.8%" in markdown(table)
    out = io.StringIO()
    print_table(table, Console(file=out, width=100))
    assert "104 ±5.8%" in out.getvalue()


def test_all_cells_of_a_seed_run_before_those_of_the_next() -> None:
    plans = load_sweep("backend=cpu", "packing=none,bfd", "seed=5,0,1")
    assert [(plan.work.seed, plan.choices["packing"]) for plan in in_running_order(plans)] == [
        (seed, packing) for seed in (5, 0, 1) for packing in ("none", "bfd")
    ]
