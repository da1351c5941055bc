"""Going on with a sweep: what runs again, what has changed meanwhile, and when there is no sense in going on."""

import json
from pathlib import Path

import pytest
from made_records import made
from sweeping import Swept, sweep

from memexp.plan.plan import PlanError
from memexp.plan.values import RERUN, rerun_choices
from memexp.results.record import STATUSES, Record
from memexp.results.software import differences, mixed
from memexp.run.fail_fast import FailFast
from memexp.run.resume import changed_since, stands
from tools.quick_cells import quick_server

GRID = ("-m", "seed=0,1,2,3", "logger=none", "sweep=mine", "isolation=warm")
NOW = {"versions": {"trl": "1.16.0", "torch": "2.13.0"}, "code": "aaaa"}


@pytest.fixture(scope="module")
def two_broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    """Four cells of which those of seed 1 and 2 break."""
    results = tmp_path_factory.mktemp("resume")
    with quick_server({1: "exits", 2: "raises"}):
        return results, sweep(results, *GRID, "fail_fast=false").records


def ran_again(before: list[dict], after: Swept) -> list[bool]:
    pairs = zip(before, after.records, strict=True)
    return [old["timing"]["wall_seconds"] != new["timing"]["wall_seconds"] for old, new in pairs]


def test_broken_cells_run_again_when_rerun_names_their_status(two_broken: tuple[Path, list[dict]]) -> None:
    results, before = two_broken
    assert [record["status"] for record in before] == ["ok", "failed", "failed", "ok"]
    same = sweep(results, *GRID, "fail_fast=false")
    assert ran_again(before, same) == [False] * 4
    with quick_server():
        after = sweep(results, *GRID, "rerun=failed,oom")
    assert ran_again(before, after) == [False, True, True, False]
    assert after.code == 0
    assert "rerun" not in (results / "mine" / "sweep.json").read_text()


def test_rerun_takes_every_status_and_changed_in_any_form() -> None:
    assert set(RERUN) == {*STATUSES, "changed"}
    assert rerun_choices("failed") == ("failed",)
    assert rerun_choices(["failed", "oom"]) == ("failed", "oom")
    assert rerun_choices([]) == ()
    with pytest.raises(PlanError, match="failde"):
        rerun_choices(["failde"])


def test_a_changed_library_or_changed_code_is_said_and_chosen_by_changed() -> None:
    record = made("a", environment=NOW)
    newer = {"versions": {"trl": "1.17.0", "torch": "2.13.0"}, "code": "bbbb"}
    said = changed_since([record, made("b", environment=newer)], newer)
    assert said is not None
    assert said.startswith("Changed since 1 finished cell ran: trl 1.16.0 (now 1.17.0) and memexp's code.")
    assert stands(record, (), newer)
    assert not stands(record, ("changed",), newer)
    assert stands(record, ("changed",), NOW)
    assert changed_since([record], NOW) is None


def test_what_an_older_record_does_not_state_is_no_change() -> None:
    assert differences({}, NOW) == ()
    assert differences({"versions": {"trl": "1.16.0"}}, NOW) == ()


def test_cells_of_several_versions_are_told_below_the_table() -> None:
    assert mixed([NOW, {**NOW, "versions": {"trl": "1.17.0", "torch": "2.13.0"}}]) == ("trl 1.16.0 and 1.17.0",)
    assert mixed([NOW, {**NOW, "code": "bbbb"}]) == ("memexp's code",)
    assert mixed([NOW, NOW, {}]) == ()


def test_a_sweep_whose_code_has_changed_says_so_when_it_goes_on(tmp_path: Path) -> None:
    with quick_server():
        first = sweep(tmp_path, *GRID).records
        path = tmp_path / "mine" / "cells" / first[0]["id"] / "record.json"
        record = json.loads(path.read_text())
        record["environment"]["versions"]["trl"] = "0.0.1"
        path.write_text(json.dumps(record))
        again = sweep(tmp_path, *GRID)
        assert "Changed since 1 finished cell ran: trl 0.0.1 (now " in again.out
        assert "Cells ran on different versions" in again.table
        changed = sweep(tmp_path, *GRID, "rerun=changed")
    assert ran_again(first, changed) == [True, False, False, False]
    assert "different versions" not in changed.table


def test_a_technique_that_is_new_since_is_no_other_sweep_where_it_is_off(tmp_path: Path) -> None:
    with quick_server():
        sweep(tmp_path, *GRID)
        path = tmp_path / "mine" / "sweep.json"
        older = json.loads(path.read_text())
        del older["fixed"]["offload"]
        path.write_text(json.dumps(older))
        assert sweep(tmp_path, *GRID).code == 0
        assert sweep(tmp_path, *GRID, "offload=true").code == 2


@pytest.mark.parametrize("jobs", [1, 2])
def test_identical_early_failure_stops_the_sweep_and_says_how_to_go_on(tmp_path: Path, jobs: int) -> None:
    grid = ("-m", "seed=0,1,2,3,4,5,6,7", "logger=none", "sweep=mine", f"jobs={jobs}")
    with quick_server({-1: "raises"}):
        stopped = sweep(tmp_path, *grid)
    assert stopped.code == 1
    # Those that had begun with the third are let to their end.
    assert 3 <= len(stopped.records) <= 2 + jobs
    assert "Stopped (fail_fast=auto): the first 3 cells all failed: exited with code 1" in stopped.out
    assert "cannot be counted" in stopped.out
    assert "Not run yet" in stopped.out
    assert "rerun=failed" in stopped.out
    assert f"{' '.join(grid[:3])}" in stopped.out


def test_cells_that_break_in_different_ways_stop_nothing(tmp_path: Path) -> None:
    with quick_server({0: "raises", 1: "exits", 2: "raises"}):
        assert len(sweep(tmp_path, *GRID).records) == 4


@pytest.mark.parametrize(("policy", "cells"), [("false", 4), ("true", 1)])
def test_fail_fast_true_stops_at_the_first_and_false_never(tmp_path: Path, policy: str, cells: int) -> None:
    with quick_server({-1: "raises"}):
        assert len(sweep(tmp_path, *GRID, f"fail_fast={policy}").records) == cells


def test_out_of_memory_is_an_answer_and_stops_nothing(tmp_path: Path) -> None:
    fail_fast = FailFast(tmp_path)
    for policy in ("auto", "true"):
        fail_fast.begin(policy)
        for _ in range(5):
            fail_fast.note(Record(id="a", sweep="s", status="oom", reason="out of memory"))
        assert fail_fast.reason_to_stop() is None


def test_reasons_that_differ_in_their_numbers_are_one_reason(tmp_path: Path) -> None:
    fail_fast = FailFast(tmp_path)
    fail_fast.begin("auto")
    for number in (16, 32, 64):
        fail_fast.note(Record(id="a", sweep="s", status="failed", reason=f"ValueError: batch of {number} rows"))
    assert "batch of 16 rows" in str(fail_fast.reason_to_stop())


def test_an_ok_cell_among_the_first_lets_the_sweep_go_on(tmp_path: Path) -> None:
    fail_fast = FailFast(tmp_path)
    fail_fast.begin("auto")
    for status in ("failed", "ok", "failed", "failed", "failed"):
        fail_fast.note(Record(id="a", sweep="s", status=status, reason="it broke"))
    assert fail_fast.reason_to_stop() is None
