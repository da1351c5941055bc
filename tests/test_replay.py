"""A cell runs again from its plan.json, and says whether it came out as before; a plan from elsewhere is only data."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_records import GIB, made, not_ok
from sweeping import sweep, write_rows

from memexp.cli import main
from memexp.plan import conf, load
from memexp.plan.plan import work_id
from memexp.results.record import Data, Loss, Record
from memexp.results.replayed import replayed, replayed_lines
from memexp.run.elsewhere import plan_from_elsewhere

pytestmark = pytest.mark.usefixtures("warm_cells")


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one cell that trained two steps of the tiny model on the CPU."""
    folder = tmp_path_factory.mktemp("replay")
    rows = write_rows(folder / "rows.jsonl")
    ran = sweep(folder / "r", "data=jsonl", f"data.path={rows}", "max_length=16", "batch_size=2", "packing=bfd",
                "steps=1", "unmeasured_steps=1", "logger=none")  # fmt: skip
    assert ran.code == 0 and ran.folder is not None
    return next((ran.folder / "cells").iterdir())


@pytest.fixture
def copy(cell: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(cell, tmp_path / "cell"))


def replay(folder: Path, results: Path) -> int:
    return main(["run", "--replay", str(folder / "plan.json"), f"results_dir={results}"])


def test_a_cell_on_the_cpu_matches_to_the_last_digit(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(copy, tmp_path / "r") == 0
    out = capsys.readouterr().out
    before, (after,) = json.loads((copy / "record.json").read_text()), (tmp_path / "r").glob("*/cells/*/record.json")
    assert json.loads(after.read_text())["loss"]["per_step"] == before["loss"]["per_step"]
    assert f"Matches: 2 losses to the last digit, {before['data']['real_tokens']} real tokens, peaks to the byte" in out


def test_a_plan_without_a_record_is_run_and_nothing_is_claimed(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / "record.json").unlink()
    assert replay(copy, tmp_path / "r") == 0
    assert "Nothing to match" in capsys.readouterr().out


# ---- the comparison


def ran(**fields: Any) -> Record:
    loss = Loss(per_step=fields.pop("losses", (2.0, 1.5)))
    data = Data(real_tokens=fields.pop("tokens", 100))
    return made("a", fields.pop("peak", GIB), loss=loss, data=data, rate=fields.pop("rate", 100.0), **fields)


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (ran(losses=(2.0, 1.5000001)), "losses differ from step 2 on, at most 1e-07 apart"),
        (ran(losses=(2.0,)), "2 losses before, 1 now"),
        (ran(losses=(2.0, None)), "losses differ from step 2 on, at most 0 apart"),
        (ran(tokens=99), "real tokens 100 before, 99 now"),
        (ran(peak=1.02 * GIB), "peak allocated 1.00 GiB before, 1.02 GiB now (+2.0%)"),
        (not_ok("a", "oom"), "it was ok, and is OOM now"),
    ],
)
def test_what_does_not_match_is_said(after: Record, said: str) -> None:
    found = replayed(ran(), after)
    assert not found.matches
    assert said in next(replayed_lines(found))


def test_speed_and_versions_are_remarks_and_no_mismatch() -> None:
    before, after = (
        replace(ran(rate=rate), environment={"versions": {"torch": torch}})
        for rate, torch in ((100.0, "2.12"), (70.0, "2.13"))
    )
    found = replayed(before, after)
    assert found.matches
    assert list(replayed_lines(found))[1:] == [
        "  speed is another: real tokens/s 100 before, 70.0 now (-30.0%)",
        "  the environment is another: torch 2.12 before, 2.13 now",
    ]


def test_the_same_failure_matches() -> None:
    assert replayed(not_ok("a", "oom"), not_ok("a", "oom")).matches


# ---- plans from elsewhere


def changed(plan: dict[str, Any], keys: str, value: Any) -> None:
    """Set one value of a plan and give it the id that goes with it, as whoever forges a plan would."""
    *path, last = keys.split("/")
    place = plan
    for key in path:
        place = place[key]
    place[last] = value
    plan["id"] = work_id(plan["work"])


