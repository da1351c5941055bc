"""The sweeps that ship, and the tables that stand in results/reference: held to their files, to a brute-force search of
the raw JSON, and to a cell that is run again.
"""

import itertools
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from sweeping import sweep

from memexp.cli import main
from memexp.plan.conf import sweeps_dir
from memexp.simulate.cards import CARDS

REFERENCE = Path(__file__).parents[1] / "results" / "reference"
SWEEPS = sorted(path.stem for path in sweeps_dir().glob("*.yaml"))
REFERENCES = sorted(path.name for path in REFERENCE.iterdir() if path.is_dir())
GIB = 2**30


def file(name: str) -> str:
    return (sweeps_dir() / f"{name}.yaml").read_text()


def params(name: str) -> dict[str, list[str]]:
    """The axes of a sweep file and their options, as its YAML has them."""
    listed = yaml.safe_load(file(name))["hydra"]["sweeper"]["params"]
    return {axis: str(options).split(",") for axis, options in listed.items()}


def records(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (REFERENCE / name / "records.jsonl").read_text().splitlines()]


# ---- the files


def test_every_section_of_the_techniques_has_a_sweep() -> None:
    sections = {"max_length", "packing", "peft", "quantization", "padding_free", "offload", "pad_to_multiple_of",
                "allocator", "ds3_gather", "vllm_sleep", "checkpointing", "attention"}  # fmt: skip
    assert sections <= {axis for name in SWEEPS for axis in params(name) if axis == name}


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_plans_and_says_its_command_and_what_it_shows(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"#   python -m memexp -cn sweeps/{name}\n# Shows: " in file(name)
    # A reference has the whole grid, which another test holds against the file: one cell of those will do.
    pinned = {axis: options[-1:] for axis, options in params(name).items()} if name in REFERENCES else {}
    typed = [f"{axis}={option}" for axis, (option,) in pinned.items()]
    assert main(["-cn", f"sweeps/{name}", "--dry-run", "backend=simulate", *typed]) == 0
    said = capsys.readouterr().out
    for options in itertools.product(*(pinned or params(name)).values()):
        assert " ".join(f"{axis}={text}" for axis, text in zip(params(name), options, strict=True)) in said


def test_a_cells_replay_command_is_that_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Weights that are not there make each cell a refused row, on any machine: nothing is trained here.
    nowhere = ["checkpointing=none", "model.weights=pretrained", "model.path=/nowhere", "backend=simulate"]
    assert main(["-cn", "sweeps/quantization", *nowhere, "logger=none", f"results_dir={tmp_path}"]) == 0
    (folder,) = tmp_path.iterdir()
    last = json.loads((folder / "records.jsonl").read_text().splitlines()[-1])
    capsys.readouterr()
    assert main([*shlex.split(last["environment"]["replay"])[3:], "--dry-run"]) == 0
    assert capsys.readouterr().out.split()[0] == last["id"]


# ---- the reference


def test_there_is_a_reference_of_the_main_sweep_and_of_no_other_than_ships() -> None:
    assert {"main", "everything_on_sft"} <= set(REFERENCES) <= set(SWEEPS)


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_is_whole_and_of_the_grid_in_its_file(name: str) -> None:
    folder = REFERENCE / name
    made = json.loads((folder / "sweep.json").read_text())
    assert [axis["name"] for axis in made["axes"]] == list(params(name))
    assert [record["id"] for record in records(name)] == made["cells"]
    assert len(made["cells"]) == len(list(itertools.product(*params(name).values())))
    for record in records(name):
        assert json.loads((folder / "cells" / record["id"] / "record.json").read_text()) == record
        assert (folder / "cells" / record["id"] / "plan.json").is_file()
    assert (folder / "table.md").is_file() and (folder / "table.csv").is_file()


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_tells_no_path_of_the_machine_that_made_it(name: str) -> None:
    for path in (REFERENCE / name).rglob("*"):
        if path.suffix in (".json", ".jsonl", ".md", ".csv"):
            assert not re.search(r"""["'\s=:(]/\w""", path.read_text()), path


@pytest.mark.parametrize("size", [16, 24, 40, 80])
@pytest.mark.parametrize("name", REFERENCES)
def test_a_recommendation_is_what_a_brute_force_search_of_the_raw_records_finds(
    name: str, size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    is_sft = ["--where", "trainer=sft"] if "trainer" in params(name) else []
    assert main(["recommend", str(REFERENCE / name), "--memory", f"{size}GiB", *is_sft]) == 0
    answer = capsys.readouterr().out.partition("\n\nFor ")[2].split("\n\n")[1].splitlines()[0]
    best = brute_force([record for record in records(name) if record["choices"]["trainer"] == "sft"], size)
    if best is None:
        assert answer.startswith("Nothing fits")
    else:
        assert answer == " ".join(f"{axis}={best['choices'][axis]}" for axis in params(name))


def brute_force(found: list[dict[str, Any]], size: int) -> dict[str, Any] | None:
    """The fastest whose reserved peak in any phase, and the largest context of any card, leave 8% of the card free."""
    context = max(card.context_bytes for card in CARDS.values())
    ok = [record for record in found if record["status"] == "ok"]
    best = None
    for record in ok:
        reserved = max(phase["peak_reserved_bytes"] for phase in record["memory"]["phases"].values())
        if reserved + context > 0.92 * size * GIB or record["effective"]["fell_back"]:
            continue
        if record["data"]["kept_tokens"] < 0.95 * ok[0]["data"]["kept_tokens"]:
            continue
        rate = record["speed"]["real_tokens_per_second"]
        if best is None or rate > best["speed"]["real_tokens_per_second"]:
            best = record
    return best


def test_a_cell_that_is_run_again_agrees_with_its_reference(
    tmp_path: Path, warm_cells: None, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = {"precision": "bf16_weights", "optimizer": "adamw_fused"}
    typed = [f"{axis}={option}" for axis, option in cell.items()]
    again = sweep(tmp_path, "-cn", "sweeps/precision_and_optimizer", *typed, "backend=simulate", "logger=none")
    (now,) = again.records
    (before,) = [r for r in records("precision_and_optimizer") if cell.items() <= r["choices"].items()]
    for field in ("peak_allocated_bytes", "peak_reserved_bytes", "worst_case_peak_allocated_bytes"):
        assert now["memory"][field] == pytest.approx(before["memory"][field], rel=0.01)
    assert main(["report", str(again.folder), "--since", str(REFERENCE / "precision_and_optimizer"), "--fail"]) == 0
    assert "1 of 1 cells as before" in capsys.readouterr().out
