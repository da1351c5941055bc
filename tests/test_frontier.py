"""The frontier: bisection against brute force, its table against hand-made records, and one real search."""

import contextlib
import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_records import GIB, made, not_ok
from sweeping import Swept

from memexp.cli import main
from memexp.frontier.fit import fits, share_of_card
from memexp.frontier.search import Bounds, found, next_sizes
from memexp.frontier.table import frontier_table
from memexp.plan.plan import PlanError
from memexp.results.record import Oom, Record
from memexp.results.sweep import Axis, Sweep
from memexp.tracking.exporter import Settings


def search(bounds: Bounds, limit: int) -> dict[int, bool]:
    """Probe a card on which sizes up to `limit` fit, until nothing more is asked for."""
    fitted: dict[int, bool] = {}
    while sizes := next_sizes(bounds, fitted):
        assert not set(sizes) & set(fitted), "a size is probed twice"
        fitted |= {size: size <= limit for size in sizes}
    return fitted


@given(st.integers(1, 50), st.integers(0, 2000), st.integers(1, 70), st.integers(0, 2100))
def test_the_search_finds_what_trying_every_size_finds(low: int, span: int, step: int, limit: int) -> None:
    bounds = Bounds(low, low + span, step)
    every = sorted({*range(low, low + span + 1, step), low + span})
    fitting = [size for size in every if size <= limit]
    answer = found(bounds, search(bounds, limit))
    assert answer.largest == (max(fitting) if fitting else None)
    assert answer.too_large == min((size for size in every if size > limit), default=None)


@given(st.integers(2, 100_000), st.integers(1, 100_000))
def test_the_search_takes_few_probes(high: int, limit: int) -> None:
    # Bisection over n sizes needs log2(n) probes; the geometric start may spend as many again on the small ones.
    assert len(search(Bounds(1, high), limit)) <= 3 + 2 * high.bit_length()


@pytest.mark.parametrize(("low", "high", "step"), [(0, 4, 1), (4, 3, 1), (1, 4, 0), (-1, 4, 1)])
def test_bounds_that_hold_no_size_are_refused(low: int, high: int, step: int) -> None:
    with pytest.raises(ValueError, match=r"at least 1|below"):
        Bounds(low, high, step)


def probe(plan_id: str, offload: str, size: int, reserved: float | None, **fields: object) -> Record:
    """A cell on a card of 24 GiB; out of memory where `reserved` (GiB) is None."""
    choices = {"offload": offload, "batch_size": size}
    if reserved is None:
        return not_ok(plan_id, "oom", oom=Oom("forward", 1, 2 * GIB, 1 * GIB, 1 * GIB), choices=choices)
    record = made(plan_id, reserved * GIB, rate=100.0 * size, choices=choices, **fields)
    phases = {
        "measured": {"peak_allocated_bytes": 1, "peak_reserved_bytes": int(reserved * GIB)},
        "worst_case": {"peak_allocated_bytes": 1, "peak_reserved_bytes": int((reserved + 1) * GIB)},
    }
    return replace(record, memory=replace(record.memory, phases=phases, capacity_bytes=24 * GIB))


def test_a_cell_fits_with_its_worst_case_and_with_headroom() -> None:
    record = probe("a", "false", 4, 20)  # 21 of 24 GiB in the worst case: 87.5 percent
    assert share_of_card(record) == pytest.approx(0.875)
    assert fits(record, headroom=0.12) is True
    assert fits(record, headroom=0.13) is False
    assert fits(probe("b", "false", 8, None), headroom=0.0) is False
    assert fits(replace(record, status="failed"), headroom=0.0) is None


def test_the_table_names_the_largest_size_and_what_stands_in_the_way() -> None:
    records = [
        probe("a", "false", 1, 10),
        probe("b", "false", 2, 15),
        probe("c", "false", 3, 22),  # 23 of 24 GiB: fits the card, but not with 8 percent to spare
        probe("d", "false", 16, None),
        probe("e", "true", 1, 2),
        probe("f", "true", 16, 20),
        probe("g", "both", 1, None),
    ]
    axes = (Axis("offload", ("false", "true", "both"), "false"), Axis("batch_size", (1, 2, 3, 16), 4))
    table = frontier_table(Sweep("made", axes, tuple("abcdefg")), records, "batch_size", Bounds(1, 16), 0.08)
    largest = {row.options[0]: row.numbers[0].text for row in table.rows if row.is_ok}
    assert largest == {"false": "2", "true": "16 or more"}
    assert not any("tokens" in column.heading for column in table.columns)  # each probe trained on other rows
    remarks = {row.options[0]: row.remark for row in table.rows}
    assert remarks["false"] == "3: takes 95.8% of the card"
    assert remarks["both"].startswith("not even 1 fits: OOM in forward of step 1")
    assert [line[:3] for line in table.csv] == [
        ("offload", "largest", "too_large"),
        ("false", "2", "3"),
        ("true", "16", ""),
        ("both", "", "1"),
    ]