HOSTILE: list[tuple[str, Any, str]] = [
    ("work/trainer/trainer_class", "os.system", "trainer_class=os.system"),
    ("work/trainer/trainer_class", "trl.DPOTrainer", "trainer=sft has trl.SFTTrainer"),
    ("work/trainer/config_class", "subprocess.Popen", "config_class=subprocess.Popen"),
    ("work/trainer/name", "../../etc", "trainer=../../etc"),
    ("work/trainer/reward", "os.system", "reward=os.system"),
    ("work/trainer/args/push_to_hub", True, "push_to_hub=True"),
    ("work/trainer/args/output_dir", "/etc", "output_dir=/etc"),
    ("work/trainer/args/deepspeed", "/tmp/x.json", "deepspeed=/tmp/x.json"),
    ("work/trainer/args/nonsense", 1, "no such argument"),
    ("work/env/LD_PRELOAD", "/tmp/evil.so", "env.LD_PRELOAD"),
    ("work/env/PYTORCH_ALLOC_CONF", "backend:evil", "PYTORCH_ALLOC_CONF"),
    ("work/model/trust_remote_code", True, "has code of its own"),
    ("work/model/kwargs/attn_implementation", "evil/kernel", "attn_implementation=evil/kernel"),
    ("work/model/kwargs/quantization_config", "x", "quantization_config=x"),
    ("work/model/weights", "stolen", "weights=stolen"),
    ("work/model/model_type", "a.b", "none that a configuration"),
    ("work/backend", "quantum", "backend=quantum"),
    ("work/gpu", "../../x", "gpu=../../x"),
    ("work/processes", 10**9, "processes=1000000000"),
    ("work/seed", -1, "seed=-1"),
    ("work/data/kind", "pickle", "kind=pickle"),
    ("work/data/path", "/nowhere.jsonl", "data.path=/nowhere.jsonl"),
    ("work/data/sha256", "00", "its contents differ"),
    ("work/peft", {"base_model_name_or_path": "evil"}, "base_model_name_or_path"),
    ("work/trainer/args", "rm -rf", "this is no plan"),
    ("isolation", "none", "isolation=none"),
    ("timeout_seconds", -1, "timeout_seconds=-1"),
]


def refused(folder: Path, results: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a replay ends in, nothing started."""
    assert replay(folder, results) == 2
    assert not results.exists()
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


@pytest.mark.parametrize(("keys", "value", "said"), HOSTILE, ids=[f"{keys}={value}" for keys, value, _ in HOSTILE])
def test_a_hostile_plan_is_one_line_and_runs_nothing(
    copy: Path, tmp_path: Path, keys: str, value: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = json.loads((copy / "plan.json").read_text())
    changed(plan, keys, value)
    (copy / "plan.json").write_text(json.dumps(plan))
    assert said in refused(copy, tmp_path / "r", capsys)


def missing(path: Path) -> None:
    path.unlink()


def half(path: Path) -> None:
    path.write_text(path.read_text()[:200])


def binary(path: Path) -> None:
    path.write_bytes(b"\x80\x04pickle")


def edited(path: Path) -> None:
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))


@pytest.mark.parametrize("damage", [missing, half, binary, edited])
def test_a_damaged_plan_is_one_line(
    copy: Path, tmp_path: Path, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    damage(copy / "plan.json")
    assert "--replay" in refused(copy, tmp_path / "r", capsys)


def test_a_record_of_another_cell_is_nothing_to_match(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = json.loads((copy / "record.json").read_text())
    (copy / "record.json").write_text(json.dumps({**record, "id": "another"}))
    assert "the record of another cell" in refused(copy, tmp_path / "r", capsys)


@pytest.mark.parametrize(
    "typed", [["--replay"], ["--replay", "x", "packing=bfd"], ["--replay", "x", "results_dir=r", "steps=3"]]
)
def test_a_replay_takes_a_plan_and_no_options(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *typed]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("group", "name"),
    [(group, name) for group, names in conf.groups().items() for name in names if group not in conf.STRUCTURE],
)
def test_a_plan_of_any_option_may_come_from_elsewhere(group: str, name: str, tmp_path: Path) -> None:
    trainer = (conf.option(group, name).get("trainers") or ["sft"])[0]
    (tmp_path / "plan.json").write_text(load("backend=cpu", f"trainer={trainer}", f"{group}={name}").to_json())
    assert plan_from_elsewhere(tmp_path / "plan.json").choices[group] == ("fp32" if name == "auto" else name)
