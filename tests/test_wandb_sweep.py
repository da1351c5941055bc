"""Case C14 over a real sweep: one W&B run a cell and one summary, offline, whose metrics are those of the records."""

import json
from typing import Any

import pytest
from sweeping import Swept, sweep, write_rows
from wandb_files import OfflineRun, read_runs

pytestmark = pytest.mark.usefixtures("warm_cells")

ARGUMENTS = (
    "-m", "packing=none,bfd", "offload=false,true", "data=jsonl", "steps=2", "unmeasured_steps=1", "max_length=16",
    "batch_size=2", "logger=wandb_offline", "logger.project=ours", "logger.tags=[tuesday]",
)  # fmt: skip


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    folder = tmp_path_factory.mktemp("wandb_sweep")
    rows = write_rows(folder / "rows.jsonl")
    return sweep(folder / "results", *ARGUMENTS, f"data.path={rows}")


def runs_of(swept: Swept, job_type: str) -> list[OfflineRun]:
    assert swept.folder is not None
    return [run for run in read_runs(swept.folder) if run.run.job_type == job_type]


def test_every_cell_is_a_run_of_its_own_and_the_sweep_has_one_summary(swept: Swept) -> None:
    assert swept.folder is not None
    assert len(list(swept.folder.glob("wandb/*run-*"))) == 5
    assert len({run.run.run_id for run in read_runs(swept.folder)}) == 5
    assert len(runs_of(swept, "summary")) == 1
    runs = runs_of(swept, "cell")
    assert len(runs) == 4
    assert {run.run.project for run in runs} == {"ours"}
    assert {run.run.run_group for run in runs} == {swept.folder.name}
    assert {run.run.display_name for run in runs} == {record["cell"] for record in swept.records}
    assert all("tuesday" in run.run.tags for run in runs)


def test_a_runs_numbers_are_the_records(swept: Swept) -> None:
    runs = {run.run.display_name: run for run in runs_of(swept, "cell")}
    for record in swept.records:
        run = runs[record["cell"]]
        assert run.summary["memory"]["peak_allocated_bytes"] == record["memory"]["peak_allocated_bytes"]
        losses = [row["train/loss"] for row in run.history if "train/loss" in row]
        assert losses == record["loss"]["per_step"]
        assert run.config["trainer"]["args"]["pad_to_multiple_of"] is None


def media(run: OfflineRun, key: str) -> Any:
    """What was logged as a table or a page under this key, read from the run's own files."""
    (path,) = [row[f"{key}.path"] for row in run.history if f"{key}.path" in row]
    text = (run.folder / "files" / path).read_text(encoding="utf-8")
    return json.loads(text) if path.endswith(".json") else text


def test_the_summary_holds_the_table_the_effects_and_the_page_with_the_charts(swept: Swept) -> None:
    assert swept.folder is not None
    (run,) = runs_of(swept, "summary")
    assert (run.run.project, run.run.run_group) == ("ours", swept.folder.name)
    assert run.config["axes"] == {"packing": ["none", "bfd"], "offload": ["false", "true"]}
    cells = media(run, "cells")
    rows = [dict(zip(cells["columns"], row, strict=True)) for row in cells["data"]]
    assert [row["peak_allocated_bytes"] for row in rows] == [
        record["memory"]["peak_allocated_bytes"] for record in swept.records
    ]
    assert [row["packing"] for row in rows] == ["none", "none", "bfd", "bfd"]
    effects = media(run, "effects")
    assert {row[effects["columns"].index("axis")] for row in effects["data"]} == {"packing", "offload"}
    assert media(run, "report") == (swept.folder / "report.html").read_text(encoding="utf-8")
    assert (run.summary["status"]["ok"], run.summary["status"]["refused"]) == (2, 2)
    assert run.exit_code == 0


def test_running_the_sweep_again_writes_no_run_twice(swept: Swept) -> None:
    assert swept.folder is not None
    before = {path: path.stat().st_mtime_ns for path in swept.folder.glob("wandb/*run-*/*.wandb")}
    rows = swept.folder.parents[1] / "rows.jsonl"
    again = sweep(swept.folder.parent, *ARGUMENTS, f"data.path={rows}", f"sweep={swept.folder.name}")
    assert again.code == 0
    assert {path: path.stat().st_mtime_ns for path in swept.folder.glob("wandb/*run-*/*.wandb")} == before
