"""A sweep against an earlier one: what is held to how much, and what cannot be compared."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_records import GIB, PACKING, folder_of, made, not_ok

from memexp.cli import main
from memexp.results.record import Record
from memexp.results.since import Since, since, since_lines
from memexp.results.sweep import Sweep


def cell(plan_id: str, packing: str, peak: float = 10.0, rate: float = 1000.0, **fields: Any) -> Record:
    return made(plan_id, peak * GIB, rate=rate, cell=f"packing={packing}", choices={"packing": packing}, **fields)


def compared(before: Record, now: Record) -> Since:
    return since([before], [now])


@pytest.mark.parametrize(
    ("peak", "rate", "moved"),
    [
        (10.0, 1000.0, []),
        (10.099, 1149.0, []),
        (9.901, 851.0, []),
        (10.11, 1000.0, ["memory.peak_allocated_bytes"]),
        (9.89, 1000.0, ["memory.peak_allocated_bytes"]),
        (10.0, 1151.0, ["speed.real_tokens_per_second"]),
        (10.0, 849.0, ["speed.real_tokens_per_second"]),
    ],
)
def test_memory_is_held_to_1_percent_and_speed_to_15(peak: float, rate: float, moved: list[str]) -> None:
    found = compared(cell("a", "none"), cell("a", "none", peak, rate))
    assert [difference.field for difference in found.pairs[0].moved] == moved
    assert found.agrees == (not moved)


def test_a_number_that_is_known_on_one_side_only_has_moved() -> None:
    found = compared(cell("a", "none"), cell("a", "none", reserved=11 * GIB))
    assert str(found.pairs[0].moved[0]) == "peak reserved unknown before, 11.00 GiB now"


def test_another_outcome_is_a_change_and_the_same_failure_is_none() -> None:
    oom = not_ok("a", "oom", cell="packing=none", choices={"packing": "none"})
    assert not compared(cell("a", "none"), oom).agrees
    assert "- packing=none: ok before, OOM now" in list(since_lines(compared(cell("a", "none"), oom), "x"))
    assert compared(oom, oom).agrees


def test_cells_with_other_ids_are_the_same_by_their_choices() -> None:
    assert compared(cell("old", "bfd"), cell("new", "bfd")).agrees


def test_a_commit_is_as_long_as_people_read_it() -> None:
    before, now = (cell("a", "none", environment={"commit": digit * 40}) for digit in "ab")
    assert "- Every cell: commit aaaaaaaa before, bbbbbbbb now" in list(since_lines(compared(before, now), "x"))


def test_cells_without_a_partner_are_named_and_do_not_agree() -> None:
    found = since([cell("a", "none"), cell("b", "bfd")], [cell("a", "none"), cell("c", "wrapped")])
    lines = list(since_lines(found, "friday"))
    assert lines[0] == "Since friday: 1 of 1 cells as before (memory within 1%, speed within 15%)"
    assert lines[1:] == ["- Only here: packing=wrapped", "- Only there: packing=bfd"]
    assert not since([cell("a", "none")], [cell("c", "bfd")]).agrees


def test_nothing_in_common_is_said_to_be_so_and_fails_only_where_asked_to(
    now: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = stored(tmp_path / "other", [cell("c", "wrapped")])
    assert main(["report", str(now), "--since", str(other)]) == 0
    said = capsys.readouterr().out
    assert f"No cell in common with {other}: nothing to compare" in said
    assert "- Only there: packing=wrapped" in said and "0 of 0" not in said
    assert main(["report", str(now), "--since", str(other), "--fail"]) == 1


def test_versions_that_differ_are_named_once() -> None:
    before, now = (
        [
            replace(record, environment={"versions": {"trl": trl, "torch": "2.13.0"}, "gpu": "H100"})
            for record in (cell("a", "none"), cell("b", "bfd"))
        ]
        for trl in ("1.15.0", "1.16.0")
    )
    assert list(since_lines(since(before, now), "x"))[1:] == ["- Every cell: trl 1.15.0 before, 1.16.0 now"]


# ---- the command


def stored(folder: Path, records: Sequence[Record]) -> Path:
    return folder_of(folder, Sweep("made", (PACKING,), tuple(record.id for record in records)), records).path


@pytest.fixture
def now(tmp_path: Path) -> Path:
    return stored(tmp_path / "now", [cell("a", "none"), cell("b", "bfd")])


def test_report_says_what_moved_and_fails_only_where_asked_to(
    now: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    earlier = stored(tmp_path / "then", [cell("a", "none"), cell("b", "bfd", peak=8.0)])
    assert main(["report", str(now), "--since", str(earlier)]) == 0
    assert "- packing=bfd: peak allocated 8.00 GiB before, 10.00 GiB now (+25.0%)" in capsys.readouterr().out
    assert main(["report", str(now), "--since", str(earlier), "--fail"]) == 1
    assert main(["report", str(now), "--since", str(now), "--fail"]) == 0


def test_an_earlier_sweep_may_be_its_records_alone(
    now: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference" / "records.jsonl").write_text(cell("a", "none").to_json() + "\n")
    assert main(["report", str(now), "--since", str(tmp_path / "reference"), "--fail"]) == 0
    assert "1 of 1 cells as before" in capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "{}",
        '{"id": "a", "sweep": "s", "status": "ok", "memory": {"peak_allocated_bytes": "9"}}',
        '{"id": "a", "sweep": "s", "status": "fine"}',
        '{"id": "a", "sweep": "s", "status": "ok", "speed": {"real_tokens_per_second": NaN}}',
        "[" * 100_000,
    ],
    ids=["half", "list", "empty", "text for bytes", "unknown status", "nan", "deep"],
)
def test_a_damaged_line_is_named(now: Path, tmp_path: Path, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "records.jsonl").write_text(f"{cell('a', 'none').to_json()}\n{line}\n")
    assert main(["report", str(now), "--since", str(tmp_path / "records.jsonl")]) == 2
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert "line 2 is no record" in said


@pytest.mark.parametrize("other", ["nowhere", "now/cells/a"])
def test_what_is_no_sweep_is_one_line(now: Path, other: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(now), "--since", str(now.parent / other)]) == 2
    (said,) = capsys.readouterr().err.strip().splitlines()
    assert other in said
