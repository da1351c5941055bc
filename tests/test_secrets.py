"""Keys that lie in the environment get nowhere, and files from elsewhere are data: nothing that they name runs."""

import json
import os
from pathlib import Path

import pytest
import yaml
from faulty_model import write_faulty_model, write_sound_model
from made_records import made, swept
from sweeping import sweep

from memexp.cli import main
from memexp.plan import conf, load
from memexp.plan.plan import Plan, PlanError
from memexp.plan.trusted import check_class, check_environment, variables
from memexp.results.open import open_sweep
from memexp.results.store import read_records, write_sweep
from memexp.results.sweep import SweepFolder
from memexp.run.build import trainer_class
from memexp.run.environment import worker_environment
from memexp.secrets import is_secret, secrets_in, without_secrets

SHORT = ("steps=1", "unmeasured_steps=0", "max_length=16", "batch_size=1")
PLANTED = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HF_TOKEN": "hf_plantedplantedplanted",
    "AWS_ACCESS_KEY_ID": "AKIAPLANTED1234567",
    "AWS_SECRET_ACCESS_KEY": 'planted/with+signs"and\\quotes',
    "AWS_SESSION_TOKEN": "planted-session-token",
    "OPENAI_API_KEY": "sk-planted-planted",
    "MY_CLIENT_SECRET": "planted-client-secret",
    "DB_PASSWORD": "planted-password",
}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("name", PLANTED)
def test_variables_that_are_named_like_a_key_are_known(name: str) -> None:
    assert is_secret(name)
    assert is_secret(name.lower())


@pytest.mark.parametrize(
    "name",
    ["PATH", "HOME", "TOKENIZERS_PARALLELISM", "KEYBOARD", "PYTHONPATH", "MEMEXP_WARM_SERVER", "PYTORCH_ALLOC_CONF"],
)
def test_other_variables_are_no_keys(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("hub_token=hf_" + "aB3" * 11, "hub_token=***"),
        ("https://me:pass-word@host.org/a/b", "https://***@host.org/a/b"),
        ("AKIA" + "A1" * 8, "***"),
        ("ghp_" + "a" * 36 + " sk-proj-" + "b" * 40, "*** ***"),
    ],
)
def test_a_typed_key_is_told_by_its_shape(text: str, shown: str) -> None:
    assert without_secrets({text: [text]}, ()) == {shown: [shown]}


@pytest.mark.parametrize(
    "text", ["hf_hub_offline", "https://host.org/a@b", "0123456789abcdef" * 4, "a:b@c", "model.path=org/sk-model"]
)
def test_what_has_no_shape_of_a_key_is_left_as_it_is(text: str) -> None:
    assert without_secrets(text, ()) == text


def test_a_typed_key_is_in_no_file_and_in_nothing_printed(tmp_path: Path) -> None:
    typed = "https://me:" + "typed0typed0" + "@host.org/a"
    result = sweep(tmp_path, "-m", "seed=0,1", "model.weights=pretrained", f"model.path='{typed}'", "logger=none")
    assert {record["status"] for record in result.records} == {"refused"}
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"https://***@host.org/a" in written
    assert b"typed0" not in written
    assert "typed0" not in result.out + result.err


def test_a_path_that_exists_is_where_a_key_is_and_no_key(tmp_path: Path) -> None:
    assert secrets_in({"TLS_KEY": str(tmp_path), "A_KEY": "not-a-path-at-all"}) == ("not-a-path-at-all",)


