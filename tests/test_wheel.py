"""The wheel carries all that it runs on: unpacked away from the checkout, it does the same job."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_wheel_holds_every_config_sweep_and_asset(unpacked: Path) -> None:
    for shipped, where in (("conf", "memexp/conf"), ("sweeps", "memexp/sweeps"), ("memexp/assets", "memexp/assets")):
        there = {path.relative_to(ROOT / shipped) for path in (ROOT / shipped).rglob("*") if path.is_file()}
        assert there
        assert there <= {path.relative_to(unpacked / where) for path in (unpacked / where).rglob("*")}


def test_the_wheel_holds_no_test_and_no_result(unpacked: Path) -> None:
    assert {path.name for path in unpacked.iterdir() if path.suffix != ".dist-info"} == {"memexp", "hydra_plugins"}


def test_a_sweep_that_ships_runs_away_from_the_checkout(unpacked: Path, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "MEMEXP_WARM_SERVER"}
    environment["PYTHONPATH"] = str(unpacked)
    where = subprocess.run(
        [sys.executable, "-c", "import memexp; print(memexp.__file__)"],
        cwd=tmp_path, env=environment, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert where.startswith(str(unpacked))
    subprocess.run(
        [sys.executable, "-m", "memexp", "-cn", "sweeps/main", "backend=cpu", "sweep=main",
         "steps=1", "unmeasured_steps=0", "max_length=64", "batch_size=1", "logger=none"],
        cwd=tmp_path, env=environment, check=True, capture_output=True,
    )  # fmt: skip
    records = [json.loads(line) for line in (tmp_path / "results/main/records.jsonl").read_text().splitlines()]
    assert [record["status"] for record in records] == ["refused", "ok", "refused", "ok"]
    assert records[1]["environment"]["commit"] is None
