"""Figures and their charts: the Pareto front by brute force, numbers by hand, each chart against Vega-Lite's schema."""

import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import altair as alt
import pytest
import vl_convert
from hypothesis import given
from hypothesis import strategies as st
from made_records import GIB, OFFLOAD, PACKING, made, not_ok, swept

from memexp.results import charts
from memexp.results.compare import compare
from memexp.results.figures import Figure, figures
from memexp.results.grid import Grid
from memexp.results.pareto import front
from memexp.results.record import CATEGORIES, Memory, Record
from memexp.results.sweep import Axis
from memexp.results.theme import theme

VALUES = st.integers(0, 5).map(float)


@given(st.lists(st.tuples(VALUES, VALUES), max_size=12))
def test_the_front_is_what_no_other_point_dominates(points: list[tuple[float, float]]) -> None:
    def dominates(one: tuple[float, float], other: tuple[float, float]) -> bool:
        return one[0] <= other[0] and one[1] >= other[1] and one != other

    brute = {n for n, point in enumerate(points) if not any(dominates(other, point) for other in points)}
    found = front(points)
    assert set(found) == brute and len(found) == len(brute)
    assert [points[n][0] for n in found] == sorted(points[n][0] for n in found)


def test_a_point_that_is_no_number_has_no_place() -> None:
    with pytest.raises(ValueError, match="not a number"):
        front([(1.0, 2.0), (math.nan, 1.0)])


def record(plan_id: str, peak_gib: float, rate: float | None, **choices: str) -> Record:
    found = made(plan_id, peak_gib * GIB, rate=rate, step=0.1, choices={"max_length": 64, **choices})
    categories = {name: int(peak_gib * GIB / len(CATEGORIES)) for name in CATEGORIES}
    phases = {"load": {"peak_allocated_bytes": GIB}, "worst_case": {"peak_allocated_bytes": int(2 * peak_gib * GIB)}}
    memory = Memory(
        peak_allocated_bytes=int(peak_gib * GIB), peak_categories=categories, phases=phases, capacity_bytes=12 * GIB
    )
    return replace(found, memory=memory)


@pytest.fixture
def grid() -> Grid:
    records = [
        record("a", 8, 1000.0, packing="none", offload="false"),
        record("b", 6, 900.0, packing="none", offload="true"),
        record("c", 10, 950.0, packing="bfd", offload="false"),
        not_ok("d", "oom", "CUDA out of memory", choices={"packing": "bfd", "offload": "true"}),
    ]
    return Grid(swept(PACKING, OFFLOAD, cells="abcd"), records)


def by_key(grid: Grid, folder: Path) -> dict[str, Figure]:
    return {figure.key: figure for figure in figures(grid, compare(grid), folder)}


def test_a_figure_holds_the_numbers_of_the_records_in_gib(grid: Grid, tmp_path: Path) -> None:
    found = by_key(grid, tmp_path)
    assert list(found) == ["speed", "category", "phase", "effects"]
    points = {value["cell"]: value for value in found["speed"].values()}
    assert points["packing=none offload=true"] | {"numbers": ""} == {
        "cell": "packing=none offload=true", "memory": 6.0, "speed": 900.0, "place": 1, "job": "", "numbers": "",
    }  # fmt: skip
    assert points["packing=bfd offload=false"]["place"] is None
    totals: dict[str, float] = {}
    for value in found["category"].values():
        totals[value["cell"]] = totals.get(value["cell"], 0) + value["size"]
    assert list(totals.values()) == pytest.approx([6.0, 8.0, 10.0], rel=1e-6)
    assert [value["size"] for value in found["phase"].values()] == [1.0, 12.0, 1.0, 16.0, 1.0, 20.0]
    assert found["category"].rules == {"card: 12.00 GiB": 12.0}


def test_what_differs_by_a_thousandth_does_not_look_far_apart(tmp_path: Path) -> None:
    cells = [record("a", 8.400, 1000.0, packing="none"), record("b", 8.408, 1001.0, packing="bfd")]
    figure = by_key(Grid(swept(PACKING, cells="ab"), cells), tmp_path)["speed"]
    drawn = vl_convert.vegalite_to_vega(charts.vega_lite(figure), vl_version=charts.VEGA_LITE)
    scales = {scale["name"]: scale for scale in drawn["scales"]}
    for name, values in (("x", (8.400, 8.408, 12.0)), ("y", (1000.0, 1001.0))):  # the card of 12 GiB is drawn as well
        least, most = scales[name]["domainMin"], scales[name]["domainMax"]
        assert most - least >= 0.1 * values[0]
        assert least <= min(values) and max(values) <= most