def test_a_cell_gets_no_key_but_the_hubs_where_it_asks_the_hub() -> None:
    parent = {**PLANTED, "HOME": "/home/me"}
    assert not PLANTED.keys() & worker_environment(load("backend=cpu"), parent).keys()
    hub = load("backend=cpu", "model.weights=pretrained", "model.path=some/model")
    kept = PLANTED.keys() & worker_environment(hub, parent).keys()
    assert kept == {"HF_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}


def test_a_planted_key_is_in_no_file_of_the_sweep_and_in_nothing_printed(planted: None, tmp_path: Path) -> None:
    # A model whose own code prints its whole environment, and a user who types a key into an argument.
    sound = write_sound_model(tmp_path / "sound")
    talkative = write_faulty_model(tmp_path / "talkative", sound, "prints_its_environment")
    result = sweep(
        tmp_path / "results", "model=tiny", "model.weights=pretrained", f"model.path={talkative}", "isolation=fresh",
        "model.trust_remote_code=true", "logger=wandb_offline", *SHORT,
        f"logger.tags=[{PLANTED['OPENAI_API_KEY']}]", "trainer.args.dataset_text_field=${oc.env:MY_CLIENT_SECRET}",
    )  # fmt: skip
    assert result.records[0]["status"] == "ok"
    assert result.folder is not None
    files = [path for path in result.folder.rglob("*") if path.is_file()]
    assert "WHOLE ENVIRONMENT" in next(path for path in files if path.name == "log.txt").read_text()
    assert any(path.suffix == ".wandb" for path in files)
    written = {str(path): path.read_bytes() for path in files}
    for name, value in PLANTED.items():
        found = [path for path, content in written.items() if value.encode() in content]
        assert found == [], name
        assert json.dumps(value)[1:-1] not in "".join(c.decode(errors="replace") for c in written.values())
        assert value not in result.out + result.err


def test_a_model_with_code_of_its_own_is_not_trusted_unless_asked(tmp_path: Path) -> None:
    assert (
        load("backend=cpu", "model.weights=pretrained", "model.path=some/model").work.model.trust_remote_code is False
    )
    for name in conf.groups()["model"]:
        assert not conf.option("model", name).get("trust_remote_code")


def ran(marker: Path) -> str:
    return f"touch {marker}"


_HANDLER = "{version: 1, root: {handlers: [x]}, handlers: {x: {%s}}}"
CALLS_SOMETHING = {
    "a callback": "hydra: {callbacks: {x: {_target_: os.system, command: 'MARK'}}}",
    "a launcher": "hydra: {launcher: {_target_: os.system}}",
    "a sweeper": "hydra: {sweeper: {_target_: os.system}}",
    "a logging handler": "hydra: {job_logging: %s}" % (_HANDLER % "(): os.system, command: 'MARK'"),
    "a logging class": "hydra: {hydra_logging: %s}" % (_HANDLER % "class: subprocess.Popen, args: 'MARK'"),
    "an object in a value": "trainer: {args: {x: {_target_: os.system, command: 'MARK'}}}",
    "what logging looks up": "hydra: {job_logging: %s}"
    % (_HANDLER % "class: logging.StreamHandler, stream: 'ext://os.environ'"),
}


@pytest.mark.parametrize("written", CALLS_SOMETHING.values(), ids=CALLS_SOMETHING)
@pytest.mark.parametrize("multirun", [[], ["-m"]], ids=["single", "multirun"])
def test_a_config_file_from_elsewhere_calls_nothing(
    written: str, multirun: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marker = tmp_path / "it_ran"
    text = "defaults: [config, _self_]\n" + written.replace("MARK", ran(marker)) + "\n"
    (tmp_path / "theirs.yaml").write_text(text)
    code = main([*multirun, "-cd", str(tmp_path), "-cn", "theirs", "--dry-run", "backend=cpu"])
    said = capsys.readouterr()
    assert (code, len(said.err.splitlines())) == (2, 1)
    assert not marker.exists()


OPTIONS = {
    "a class that is none of TRL's": ("trainer", {"config_class": "subprocess.Popen"}, "no class of TRL's"),
    "a trainer that is none of TRL's": ("trainer", {"trainer_class": "os.system"}, "no class of TRL's"),
    "a library to be loaded first": ("offload", {"env": {"LD_PRELOAD": "/tmp/evil.so"}}, "env.LD_PRELOAD"),
    "where Python looks for modules": ("packing", {"env": {"PYTHONPATH": "/tmp/evil"}}, "env.PYTHONPATH"),
}


@pytest.mark.parametrize(("group", "sets", "said"), OPTIONS.values(), ids=OPTIONS)
def test_an_option_from_elsewhere_names_no_code_and_no_variable(
    group: str, sets: dict, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = {"trainer": "sft", "offload": "true", "packing": "bfd"}[group]
    (tmp_path / group).mkdir()
    (tmp_path / group / "theirs.yaml").write_text(yaml.safe_dump({**conf.option(group, base), **sets}))
    assert main(["-cd", str(tmp_path), f"{group}=theirs", "backend=cpu", "--dry-run"]) == 2
    assert said in capsys.readouterr().err


def test_a_plan_from_elsewhere_is_held_to_the_same_lists() -> None:
    plan = load("backend=cpu")
    data = plan.to_dict()
    data["work"]["trainer"]["trainer_class"] = "subprocess.Popen"
    with pytest.raises(PlanError, match="subprocess"):
        trainer_class(Plan.from_dict(data))
    data["work"]["env"] = {"LD_PRELOAD": "/tmp/evil.so"}
    with pytest.raises(PlanError, match="LD_PRELOAD"):
        worker_environment(Plan.from_dict(data), os.environ)


def test_the_lists_hold_what_ships_and_no_more() -> None:
    assert {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} <= set(variables())
    assert not [name for name in variables() if name.startswith(("LD_", "PYTHON", "PATH", "CUDA_INJECTION"))]
    check_environment(dict.fromkeys(variables(), "x"))
    for name in conf.groups()["trainer"]:
        check_class(conf.option("trainer", name)["config_class"])


@pytest.mark.parametrize("cell", ["../../elsewhere", "/etc", "a/b", "", ".", "..", "x" * 300, "a\nb", "a\0b"])
def test_a_sweep_file_from_elsewhere_names_no_cell_outside_its_folder(cell: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "record.json").write_text("somebody's own")
    folder = SweepFolder(tmp_path / "results" / "mine")
    folder.path.mkdir(parents=True)
    folder.sweep_json.write_text(json.dumps({**swept(cells="a").to_dict(), "cells": [cell]}))
    with pytest.raises(PlanError, match=r"sweep\.json is damaged"):
        open_sweep(folder.path)
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["record.json"]


def test_records_are_read_as_data(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    write_sweep(folder, swept(cells="a"))
    folder.cell("a").mkdir(parents=True)
    marker = tmp_path / "it_ran"
    text = (
        made("a")
        .to_json()
        .replace('"ok"', f'"ok", "environment": {{"__reduce__": "os.system(\'touch {marker}\')"}}', 1)
    )
    folder.record("a").write_text(text)
    read_records(folder, swept(cells="a"))
    assert not marker.exists()
