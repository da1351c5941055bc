"""One bad cell does not sink the sweep: case C2, with faults that come from a model's own code."""

import json
from pathlib import Path

import pytest
from faulty_model import write_faulty_model, write_sound_model
from sweeping import Swept, sweep

pytestmark = pytest.mark.usefixtures("warm_cells")
FAULTS = ("raises", "exits", "is_killed", "segfaults", "runs_out_of_memory", "fills_the_host", "fills_the_disk")
SHORT = ("steps=1", "unmeasured_steps=1", "max_length=32", "batch_size=2", "logger=none")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    sound = write_sound_model(folder / "sound")
    return {"sound": sound, **{fault: write_faulty_model(folder / fault, sound, fault) for fault in (*FAULTS, "hangs")}}


def sweep_models(results: Path, models: list[Path], *more: str) -> Swept:
    paths = ",".join(f"'{path}'" for path in models)
    return sweep(
        results, "-m", "model=tiny", "model.weights=pretrained", f"model.path={paths}",
        "model.trust_remote_code=true", *SHORT, *more,
    )  # fmt: skip


@pytest.fixture(scope="module", params=["basic", "joblib"])
def swept(request: pytest.FixtureRequest, models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Swept:
    launcher = [f"hydra/launcher={request.param}"] if request.param == "joblib" else []
    results = tmp_path_factory.mktemp(f"faults_{request.param}")
    return sweep_models(results, [models["sound"], *(models[fault] for fault in FAULTS)], *launcher)


def of(swept: Swept, model: str) -> list[dict]:
    return [record for record in swept.records if Path(record["choices"]["model.path"]).name == model]


def test_every_cell_has_its_row(swept: Swept) -> None:
    statuses = {model: {record["status"] for record in of(swept, model)} for model in ("sound", *FAULTS)}
    assert statuses == {
        "sound": {"ok"},
        "raises": {"failed"},
        "exits": {"failed"},
        "is_killed": {"killed"},
        "segfaults": {"killed"},
        "runs_out_of_memory": {"oom"},
        "fills_the_host": {"oom"},
        "fills_the_disk": {"failed"},
    }
    assert len(swept.rows) == 1 + len(FAULTS)


def test_the_reason_is_in_the_row(swept: Swept) -> None:
    reasons = {fault: of(swept, fault)[0]["reason"] for fault in FAULTS}
    assert "ArithmeticError: the model cannot count" in reasons["raises"]
    assert "code 3" in reasons["exits"]
    assert "SIGKILL" in reasons["is_killed"]
    assert "SIGSEGV" in reasons["segfaults"]
    assert "can't allocate memory" in reasons["fills_the_host"]
    assert "File too large" in reasons["fills_the_disk"] or "exited with code 1" in reasons["fills_the_disk"]


def test_memory_of_the_host_is_short_by_what_was_asked_for(swept: Swept) -> None:
    oom = of(swept, "fills_the_host")[0]["memory"]["oom"]
    assert oom["requested_bytes"] == 4 * 2**28
    assert oom["phase"] == "forward"


def test_an_oom_says_where_and_how_much_was_short(swept: Swept) -> None:
    oom = of(swept, "runs_out_of_memory")[0]["memory"]["oom"]
    assert oom["requested_bytes"] == 2 * 2**30
    assert oom["free_bytes"] == 512 * 2**20
    assert oom["short_bytes"] == 2 * 2**30 - 512 * 2**20
    assert (oom["phase"], oom["step"]) == ("forward", 1)


def test_the_traceback_is_in_the_cells_log(swept: Swept) -> None:
    assert swept.folder is not None
    log = (swept.folder / "cells" / of(swept, "raises")[0]["id"] / "log.txt").read_text()
    assert "Traceback" in log
    assert "the model cannot count" in log


def test_a_failure_is_printed_when_it_happens_and_the_exit_code_is_1(swept: Swept) -> None:
    assert swept.code == 1
    said = swept.out.split("table.md")[0]
    assert "ArithmeticError: the model cannot count" in said
    assert "Traceback" not in swept.out + swept.err


def test_the_neighbours_are_as_they_would_be_alone(swept: Swept, models: dict[str, Path], tmp_path: Path) -> None:
    alone = sweep_models(tmp_path, [models["sound"]])
    assert alone.code == 0
    for before, after in zip(of(alone, "sound"), of(swept, "sound"), strict=True):
        assert before["loss"]["per_step"] == after["loss"]["per_step"]
        assert before["memory"]["peak_allocated_bytes"] == after["memory"]["peak_allocated_bytes"]


def test_an_oom_alone_is_a_result_and_exits_with_0(models: dict[str, Path], tmp_path: Path) -> None:
    assert sweep_models(tmp_path, [models["runs_out_of_memory"]]).code == 0


def test_a_cell_that_hangs_is_ended_and_is_a_row(models: dict[str, Path], tmp_path: Path) -> None:
    result = sweep_models(tmp_path, [models["hangs"]], "timeout_seconds=6")
    (record,) = result.records
    assert record["status"] == "timeout"
    assert "timeout_seconds=6" in record["reason"]
    assert result.code == 1


def test_without_trust_a_models_own_code_never_runs(models: dict[str, Path], tmp_path: Path) -> None:
    result = sweep(tmp_path, "model=tiny", "model.weights=pretrained", f"model.path={models['exits']}", *SHORT)
    (record,) = result.records
    assert record["status"] in ("failed", "refused")
    assert "trust_remote_code" in json.dumps(record)
