"""Folders and reruns: case C13, and how a sweep is resumed."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sweeping import sweep, write_rows

from memexp.results.sweep import SweepFolder
from memexp.run import folder as folders
from tools.quick_cells import quick_server

SHORT = ("steps=1", "unmeasured_steps=0", "max_length=16", "batch_size=2", "logger=none")


@pytest.fixture(scope="module", autouse=True)
def _quick_cells() -> Iterator[None]:
    with quick_server():
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    rows = write_rows(tmp_path_factory.mktemp("rows") / "rows.jsonl")
    return (*SHORT, "data=jsonl", f"data.path={rows}")


def test_sweeps_started_in_one_instant_get_folders_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda _: folders.new_folder(tmp_path), range(200)))
    assert len(set(made)) == 200


def test_a_finished_cell_is_not_run_again(tmp_path: Path, data: tuple[str, ...]) -> None:
    first = sweep(tmp_path, "-m", "packing=none,bfd", "sweep=mine", *data)
    started = [record["timing"]["started_at"] for record in first.records]
    walls = [record["timing"]["wall_seconds"] for record in first.records]
    again = sweep(tmp_path, "-m", "packing=none,bfd", "sweep=mine", *data)
    assert [record["timing"]["started_at"] for record in again.records] == started
    assert [record["timing"]["wall_seconds"] for record in again.records] == walls
    assert "2 finished before" in again.out


def test_resuming_runs_only_what_has_no_record(tmp_path: Path, data: tuple[str, ...]) -> None:
    first = sweep(tmp_path, "-m", "packing=none,bfd,wrapped", "sweep=mine", *data)
    assert first.folder is not None
    before = first.records
    lost = before[1]["id"]
    (first.folder / "cells" / lost / "record.json").unlink()
    again = sweep(tmp_path, "-m", "packing=none,bfd,wrapped", "sweep=last", *data)
    assert [record["id"] for record in again.records] == [record["id"] for record in before]
    assert "1 to run, 2 finished before" in again.out
    same = [old["timing"] == new["timing"] for old, new in zip(before, again.records, strict=True)]
    assert same == [True, False, True]


def test_a_damaged_record_is_set_aside_and_run_again(tmp_path: Path, data: tuple[str, ...]) -> None:
    first = sweep(tmp_path, "-m", "packing=none,bfd", "sweep=mine", *data)
    assert first.folder is not None
    damaged = first.folder / "cells" / first.records[0]["id"] / "record.json"
    damaged.write_text(damaged.read_text()[:100])
    again = sweep(tmp_path, "-m", "packing=none,bfd", "sweep=mine", *data)
    assert again.code == 0
    assert [record["status"] for record in again.records] == ["ok", "ok"]
    assert list(damaged.parent.glob("record.json.damaged*"))


def test_a_grown_axis_keeps_what_was_run(tmp_path: Path, data: tuple[str, ...]) -> None:
    sweep(tmp_path, "-m", "packing=none,bfd", "sweep=mine", *data)
    grown = sweep(tmp_path, "-m", "packing=none,bfd,wrapped", "sweep=mine", *data)
    assert "1 to run, 2 finished before" in grown.out
    assert len(grown.rows) == 3


def test_a_refusal_does_not_outlive_its_reason(tmp_path: Path) -> None:
    rows = tmp_path / "later.jsonl"
    command = ("-m", "seed=0,1", "sweep=mine", *SHORT, "data=jsonl", f"data.path={rows}")
    before = sweep(tmp_path / "results", *command)
    assert {record["reason_kind"] for record in before.records} == {"not_found"}
    write_rows(rows)
    after = sweep(tmp_path / "results", *command)
    # A file that is there is other data, so these are other cells; what is refused stays named beside them.
    assert [record["status"] for record in after.records if record["reason_kind"] != "not_found"] == ["ok", "ok"]


def test_two_processes_never_run_one_sweep(tmp_path: Path, data: tuple[str, ...]) -> None:
    (tmp_path / "mine").mkdir()
    with folders.only_run(SweepFolder(tmp_path / "mine")):
        result = sweep(tmp_path, "sweep=mine", *data)
    assert result.code == 2
    assert "another process" in result.err


@pytest.mark.parametrize(
    "change", [["seed=0,1"], ["packing=none,bfd", "batch_size=1"], ["packing=none,bfd", "peft=lora"]]
)
def test_another_sweep_never_lands_in_the_same_folder(tmp_path: Path, data: tuple[str, ...], change: list[str]) -> None:
    first = sweep(tmp_path, "-m", "packing=none,bfd", "sweep=mine", *data)
    assert first.folder is not None
    before = sorted(path.name for path in (first.folder / "cells").iterdir())
    other = sweep(tmp_path, "-m", "sweep=mine", *data, *change)
    assert other.code == 2
    assert "sweep=mine" in other.err
    assert sorted(path.name for path in (first.folder / "cells").iterdir()) == before


def test_other_options_of_an_axis_join_those_that_were_run(tmp_path: Path, data: tuple[str, ...]) -> None:
    sweep(tmp_path, "-m", "packing=none,bfd", "sweep=mine", *data)
    joined = sweep(tmp_path, "-m", "packing=wrapped,bfd_split", "sweep=mine", *data)
    assert [row["packing"] for row in joined.rows] == ["none", "bfd", "wrapped", "bfd_split"]


def test_a_value_of_300_characters_works(tmp_path: Path, data: tuple[str, ...]) -> None:
    long = tmp_path / ("a" * 100) / ("b" * 100) / ("c" * 100)
    long.mkdir(parents=True)
    rows = write_rows(long / "rows.jsonl")
    result = sweep(tmp_path / "results", *data, f"data.path={rows}")
    assert result.code == 0
    assert result.records[0]["status"] == "ok"


@pytest.mark.parametrize("name", ["../elsewhere", "a/b", "", "-x", "a" * 200])
def test_a_name_that_is_no_folder_name_is_refused(tmp_path: Path, name: str) -> None:
    result = sweep(tmp_path / "results", f"sweep='{name}'")
    assert result.code == 2
    assert "sweep=" in result.err
    assert not (tmp_path / "elsewhere").exists()


def test_last_without_a_sweep_says_so(tmp_path: Path) -> None:
    result = sweep(tmp_path, "sweep=last")
    assert result.code == 2
    assert "no sweep" in result.err


def test_two_names_of_one_job_are_one_cell(tmp_path: Path, data: tuple[str, ...]) -> None:
    result = sweep(tmp_path, "-m", "precision=auto,fp32", *data)
    assert "One cell" in result.out
    assert len(result.rows) == 1


def test_every_record_says_how_to_run_it_again(tmp_path: Path, data: tuple[str, ...]) -> None:
    result = sweep(tmp_path, "-m", "packing=bfd", "padding_free=true", *data)
    (record,) = result.records
    replay = record["environment"]["replay"]
    assert replay.startswith("python -m memexp ")
    assert "packing=bfd" in replay
    assert "padding_free=true" in replay
    assert json.dumps(record)
