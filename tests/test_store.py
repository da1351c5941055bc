"""Records on disk: whole or not there, in grid order, and a damaged one is never a result."""

import errno
import io
import json
import os
from pathlib import Path

import pytest
from made_records import GIB, folder_of, made, not_ok, swept, two_by_two
from rich.console import Console

from memexp.plan.plan import PlanError
from memexp.results.report import report
from memexp.results.store import (
    read_records,
    read_sweep,
    write_atomically,
    write_record,
    write_records_jsonl,
    write_sweep,
)
from memexp.results.sweep import SweepFolder


@pytest.fixture
def folder(tmp_path: Path) -> SweepFolder:
    return SweepFolder(tmp_path)


def put(folder: SweepFolder, plan_id: str, content: str | bytes) -> Path:
    path = folder.record(plan_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def names_in(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


def test_what_is_written_comes_back_in_grid_order(folder: SweepFolder) -> None:
    sweep, records = two_by_two()
    folder_of(folder.path, sweep, records[::-1])
    assert read_sweep(folder) == sweep
    stored = read_records(folder, sweep)
    assert stored.records == tuple(records)
    assert not stored.missing
    assert not stored.damaged


def test_a_record_is_plain_json_with_the_units_in_its_names(folder: SweepFolder) -> None:
    folder_of(folder.path, swept(cells="a"), [made("a", 8 * GIB)])
    data = json.loads(folder.record("a").read_text())
    assert data["memory"]["peak_allocated_bytes"] == 8589934592
    assert data["memory"]["peak_reserved_bytes"] is None


def test_records_jsonl_has_one_record_a_line(folder: SweepFolder) -> None:
    records = [made("a"), not_ok("b", "failed", "two\nlines")]
    write_records_jsonl(folder, records)
    lines = folder.records_jsonl.read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["a", "b"]


def test_text_that_utf8_cannot_hold_comes_back_as_it_was(folder: SweepFolder) -> None:
    records = [not_ok("a", "failed", 'lone \udc80, "quoted" \\, é, \x00')]
    folder_of(folder.path, swept(cells="a"), records)
    assert read_records(folder, swept(cells="a")).records == tuple(records)


def test_a_cell_without_a_record_is_missing(folder: SweepFolder) -> None:
    folder_of(folder.path, swept(cells="ab"), [made("a")])
    folder.cell("b").mkdir()
    stored = read_records(folder, swept(cells="abc"))
    assert (stored.missing, stored.damaged) == (("b", "c"), ())


WHOLE = made("a", 8 * GIB).to_json()
DAMAGED: dict[str, str | bytes] = {
    "empty": "",
    "cut off": WHOLE[: len(WHOLE) // 2],
    "no JSON": "Killed",
    "no mapping": "[]",
    "no text": b"\xff\xfe\x00",
    "no id": '{"sweep": "s", "status": "ok"}',
    "unknown status": '{"id": "a", "sweep": "s", "status": "fine"}',
    "another cell's": made("z").to_json(),
    "a number as text": '{"id": "a", "sweep": "s", "status": "ok", "memory": {"peak_allocated_bytes": "much"}}',
    "a truth value as a number": '{"id": "a", "sweep": "s", "status": "ok", "speed": {"mfu": true}}',
    "null for a section": '{"id": "a", "sweep": "s", "status": "ok", "memory": null}',
    "NaN": '{"id": "a", "sweep": "s", "status": "ok", "speed": {"mfu": NaN}}',
    "infinity": '{"id": "a", "sweep": "s", "status": "ok", "environment": {"x": 1e999}}',
    "nested without end": "[" * 100_000,
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_record_is_set_aside_and_named(folder: SweepFolder, content: str | bytes) -> None:
    path = put(folder, "a", content)
    stored = read_records(folder, swept(cells="a"))
    aside = path.with_name("record.json.damaged-1")
    assert (stored.records, stored.missing, stored.damaged) == ((), ("a",), (aside,))
    assert aside.read_bytes() == (content if isinstance(content, bytes) else content.encode())
    assert not path.exists()


def test_a_second_damaged_record_does_not_replace_the_first(folder: SweepFolder) -> None:
    for content in ("first", "second"):
        put(folder, "a", content)
        stored = read_records(folder, swept(cells="a"))
    assert names_in(folder.cell("a")) == ["record.json.damaged-1", "record.json.damaged-2"]
    assert [path.read_text() for path in stored.damaged] == ["first", "second"]


def test_a_damaged_record_is_named_until_the_cell_has_run_again(folder: SweepFolder) -> None:
    put(folder, "a", "half")
    read_records(folder, swept(cells="a"))
    assert len(read_records(folder, swept(cells="a")).damaged) == 1
    write_record(folder.record("a"), made("a"))
    stored = read_records(folder, swept(cells="a"))
    assert (len(stored.records), stored.damaged) == (1, ())


def test_keys_of_a_newer_version_do_not_damage_a_record(folder: SweepFolder) -> None:
    data = json.loads(WHOLE) | {"energy_joules": 5}
    put(folder, "a", json.dumps(data))
    assert read_records(folder, swept(cells="a")).records[0].memory.peak_allocated_bytes == 8 * GIB


def test_a_write_that_breaks_leaves_the_old_file_and_nothing_else(
    folder: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_atomically(folder.table_md, "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"table\.md") as caught:
        write_atomically(folder.table_md, "new")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(folder.table_md))
    assert names_in(folder.path) == ["table.md"]
    assert folder.table_md.read_text() == "old"


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    folder: SweepFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    write_atomically(folder.table_md, "old")
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(folder.table_md, "new")
    assert (names_in(folder.path), folder.table_md.read_text()) == (["table.md"], "old")


def test_content_is_on_the_disk_before_it_takes_its_name(folder: SweepFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, bool]] = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: seen.append((os.fstat(descriptor).st_size, folder.table_md.exists()))
    )
    write_atomically(folder.table_md, "12345")
    assert seen == [(5, False)]


def test_a_missing_folder_is_an_error_that_names_the_file_asked_for(folder: SweepFolder) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write_record(folder.record("a"), made("a"))
    assert caught.value.filename == str(folder.record("a"))


def test_nan_is_refused_before_any_file_is_touched(folder: SweepFolder) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_record(folder.path / "record.json", made("a", rate=float("nan")))
    assert names_in(folder.path) == []


def run_report(path: Path) -> tuple[int, str]:
    console = Console(file=io.StringIO(), width=100)
    code = report(path, console)
    return code, console.file.getvalue()  # type: ignore[attr-defined]


def test_report_rebuilds_every_table_from_the_json_files(folder: SweepFolder) -> None:
    sweep, records = two_by_two()
    folder_of(folder.path, sweep, records)
    code, text = run_report(folder.path)
    assert code == 0
    assert "8.00 GiB" in text
    assert "OOM in backward of step 1" in text
    assert names_in(folder.path) == ["cells", "records.jsonl", "report.html", "sweep.json", "table.csv", "table.md"]
    assert len(folder.records_jsonl.read_text().splitlines()) == 4
    first = folder.table_md.read_bytes(), folder.table_csv.read_bytes()
    run_report(folder.path)
    assert (folder.table_md.read_bytes(), folder.table_csv.read_bytes()) == first


def test_report_names_missing_and_damaged_cells(folder: SweepFolder) -> None:
    sweep, records = two_by_two()
    folder_of(folder.path, sweep, records[:3])
    put(folder, "d", "half")
    _, text = run_report(folder.path)
    assert "Not run yet: 1 of 4 cells (d)" in text
    assert "cells/d/record.json.damaged-1" in text


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("nothing_here", "does not exist. Type: memexp report results/NAME"),
        (".", "holds 1 sweep. Type, for the newest: memexp report {root}/good"),
        ("empty", "has no sweep.json"),
        ("good/table.md", "Type: memexp report {root}/good"),
        ("good/cells", "Type: memexp report {root}/good"),
        ("damaged", "sweep.json is damaged"),
    ],
)
def test_report_on_what_is_no_sweep_is_one_line(tmp_path: Path, given: str, says: str) -> None:
    for name in ("good/cells", "empty", "damaged"):
        (tmp_path / name).mkdir(parents=True)
    write_sweep(SweepFolder(tmp_path / "good"), two_by_two()[0])
    (tmp_path / "good" / "table.md").touch()
    if given == "damaged":
        (tmp_path / "damaged" / "sweep.json").write_text('{"name": 5}')
    with pytest.raises(PlanError) as error:
        run_report(tmp_path / given)
    text = str(error.value)
    assert len(text.splitlines()) == 1
    assert says.format(root=tmp_path) in text
