"""Case C5: the allocator's settings of a cell are those that its process runs under, whatever the shell has."""

from pathlib import Path

import pytest
from sweeping import sweep, write_rows

pytestmark = pytest.mark.usefixtures("warm_cells")
SHORT = ("steps=1", "unmeasured_steps=0", "max_length=16", "batch_size=2", "logger=none")


@pytest.mark.parametrize("isolation", ["warm", "fresh"])
def test_each_cell_runs_under_its_own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: str) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False")
    rows = write_rows(tmp_path / "rows.jsonl")
    result = sweep(
        tmp_path / "results", "-m", "allocator=expandable,default", f"isolation={isolation}", "data=jsonl",
        f"data.path={rows}", *SHORT,
    )  # fmt: skip
    settings = {option: record["effective"]["allocator"] for option, record in result.by("allocator").items()}
    assert settings == {"expandable": "expandable_segments:True", "default": None}
    for record in result.records:
        allocator = record["environment"]["allocator"]
        assert allocator["effective"] == record["effective"]["allocator"]
        assert allocator["inherited"]["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:False"
    assert all(record["effective"]["fell_back"] == [] for record in result.records)


def test_other_settings_reach_the_job(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl")
    result = sweep(
        tmp_path / "results", "allocator.conf='max_split_size_mb:128,garbage_collection_threshold:0.8'", "data=jsonl",
        f"data.path={rows}", *SHORT,
    )  # fmt: skip
    assert result.records[0]["effective"]["allocator"] == "max_split_size_mb:128,garbage_collection_threshold:0.8"


def test_two_names_that_disagree_are_reported_with_the_winner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    result = sweep(tmp_path, "--dry-run")
    assert "torch takes PYTORCH_CUDA_ALLOC_CONF" in result.out


def test_two_names_that_agree_are_not_a_conflict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert "torch takes" not in sweep(tmp_path, "--dry-run").out


@pytest.mark.parametrize("conf", ["expandable_segment:True", "expandable_segments:maybe"])
def test_a_misspelt_key_or_a_bad_value_starts_nothing(tmp_path: Path, conf: str) -> None:
    result = sweep(tmp_path, "-m", "packing=none,bfd", f"allocator.conf='{conf}'")
    assert result.code == 2
    assert "allocator.conf=" in result.err
    assert list(tmp_path.iterdir()) == []
