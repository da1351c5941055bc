"""Whole sweeps on the CPU, from the command line to the table: cases C1, C3, C7, C8, and what every sweep does."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from sweeping import LENGTHS, Swept, sweep, write_rows

from memexp.commands import COMMANDS

pytestmark = pytest.mark.usefixtures("warm_cells")
PACKINGS = ("none", "bfd", "bfd_split", "wrapped")
SWEEP_PACKINGS = f"packing={','.join(PACKINGS)}"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.jsonl")


@pytest.fixture(scope="module")
def one_epoch(tmp_path_factory: pytest.TempPathFactory, rows: Path) -> Swept:
    results = tmp_path_factory.mktemp("one_epoch")
    return sweep(
        results,
        "-m",
        SWEEP_PACKINGS,
        "data=jsonl",
        f"data.path={rows}",
        "max_length=16",
        "batch_size=2",
        "budget.epochs=1",
    )


def test_four_packings_are_four_ok_rows(one_epoch: Swept) -> None:
    assert one_epoch.code == 0
    assert [(row["packing"], row["status"]) for row in one_epoch.rows] == [(packing, "ok") for packing in PACKINGS]


def test_packing_names_mean_what_they_say(one_epoch: Swept) -> None:
    effective = {packing: record["effective"] for packing, record in one_epoch.by("packing").items()}
    assert {p: (e["packing"], e["padding_free"]) for p, e in effective.items()} == {
        "none": ("none", False),
        "bfd": ("bfd", True),
        "bfd_split": ("bfd_split", True),
        "wrapped": ("wrapped", False),
    }
    assert all(record["effective"]["fell_back"] == [] for record in one_epoch.records)


def test_where_nothing_is_cut_every_packing_trains_on_the_same_tokens(one_epoch: Swept) -> None:
    assert [record["data"]["real_tokens"] for record in one_epoch.records] == [sum(LENGTHS)] * 4
    assert [record["data"]["kept_fraction"] for record in one_epoch.records] == [1.0] * 4


def test_an_unpacked_batch_is_padded_to_its_longest_row(one_epoch: Swept) -> None:
    # Batches of two in file order: 5+9, 13+3, 7+11, 3+5, padded to 9, 13, 11 and 5.
    slots = 2 * (9 + 13 + 11 + 5)
    assert one_epoch.by("packing")["none"]["data"]["padding_fraction"] == pytest.approx(1 - sum(LENGTHS) / slots)
    assert one_epoch.by("packing")["bfd"]["data"]["padding_fraction"] == 0


def test_the_report_and_the_row_lengths_that_it_draws_are_left_in_the_folder(one_epoch: Swept) -> None:
    assert one_epoch.folder is not None and "report.html" in one_epoch.out
    (lengths,) = one_epoch.folder.glob("tokens/*.lengths.json")
    kept = {int(length): rows for length, rows in json.loads(lengths.read_text())["rows_by_length"].items()}
    assert kept == Counter(LENGTHS)
    assert "8 rows, 56 tokens" in (one_epoch.folder / "report.html").read_text(encoding="utf-8")


def test_an_unknown_packing_is_refused_before_anything_starts(tmp_path: Path) -> None:
    result = sweep(tmp_path, "-m", "packing=bfd,ffd")
    assert result.code == 2
    assert "bfd, bfd_split, none, wrapped" in result.err
    assert list(tmp_path.iterdir()) == []


def test_offload_without_an_accelerator_is_a_refused_row(tmp_path: Path, rows: Path) -> None:
    result = sweep(
        tmp_path, "-m", "offload=true,false", "data=jsonl", f"data.path={rows}", "steps=1", "unmeasured_steps=0"
    )
    assert result.code == 0
    refused, ran = result.records
    assert (refused["status"], refused["reason_kind"]) == ("refused", "needs_hardware")
    assert "offload=true" in refused["reason"]
    assert "CPU" in refused["reason"]
    assert ran["status"] == "ok"
    assert refused["timing"]["setup_seconds"] is None
    assert result.rows[0]["peak_allocated_bytes_vs_baseline"] == ""


class TestEqualWorkOrSaySo:
    """Case C7: 32 rows of 224 tokens, max_length 16, under each kind of budget."""

    LENGTHS = LENGTHS * 4

    def run(self, folder: Path, budget: str) -> Swept:
        rows = write_rows(folder / "rows.jsonl", self.LENGTHS)
        return sweep(
            folder / "results", "-m", "packing=none,bfd,wrapped", "data=jsonl", f"data.path={rows}", "max_length=16",
            "batch_size=2", budget,
        )  # fmt: skip

    def test_equal_steps_are_said_to_be_different_work(self, tmp_path: Path) -> None:
        result = self.run(tmp_path, "budget.steps=4")
        tokens = [record["data"]["real_tokens"] for record in result.records]
        assert tokens[0] == sum(self.LENGTHS[:8])
        assert tokens[1] > 2 * tokens[0]
        assert tokens[2] == 4 * 2 * 16
        assert "work" in result.table
        assert all(record["data"]["epochs"] > 0 for record in result.records)

    def test_equal_epochs_are_the_same_tokens_in_different_steps(self, tmp_path: Path) -> None:
        result = self.run(tmp_path, "budget.epochs=1")
        assert [record["data"]["real_tokens"] for record in result.records] == [sum(self.LENGTHS)] * 3
        assert [record["data"]["steps"] for record in result.records] == [16, 8, 7]
        assert "different work" not in result.table.lower()

    def test_a_token_budget_is_met_within_a_batch(self, tmp_path: Path) -> None:
        result = self.run(tmp_path, "budget.tokens=112")
        for record in result.records:
            assert 112 <= record["data"]["real_tokens"] < 112 + 2 * 16


def test_one_huge_row_is_cut_or_kept_and_the_table_says_which(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", (2000, *[3] * 7))
    result = sweep(
        tmp_path / "results", "-m", SWEEP_PACKINGS, "data=jsonl", f"data.path={rows}", "max_length=64", "batch_size=2",
        "budget.epochs=1",
    )  # fmt: skip
    data = {packing: record["data"] for packing, record in result.by("packing").items()}
    assert [data[packing]["kept_tokens"] for packing in PACKINGS] == [85, 85, 2021, 2021]
    assert data["bfd"]["kept_fraction"] == pytest.approx(85 / 2021)
    assert [data[packing]["cut_rows"] for packing in ("none", "bfd", "bfd_split")] == [1, 1, 1]
    assert "cut 96% of the tokens" in result.table


def test_the_same_command_gives_the_same_numbers_to_the_last_digit(tmp_path: Path) -> None:
    first, second = (
        sweep(
            tmp_path / name,
            "-m",
            "packing=bfd,wrapped",
            "steps=2",
            "unmeasured_steps=1",
            "max_length=128",
            "batch_size=2",
        )
        for name in ("one", "two")
    )
    for before, after in zip(first.records, second.records, strict=True):
        assert before["status"] == "ok"
        assert before["loss"]["per_step"] == after["loss"]["per_step"]
        assert before["data"] == {**after["data"], "hours_per_epoch": before["data"]["hours_per_epoch"]}
        assert before["memory"]["peak_allocated_bytes"] == after["memory"]["peak_allocated_bytes"]
        assert before["memory"]["phases"] == after["memory"]["phases"]
        assert before["timing"]["started_at"] is not None
        assert before["timing"]["train_seconds"] != after["timing"]["train_seconds"]


def test_a_fresh_interpreter_and_a_warm_one_train_alike(tmp_path: Path) -> None:
    warm, fresh = (
        sweep(tmp_path / name, f"isolation={name}", "steps=1", "unmeasured_steps=1", "max_length=64", "batch_size=2")
        for name in ("warm", "fresh")
    )
    (a,), (b,) = warm.records, fresh.records
    assert (a["environment"]["process"], b["environment"]["process"]) == ("warm", "fresh")
    assert a["id"] == b["id"]
    assert a["loss"]["per_step"] == b["loss"]["per_step"]
    assert a["memory"]["peak_allocated_bytes"] == b["memory"]["peak_allocated_bytes"]


def test_a_dry_run_prints_the_cells_and_starts_nothing(tmp_path: Path) -> None:
    result = sweep(tmp_path, "packing=bfd,wrapped", "-m", "offload=true,false", "--dry-run")
    assert result.code == 0
    assert result.out.count("needs_hardware") == 2
    assert "4 cells, 2 refused, nothing started" in result.out
    assert list(tmp_path.iterdir()) == []


def test_help_lists_every_command_every_group_and_its_options() -> None:
    said = subprocess.run([sys.executable, "-m", "memexp", "--help"], capture_output=True, text=True, check=True).stdout
    assert "packing: bfd, bfd_split, none, wrapped" in said
    assert "offload: false, true" in said
    typed = [re.fullmatch(r"  python -m memexp (.*?)  +(\S.*)", line) for line in said.splitlines()]
    shown = [found for found in typed if found]
    assert set(COMMANDS) <= {found[1].split()[0] for found in shown}
    assert len({found.start(2) for found in shown}) == 1  # one column
