"""`make gpu-check`: the comparison on records made by hand, a dry run of the script, and the packages it carries."""

import gzip
import importlib.metadata
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from memexp.results.record import Memory, Record, Speed
from memexp.simulate.traces import replay
from tools import gpu_check, gpu_wheels
from tools.gpu_check import compare


def record(allocated: int | None, step: float | None = 1.0, status: str = "ok") -> Record:
    memory = Memory(peak_allocated_bytes=allocated, peak_reserved_bytes=allocated)
    return Record("a", "s", status, cell="packing=bfd", memory=memory, speed=Speed(median_step_seconds=step))


def test_differences_are_of_the_measured_value() -> None:
    lines = compare([(record(101), record(100)), (record(97, 2.0), record(100))])
    assert "allocated +1.00%" in lines[0]
    assert "allocated -3.00%" in lines[1]
    assert "step +100.00%" in lines[1]
    assert lines[2] == "allocated: median 2.00%, 95th 3.00%, worst 3.00% of 2 cells"


def test_a_false_fit_is_shouted() -> None:
    (line, *_) = compare([(record(100), record(None, None, "oom"))])
    assert "PREDICTED ok, WAS oom" in line
    assert "allocated -" in line


def test_a_dry_run_predicts_compares_and_keeps_traces_without_frames(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same prediction on both sides: no difference. What is kept of the allocator replays address by address."""
    tiny = ["model=tiny", "batch_size=2", "max_length=128", "allocator=default,expandable"]
    monkeypatch.setattr(gpu_check, "SWEEPS", {"tiny": tiny})
    assert gpu_check.main(["--dry-run", "--out", str(tmp_path / "results"), "--only", "tiny"]) == 0
    out = capfd.readouterr().out
    assert "reserved: median 0.00%, 95th 0.00%, worst 0.00% of 2 cells" in out
    default, expandable = (
        read(tmp_path / "reference" / "tiny" / f"{cell}.json.gz") for cell in ids(tmp_path / "results")
    )
    assert "frames" not in json.dumps([default, expandable])
    assert any(action == "segment_map" for action, *_ in expandable["device_traces"][0])
    replayed = replay(default)
    assert (replayed.mismatch, replayed.allocations > 1000) == (None, True)


def test_what_takes_too_long_is_left_out_by_name(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_check, "SWEEPS", {"tiny": ["model=tiny"]})
    assert gpu_check.main(["--dry-run", "--out", str(tmp_path / "results"), "--only", "tiny", "--minutes", "0"]) == 1
    assert "tiny: left out, there was no time for it" in capfd.readouterr().out


@pytest.mark.parametrize(("package", "pure"), [("trl", True), ("peft", True), ("torch", False), ("numpy", False)])
def test_packages_with_compiled_parts_stay_behind(package: str, pure: bool) -> None:
    assert gpu_wheels.is_pure(importlib.metadata.distribution(package)) is pure


def test_unpacked_wheels_are_found_by_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "carried-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("carried/__init__.py", "VALUE = 7\n")
        wheel.writestr("carried-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: carried\nVersion: 1.0\n")
    assert gpu_wheels.main(["unpack", str(folder)]) == 0
    place = capsys.readouterr().out.strip()
    code = "import carried, importlib.metadata as m; print(carried.VALUE, m.version('carried'))"
    done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": place}, capture_output=True, text=True)
    assert done.stdout.split() == ["7", "1.0"]
    assert gpu_wheels.main(["unpack", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out.strip() == ""


def read(path: Path) -> Any:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)


def ids(results: Path) -> list[str]:
    """In grid order: default, expandable."""
    lines = (results / "tiny_measured" / "records.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["id"] for line in lines]