def test_a_probe_that_failed_ends_the_search_of_its_combination_and_is_named() -> None:
    broken = not_ok("b", "failed", "KeyError: x", choices={"offload": "false", "batch_size": 8})
    records = [probe("a", "false", 1, 10), broken]
    axes = (Axis("offload", ("false",), "false"), Axis("batch_size", (1, 8), 4))
    table = frontier_table(Sweep("made", axes, tuple("ab")), records, "batch_size", Bounds(1, 8), 0.0)
    (row,) = table.rows
    assert row.numbers[0].text == "1 or more"
    assert "the search ended at 8: failed: KeyError: x" in row.remark


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory, warm_cells: None) -> Swept:
    return frontier(tmp_path_factory.mktemp("results"), "batch_size=1:6", "sweep=found")


def frontier(results: Path, *arguments: str) -> Swept:
    out, err = io.StringIO(), io.StringIO()
    # Long rows and few layers: the card is full after a few rows, and a probe is cheap.
    rows = ("data=lengths", "data.distribution=constant", "data.length=4096", "data.maximum=4096", "data.rows=24")
    model = ("model=qwen2_5_0_5b", "model.config.num_hidden_layers=2", "precision=fp32", "max_length=4096")
    job = ("gpu=t4_16gb", *model, *rows, "logger=none", f"results_dir={results}")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["frontier", arguments[0], *job, *arguments[1:]])
    return Swept(code, out.getvalue(), err.getvalue(), results / "found")


def test_a_search_ends_where_one_more_row_does_not_fit(searched: Swept) -> None:
    assert searched.code == 0
    assert searched.folder is not None
    (row,) = csv.DictReader((searched.folder / "frontier.csv").read_text().splitlines())
    largest, too_large = int(row["largest"]), int(row["too_large"])
    assert too_large == largest + 1
    # One line a probe, without torch's paragraph, and one that says how many there are.
    assert searched.out.count("Results in") == 1
    assert "OutOfMemoryError" not in searched.out
    by_size = searched.by("batch_size")
    assert by_size[largest]["status"] == "ok"
    assert fits(Record.from_dict(by_size[largest]), 0.08)
    assert not fits(Record.from_dict(by_size[too_large]), 0.08)


def test_a_search_is_a_sweep_and_resumes(searched: Swept) -> None:
    assert searched.folder is not None
    assert "frontier batch_size=1:6" in (searched.folder / "table.md").read_text()
    again = frontier(searched.folder.parent, "batch_size=1:6", "sweep=found")
    assert again.code == 0
    assert "0 to run" in again.out
    assert " 1 to run" not in again.out


class Exports:
    """In place of W&B's exporter: what each is told."""

    def __init__(self, settings: Settings) -> None:
        self.cells: list[Path] = []
        if settings.mode != "disabled":
            EXPORTS.append(self)

    def cell_done(self, record_path: Path, config: object) -> None:
        self.cells.append(record_path)

    def sweep_done(self) -> None:
        self.cells.append(Path("sweep"))

    def close(self) -> list[str]:
        return []


EXPORTS: list[Exports] = []


def test_wandb_is_started_once_a_search_and_told_of_every_probe(
    searched: Swept, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert searched.folder is not None
    monkeypatch.setattr("memexp.app.Exporter", Exports)
    EXPORTS.clear()
    assert frontier(searched.folder.parent, "batch_size=1:6", "sweep=found", "logger=wandb_offline").code == 0
    (exports,) = EXPORTS
    assert {path.parent.name for path in exports.cells[:-1]} == {record["id"] for record in searched.records}
    assert exports.cells[-1] == Path("sweep")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["frontier", "batch_size"], "batch_size=1:64"),
        (["frontier", "batch_size=8:2"], "below the lower one"),
        (["frontier", "seed=0:4"], "batch_size or max_length"),
        (["frontier", "batch_size=1:4", "batch_size=2"], "leave batch_size=… out"),
        (["frontier", "batch_size=1:4", "backend=cpu"], "no card to fill"),
        (["frontier", "batch_size=1:4", "headroom=2"], "no fraction of the card"),
        (["frontier", "batch_size=1:4", "packin=bfd"], "Did you mean packing?"),
    ],
)
def test_a_mistyped_frontier_is_one_line(typed: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(typed) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert PlanError.__name__ not in error
    assert "Traceback" not in error


def test_a_dry_run_of_a_frontier_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frontier", "batch_size=1:4", "--dry-run", f"results_dir={tmp_path / 'r'}"]) == 0
    assert "nothing started" in capsys.readouterr().out
    assert not (tmp_path / "r").exists()
