"""One bad cell does not sink the sweep: case C2, with faults that come from a model's own code."""

import json
import os
from pathlib import Path

import pytest
from faulty_model import write_faulty_model, write_sound_model
from processes import is_running, times_begin_when, wait_until
from sweeping import Swept, sweep

from tools.quick_cells import quick_server

pytestmark = pytest.mark.usefixtures("warm_cells")
STATUSES = {
    "sound": "ok",
    "raises": "failed",
    "exits": "failed",
    "is_killed": "killed",
    "runs_out_of_memory": "oom",
    "segfaults": "killed",
    "fills_the_host": "oom",
    "fills_the_disk": "failed",
}
# The last three end a process as the first ones do: under another launcher they would show the same again.
MODELS = {"basic": tuple(STATUSES), "joblib": tuple(STATUSES)[:5]}
SHORT = ("steps=1", "unmeasured_steps=1", "max_length=32", "batch_size=2", "logger=none")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    sound = write_sound_model(folder / "sound")
    return {
        "sound": sound,
        **{fault: write_faulty_model(folder / fault, sound, fault) for fault in STATUSES if fault != "sound"},
    }


def sweep_models(results: Path, models: list[Path], *more: str) -> Swept:
    paths = ",".join(f"'{path}'" for path in models)
    return sweep(
        results, "-m", "model=tiny", "model.weights=pretrained", f"model.path={paths}",
        "model.trust_remote_code=true", *SHORT, *more,
    )  # fmt: skip


@pytest.fixture(scope="module", params=MODELS)
def swept(request: pytest.FixtureRequest, models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Swept:
    launcher = [f"hydra/launcher={request.param}"] if request.param == "joblib" else []
    results = tmp_path_factory.mktemp(f"faults_{request.param}")
    return sweep_models(results, [models[name] for name in MODELS[request.param]], *launcher)


@pytest.fixture(scope="module")
def alone(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """Without the cells that break."""
    return sweep_models(tmp_path_factory.mktemp("alone"), [models["sound"], models["runs_out_of_memory"]])


def of(swept: Swept, model: str) -> list[dict]:
    return [record for record in swept.records if Path(record["choices"]["model.path"]).name == model]


def test_every_cell_has_its_row(swept: Swept) -> None:
    statuses = {Path(record["choices"]["model.path"]).name: record["status"] for record in swept.records}
    assert statuses == {model: STATUSES[model] for model in statuses}
    assert tuple(statuses) in MODELS.values()
    assert len(swept.rows) == len(statuses)


REASONS = {
    "raises": ("ArithmeticError: the model cannot count",),
    "exits": ("code 3",),
    "is_killed": ("SIGKILL",),
    "segfaults": ("SIGSEGV",),
    "fills_the_host": ("can't allocate memory",),
    "fills_the_disk": ("File too large", "exited with code 1"),
}


def test_the_reason_is_in_the_row(swept: Swept) -> None:
    for fault, said in REASONS.items():
        for record in of(swept, fault):
            assert any(words in record["reason"] for words in said), fault


@pytest.mark.parametrize("swept", ["basic"], indirect=True)
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


def test_the_neighbours_are_as_they_would_be_alone(swept: Swept, alone: Swept) -> None:
    for before, after in zip(of(alone, "sound"), of(swept, "sound"), strict=True):
        assert before["loss"]["per_step"] == after["loss"]["per_step"]
        assert before["memory"]["peak_allocated_bytes"] == after["memory"]["peak_allocated_bytes"]


def test_an_oom_alone_is_a_result_and_exits_with_0(alone: Swept) -> None:
    assert {record["status"] for record in alone.records} == {"ok", "oom"}
    assert alone.code == 0


def test_a_cell_that_hangs_is_ended_with_all_it_started_and_is_a_row(tmp_path: Path) -> None:
    def children() -> list[int]:
        return [int(said) for path in tmp_path.rglob("child") if (said := path.read_text())]

    with quick_server({0: "hangs"}), times_begin_when(lambda: bool(children())):
        result = sweep(tmp_path, "logger=none", "timeout_seconds=0.1")
        assert len(children()) == 1
        wait_until(lambda: not any(map(is_running, children())))
    (record,) = result.records
    assert record["status"] == "timeout"
    assert "timeout_seconds=0.1" in record["reason"]
    assert result.code == 1


def test_a_worker_whose_parent_died_while_it_imported_trains_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    from memexp.run import worker

    monkeypatch.setattr(worker.ctypes, "CDLL", lambda _: None)  # or this process would end with its own parent
    worker._end_with_parent(os.getppid())
    with pytest.raises(SystemExit, match="is gone"):
        worker._end_with_parent(os.getpid())


def test_without_trust_a_models_own_code_never_runs(models: dict[str, Path], tmp_path: Path) -> None:
    result = sweep(tmp_path, "model=tiny", "model.weights=pretrained", f"model.path={models['exits']}", *SHORT)
    (record,) = result.records
    assert record["status"] in ("failed", "refused")
    assert "trust_remote_code" in json.dumps(record)
