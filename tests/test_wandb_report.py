"""A W&B Report of a sweep: its spec without a key or a network, and what is said of how to publish it."""

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import wandb
from made_records import folder_of, two_by_two

from memexp.cli import main
from memexp.tracking.exporter import Settings

GROUP = 'it\'s "ours"'
KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no netrc"))
    path = folder_of(tmp_path / "made", *two_by_two()).path
    (path / "wandb").mkdir()
    settings = Settings(folder=str(path), project="ours", entity="us", group=GROUP)
    (path / "wandb" / "export.json").write_text(settings.to_json())
    return path


def report(folder: Path) -> str:
    with redirect_stdout(StringIO()) as out:
        assert main(["report", str(folder), "--wandb-report"]) == 0
    return out.getvalue()


def values(spec: Any, key: str) -> list[Any]:
    """Everything that stands under this key, however deep."""
    if isinstance(spec, list):
        return [found for item in spec for found in values(item, key)]
    if not isinstance(spec, dict):
        return []
    return [spec[key] for _ in range(key in spec)] + [found for item in spec.values() for found in values(item, key)]


def test_without_a_key_the_spec_is_written_and_the_way_to_publish_it_is_said(folder: Path) -> None:
    said = report(folder)
    assert "there is no key of W&B here" in said
    assert "wandb login" in said and "wandb sync" in said and f"memexp report {folder} --wandb-report" in said
    spec = json.loads((folder / "wandb-report.json").read_text(encoding="utf-8"))
    assert (spec["projectName"], spec["entityName"]) == ("ours", "us")
    (runs,) = values(spec, "runSets")
    assert GROUP in values(runs, "value") and "cell" in values(runs, "value")
    (table,) = values(spec, "content")
    assert table == (folder / "table.md").read_text(encoding="utf-8")
    axes = {*values(spec, "xAxis"), *values(spec, "yAxis")}
    assert {"summary:memory.peak_allocated_bytes", "summary:speed.real_tokens_per_second"} <= axes


@pytest.mark.parametrize("mode", ["offline", "disabled"])
def test_a_mode_that_forbids_the_network_is_kept_with_a_key_too(
    mode: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", mode)
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert f"WANDB_MODE is {mode}" in report(folder)
    assert KEY not in (folder / "wandb-report.json").read_text(encoding="utf-8")


def test_a_report_that_cannot_be_published_is_written_and_the_reason_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> str:
        raise ConnectionError("no route to host")

    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setattr("memexp.tracking.wandb_report._publish", refused)
    assert "it was not published, because ConnectionError: no route to host" in report(folder)
    assert (folder / "wandb-report.json").exists()


def test_a_published_report_is_named_by_its_address_and_no_spec_is_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Settings] = []

    def publish(_: object, settings: Settings) -> str:
        asked.append(settings)
        return "https://wandb.example/report"

    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setattr("memexp.tracking.wandb_report._publish", publish)
    assert "the report is at https://wandb.example/report" in report(folder)
    assert asked[0].group == GROUP
    assert not (folder / "wandb-report.json").exists()


@pytest.mark.parametrize("host", ["api.wandb.ai", str(wandb.Settings().base_url).partition("://")[2]])
def test_a_key_that_was_logged_in_with_is_found(
    host: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text(f"machine {host} login user password {KEY}")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setattr("memexp.tracking.wandb_report._publish", lambda *_: "https://wandb.example/report")
    assert "the report is at" in report(folder)
