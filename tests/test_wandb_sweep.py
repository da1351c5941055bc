"""Case C14 over a real sweep: one W&B run a cell, offline, whose metrics are those of the records."""

import pytest
from sweeping import Swept, sweep, write_rows
from wandb_files import read_runs

pytestmark = pytest.mark.usefixtures("warm_cells")


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    folder = tmp_path_factory.mktemp("wandb_sweep")
    rows = write_rows(folder / "rows.jsonl")
    return sweep(
        folder / "results", "-m", "packing=none,bfd", "offload=false,true", "data=jsonl", f"data.path={rows}",
        "steps=2", "unmeasured_steps=1", "max_length=16", "batch_size=2", "logger.project=ours",
        "logger.tags=[tuesday]",
    )  # fmt: skip


def test_every_cell_is_a_run_of_its_own(swept: Swept) -> None:
    assert swept.folder is not None
    runs = read_runs(swept.folder)
    assert len(runs) == 4
    assert len({run.run.run_id for run in runs}) == 4
    assert {run.run.job_type for run in runs} == {"cell"}
    assert {run.run.project for run in runs} == {"ours"}
    assert {run.run.run_group for run in runs} == {swept.folder.name}
    assert {run.run.display_name for run in runs} == {record["cell"] for record in swept.records}
    assert all("tuesday" in run.run.tags for run in runs)


def test_a_runs_numbers_are_the_records(swept: Swept) -> None:
    assert swept.folder is not None
    runs = {run.run.display_name: run for run in read_runs(swept.folder)}
    for record in swept.records:
        run = runs[record["cell"]]
        assert run.summary["memory"]["peak_allocated_bytes"] == record["memory"]["peak_allocated_bytes"]
        losses = [row["train/loss"] for row in run.history if "train/loss" in row]
        assert losses == record["loss"]["per_step"]
        assert run.config["trainer"]["args"]["pad_to_multiple_of"] is None