def test_effects_are_percent_of_the_partner(grid: Grid, tmp_path: Path) -> None:
    rows = {(row[0].split()[0], row[1]): row[2:] for row in by_key(grid, tmp_path)["effects"].rows}
    assert rows["offload=true", "memory"] == (-25.0, -25.0, -25.0, "1 of 2")
    assert rows["packing=bfd", "speed"] == (-5.0, -5.0, -5.0, "1 of 2")


def test_cells_that_fell_back_are_not_on_the_front(grid: Grid, tmp_path: Path) -> None:
    records = [
        replace(each, effective={"fell_back": ["offload=true"]} if each.id == "b" else {}) for each in grid.records
    ]
    fallen = Grid(grid.sweep, records)
    assert [row[0] for row in by_key(fallen, tmp_path)["speed"].rows if row[3]] == ["packing=none offload=false"]


def test_models_have_a_front_each(tmp_path: Path) -> None:
    cells = [
        record(f"{model}{n}", peak, rate, model=model, offload=("false", "true")[n])
        for (model, size), (n, peak, rate) in product((("s", 1), ("l", 9)), ((0, 1.0, 900.0), (1, 0.5, 800.0)))
        for peak, rate in [(peak + size, rate / size)]
    ]
    axes = (Axis("model", ("s", "l"), "s"), OFFLOAD)
    rows = by_key(Grid(replace(swept(*axes), cells=tuple(c.id for c in cells)), cells), tmp_path)["speed"].rows
    assert {(row[4], row[3]) for row in rows} == {("model=s", 1), ("model=s", 2), ("model=l", 3), ("model=l", 4)}


def test_points_that_hide_each_other_share_one_text(tmp_path: Path) -> None:
    peaks_rates = [(1.0, 100.0), (1.001, 100.1), (5.0, 900.0)]
    records = [
        record(plan_id, peak, rate, packing=plan_id) for plan_id, (peak, rate) in zip("abc", peaks_rates, strict=True)
    ]
    found = by_key(Grid(swept(Axis("packing", tuple("abc"), "a"), cells="abc"), records), tmp_path)["speed"]
    assert [value["numbers"] for value in found.values()] == ["1, 2", "", "3"]


def test_damaged_row_lengths_are_left_out(grid: Grid, tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    for name, text in (("a", "{"), ("b", "[1]"), ("c", '{"data": "x", "rows_by_length": {"many": 1}}')):
        (tmp_path / "tokens" / f"{name}.lengths.json").write_text(text)
    assert "lengths" not in by_key(grid, tmp_path)
    (tmp_path / "tokens" / "d.lengths.json").write_text('{"data": "x", "rows_by_length": {"10": 3, "50": 1}}')
    found = by_key(grid, tmp_path)["lengths"]
    assert sum(value["rows"] for value in found.values()) == 4
    assert "80 tokens" in found.about


@pytest.fixture
def specs(grid: Grid, tmp_path: Path) -> dict[str, dict[str, Any]]:
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "d.lengths.json").write_text('{"data": "x", "rows_by_length": {"10": 3, "50": 1}}')
    return {key: charts.vega_lite(figure) for key, figure in by_key(grid, tmp_path).items()}


def test_every_chart_keeps_to_the_schema_and_every_figure_has_one(specs: dict[str, dict[str, Any]]) -> None:
    assert set(specs) == set(charts._CHARTS)
    for spec in specs.values():
        for scheme in ("light", "dark"):
            alt.Chart.from_dict({**spec, "config": theme(scheme)}, validate=True)


def test_every_layer_has_its_data(specs: dict[str, dict[str, Any]]) -> None:
    for spec in specs.values():
        names = {layer["data"]["name"] for layer in [spec, *spec["layer"]] if "data" in layer}
        assert names <= set(spec["datasets"]) and all(spec["datasets"][name] for name in names)
    (limit,) = [values for values in specs["category"]["datasets"].values() if "says" in values[0]]
    assert limit == [{"at": 12.0, "says": "card: 12.00 GiB"}]


def test_both_themes_style_every_mark(specs: dict[str, dict[str, Any]]) -> None:
    styles = {mark["style"] for spec in specs.values() for mark in _marks(spec) if "style" in mark}
    assert styles
    for scheme in ("light", "dark"):
        assert styles <= set(theme(scheme)["style"])


def _marks(spec: dict[str, Any]) -> list[dict[str, Any]]:
    here = [spec["mark"]] if isinstance(spec.get("mark"), dict) else []
    return here + [mark for layer in spec.get("layer", []) for mark in _marks(layer)]


def test_charts_are_written_as_png_files(grid: Grid, tmp_path: Path) -> None:
    found = by_key(grid, tmp_path)["category"]
    assert charts.write_pngs([found], tmp_path / "charts") == ["category.png"]
    header = (tmp_path / "charts" / "category.png").read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(header[16:20], "big") > 1500
