"""W&B: one run a cell, made from its record, in a process that no cell depends on."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf
from processes import is_running, wait_until
from wandb_files import OfflineRun, read_runs

from memexp.results.record import Loss, Memory, Record, Speed
from memexp.secrets import secrets_in, without_secrets
from memexp.tracking.contents import exit_code, history, run_tags
from memexp.tracking.exporter import Exporter, Settings
from memexp.tracking.marks import run_id

LOGGERS = Path(__file__).parents[1] / "conf" / "logger"
API_KEY = "0123456789abcdef0123456789abcdef01234567"
CELLS = {  # id: packing, offload, status, losses, seconds of the measured steps
    "c0": ("none", "false", "ok", (2.5, 2.25, 2.0), (0.5, 0.25)),
    "c1": ("none", "true", "ok", (2.5, 2.125, 1.75), (0.75, 0.5)),
    "c2": ("bfd", "false", "oom", (2.5,), ()),
    "c3": ("bfd", "true", "failed", (), ()),
}

# Stands for a machine without a network, and writes down what Python wanted of one.
NO_NETWORK = """
import os, socket
connect, look_up = socket.socket.connect, socket.getaddrinfo
def refuse(host):
    if host not in ("localhost", "127.0.0.1", "::1"):
        with open(os.environ["NETWORK_LOG"], "a") as log:
            log.write(f"{host}\\n")
        raise OSError("no network in this test")
def guarded_connect(self, address):
    if self.family != socket.AF_UNIX:
        refuse(address[0])
    return connect(self, address)
def guarded_look_up(host, *more, **named):
    refuse(host)
    return look_up(host, *more, **named)
socket.socket.connect, socket.getaddrinfo = guarded_connect, guarded_look_up
open(os.environ["NETWORK_LOG"], "a").close()
"""

# FAULT is "<place> <what happens there>"; it strikes the cell named "first" only. What hangs cannot be interrupted.
FAKE_WANDB = """
import os, pathlib, time
place_of_fault, fault = os.environ["FAULT"].split()
here = pathlib.Path(__file__).parent
(here / "pid").write_text(str(os.getpid()))
(here / "reports").write_text(os.environ.get("WANDB_ERROR_REPORTING", "true"))
def pass_through(place, name="first"):
    if (place, name) != (place_of_fault, "first"):
        return
    if fault == "raises":
        raise RuntimeError(f"{place} is broken")
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            time.sleep(end - time.monotonic())
        except TimeoutError:
            if fault == "waits":
                raise
    (here / "was_waited_for").touch()
class Settings:
    def __init__(self, **settings): pass
class Run:
    url = "https://wandb.example/run"
    summary = {}
    def __init__(self, name): self.name = name
    def define_metric(self, *names, **how): pass
    def log(self, row, step): pass_through("log", self.name)
    def finish(self, exit_code): pass_through("finish", self.name)
def init(*, name, **more):
    pass_through("init", name)
    return Run(name)
def teardown(): pass
pass_through("import")
"""


def make_record(plan_id: str, folder: Path) -> Record:
    packing, offload, status, losses, seconds = CELLS[plan_id]
    steps = tuple(
        {
            "step": step,
            "phase": "warmup" if step == 0 else "measured",
            "peak_allocated_bytes": 2**40 + step,
            "peak_reserved_bytes": None,
        }
        for step in range(len(losses))
    )
    return Record(
        id=plan_id,
        sweep=folder.name,
        status=status,
        cell=f"packing={packing} offload={offload}",
        choices={"model": "tiny", "packing": packing, "offload": offload, "max_length": 1024},
        memory=Memory(peak_allocated_bytes=2**40 + len(losses), per_step=steps),
        speed=Speed(step_seconds=seconds, median_step_seconds=seconds[0] if seconds else None),
        loss=Loss(per_step=losses),
        environment={"versions": {"torch": "2.13.0"}},
    )


def save(record: Record, folder: Path) -> Path:
    path = folder / "cells" / record.id / "record.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(record.to_json())
    return path


def export(settings: Settings, records: list[Record], config: Any = None) -> list[str]:
    exporter = Exporter(settings)
    for record in records:
        exporter.cell_done(save(record, Path(settings.folder)), {} if config is None else config(record))
    return exporter.close()


def config_of(record: Record) -> Any:
    """As Hydra holds it, with an interpolation that only the whole config can resolve."""
    return OmegaConf.create(
        {
            "packing": record.choices["packing"],
            "steps": 5,
            "budget": {"tokens": None, "steps": "${steps}"},
            "peft": {"r": 8, "target_modules": ["q_proj", "v_proj"], "dropout": None},
            "note": f"my key is {API_KEY}",
        }
    )


@pytest.fixture(autouse=True)
def without_the_users_own_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)


@dataclasses.dataclass
class Swept:
    folder: Path
    records: list[Record]
    problems: list[str]
    wanted_hosts: list[str]
    runs: list[OfflineRun]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """A sweep of four cells, exported offline by a process that has a key and no network.

    W&B's service is no Python, so it is watched at the proxy that it is told to use.
    """
    folder, guard = tmp_path_factory.mktemp("sweep"), tmp_path_factory.mktemp("guard")
    (guard / "sitecustomize.py").write_text(NO_NETWORK)
    records = [make_record(plan_id, folder) for plan_id in CELLS]
    with pytest.MonkeyPatch.context() as patch, socket.create_server(("127.0.0.1", 0)) as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY"):
            patch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        patch.setenv("PYTHONPATH", str(guard))
        patch.setenv("NETWORK_LOG", str(guard / "hosts"))
        patch.setenv("WANDB_API_KEY", API_KEY)
        # Left over from runs of the user's own: cells would land in them, or lose their project and id.
        for name in ("WANDB_RUN_ID", "WANDB_NAME", "WANDB_PROJECT", "WANDB_RUN_GROUP", "WANDB_SWEEP_ID"):
            patch.setenv(name, "mine")
        settings = Settings(folder=str(folder), project="memory", group="ablation", tags=("mine",))
        problems = export(settings, records, config_of)
        wanted_hosts = (guard / "hosts").read_text().split()
        proxy.setblocking(False)
        with suppress(BlockingIOError):
            wanted_hosts.append(proxy.accept()[0].recv(100).decode())
    return Swept(folder, records, problems, wanted_hosts, read_runs(folder))


def test_each_cell_is_one_run_with_its_own_id_and_name(swept: Swept) -> None:
    assert swept.problems == []
    assert [run.run.display_name for run in swept.runs] == sorted(record.cell for record in swept.records)
    assert len({run.run.run_id for run in swept.runs}) == len(list(swept.folder.glob("wandb/*run-*"))) == 4


def test_the_runs_of_a_sweep_share_project_group_and_job_type(swept: Swept) -> None:
    shared = {(run.run.project, run.run.run_group, run.run.job_type) for run in swept.runs}
    assert shared == {("memory", "ablation", "cell")}


def test_a_run_is_tagged_with_the_techniques_that_are_on(swept: Swept) -> None:
    tags = {run.run.display_name: sorted(run.run.tags) for run in swept.runs}
    assert tags["packing=none offload=false"] == ["mine"]
    assert tags["packing=bfd offload=true"] == ["mine", "offload=true", "packing=bfd"]


def test_a_runs_config_is_its_own_and_stays_nested_with_lists_and_nulls(swept: Swept) -> None:
    for run in swept.runs:
        assert run.config == {
            "packing": "bfd" if "bfd" in run.run.display_name else "none",
            "steps": 5,
            "budget": {"tokens": None, "steps": 5},
            "peft": {"r": 8, "target_modules": ["q_proj", "v_proj"], "dropout": None},
            "note": "my key is ***",
        }


def test_a_runs_summary_is_its_record(swept: Swept) -> None:
    summaries = {run.run.display_name: run.summary for run in swept.runs}
    assert summaries == {record.cell: json.loads(record.to_json()) for record in swept.records}


def test_a_runs_history_holds_memory_loss_and_seconds_of_each_step(swept: Swept) -> None:
    run = next(run for run in swept.runs if run.run.display_name == "packing=none offload=true")
    columns = {name: [row.get(f"train/{name}") for row in run.history] for name in ("step", "loss", "step_seconds")}
    assert columns == {"step": [0, 1, 2], "loss": [2.5, 2.125, 1.75], "step_seconds": [None, 0.75, 0.5]}
    assert [row["train/peak_allocated_bytes"] for row in run.history] == [2**40, 2**40 + 1, 2**40 + 2]
    assert not any("train/peak_reserved_bytes" in row for row in run.history)


def test_only_the_run_of_a_broken_cell_ends_with_an_error(swept: Swept) -> None:
    assert {run.summary["status"]: run.exit_code for run in swept.runs} == {"ok": 0, "oom": 0, "failed": 1}


def test_an_offline_export_asks_for_no_network(swept: Swept) -> None:
    assert swept.wanted_hosts == []


def test_a_key_is_in_no_file_of_the_sweep(swept: Swept) -> None:
    files = [path for path in swept.folder.rglob("*") if path.is_file()]
    assert len(files) > len(swept.records)
    assert [path for path in files if API_KEY.encode() in path.read_bytes()] == []


def test_exporting_again_writes_only_a_changed_record_again_and_under_its_id(swept: Swept) -> None:
    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in swept.folder.glob("wandb/*run-*/*.wandb")}

    before, failed = content(), swept.records[3]
    resumed = [*swept.records[:3], dataclasses.replace(failed, status="ok", reason=None)]
    assert export(Settings(folder=str(swept.folder)), resumed, config_of) == []

    runs = read_runs(swept.folder)
    assert {run.run.run_id for run in runs} == {run.run.run_id for run in swept.runs}
    assert {run.run.display_name: run.exit_code for run in runs}[failed.cell] == 0
    unchanged = {path: data for path, data in before.items() if path in content()}
    assert len(runs) == 4 and len(unchanged) == 3 and unchanged.items() <= content().items()


def test_a_group_changed_between_two_sweeps_of_one_session_is_the_second_sweeps(
    swept: Swept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_RUN_GROUP", "group of the second")
    assert export(Settings(folder=str(tmp_path)), [make_record("c0", tmp_path)]) == []
    (run,) = read_runs(tmp_path)
    assert run.run.run_group == "group of the second"
    assert run.run.run_id not in {other.run.run_id for other in swept.runs}


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a wandb in the exporter's way that breaks as told, and returns the folder of that package."""

    def install(fault: str) -> Path:
        package = tmp_path / "packages" / "wandb"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(FAKE_WANDB)
        monkeypatch.setenv("PYTHONPATH", str(package.parent))
        monkeypatch.setenv("FAULT", fault)
        return package

    return install


def two_cells(folder: Path) -> list[Record]:
    return [dataclasses.replace(make_record(id_, folder), cell=cell) for id_, cell in (("c0", "first"), ("c1", "next"))]


@pytest.mark.parametrize("place", ["init", "log", "finish"])
@pytest.mark.parametrize("fault", ["raises", "waits"])
def test_a_run_that_breaks_is_told_and_does_not_stop_the_next(
    place: str, fault: str, faulty: Callable[[str], Path], tmp_path: Path
) -> None:
    faulty(f"{place} {fault}")
    exporter = Exporter(Settings(folder=str(tmp_path), timeout_seconds=1))
    first, following = (save(record, tmp_path) for record in two_cells(tmp_path))
    exporter.cell_done(first, {})
    exporter.cell_done(following, {})
    wait_until(following.with_name("wandb.json").exists)
    (line,) = exporter.close()
    assert line.startswith(f"W&B: 1 of 2 runs were not written (see {tmp_path / 'wandb' / 'export.log'})")
    assert ("init is broken".replace("init", place) if fault == "raises" else "took longer than 1 s") in line
    assert not first.with_name("wandb.json").exists()


@pytest.mark.parametrize("place", ["import", "init", "log", "finish"])
def test_a_wandb_that_hangs_holds_up_neither_the_sweep_nor_its_end(
    place: str, faulty: Callable[[str], Path], tmp_path: Path
) -> None:
    package = faulty(f"{place} hangs")
    more_than_a_pipe_holds = {"text": "x" * 2**20}
    exporter = Exporter(Settings(folder=str(tmp_path), timeout_seconds=0.5))
    wait_until((package / "pid").exists)
    for record in two_cells(tmp_path):
        exporter.cell_done(save(record, tmp_path), more_than_a_pipe_holds)
    (line,) = exporter.close()
    assert exporter.close() == [line]
    assert "2 of 2 runs were not written" in line and "did not end within 0.5 s" in line
    assert not is_running(int((package / "pid").read_text()))
    assert not (package / "was_waited_for").exists()


def test_a_wandb_that_cannot_be_imported_is_one_line_that_says_what_to_type(
    faulty: Callable[[str], Path], tmp_path: Path
) -> None:
    faulty("import raises")
    (line,) = export(Settings(folder=str(tmp_path)), two_cells(tmp_path))
    assert "2 of 2 runs were not written" in line and "import is broken" in line
    assert "pip install wandb" in line and "logger=none" in line


def test_a_folder_of_earlier_runs_is_not_taken_for_the_package(faulty: Callable[[str], Path], tmp_path: Path) -> None:
    (faulty("import raises") / "__init__.py").write_text("")
    (line,) = export(Settings(folder=str(tmp_path)), two_cells(tmp_path))
    assert "the package wandb is not installed" in line


def test_the_exporter_dies_with_its_parent(faulty: Callable[[str], Path], tmp_path: Path) -> None:
    package = faulty("import hangs")
    parent = (
        "import os, pathlib, sys, time\n"
        "from memexp.tracking.exporter import Exporter, Settings\n"
        "exporter = Exporter(Settings(folder=sys.argv[1], timeout_seconds=60))\n"
        "while not pathlib.Path(sys.argv[2], 'pid').exists(): time.sleep(0.05)\n"
        "os._exit(0)"
    )
    here = str(Path(__file__).parents[1])
    subprocess.run([sys.executable, "-c", parent, str(tmp_path), str(package)], cwd=here, check=True, timeout=60)
    pid = int((package / "pid").read_text())
    wait_until(lambda: not is_running(pid))
    assert not (package / "was_waited_for").exists()


def test_an_offline_sweep_of_any_length_turns_off_the_reports_that_wandb_sends_once_a_minute(
    faulty: Callable[[str], Path], tmp_path: Path
) -> None:
    package = faulty("none raises")
    export(Settings(folder=str(tmp_path)), [])
    assert (package / "reports").read_text() == "false"
    export(Settings(folder=str(tmp_path), mode="online"), [])
    assert (package / "reports").read_text() == "true"


def test_an_online_export_says_where_its_runs_are_and_how_to_upload_what_is_left(
    faulty: Callable[[str], Path], tmp_path: Path
) -> None:
    faulty("finish raises")
    (tmp_path / "wandb" / "run-20260101_000000-abc").mkdir(parents=True)
    lines = export(Settings(folder=str(tmp_path), mode="online"), two_cells(tmp_path))
    assert any("1 of 2 runs are online, the last one at https://wandb.example/run" in line for line in lines)
    assert any(f"wandb sync {tmp_path}/wandb/*run-*" in line for line in lines)


def test_a_config_that_cannot_be_read_costs_the_config_and_not_the_run(
    faulty: Callable[[str], Path], tmp_path: Path
) -> None:
    faulty("none raises")
    (line,) = export(Settings(folder=str(tmp_path)), two_cells(tmp_path)[:1], lambda _: {("a", "b"): 1})
    assert "the run of c0 has no config" in line
    assert (tmp_path / "cells" / "c0" / "wandb.json").exists()


def test_a_summary_that_cannot_be_made_is_told_and_leaves_the_runs_of_cells(
    faulty: Callable[[str], Path], tmp_path: Path
) -> None:
    faulty("none raises")
    exporter = Exporter(Settings(folder=str(tmp_path)))
    exporter.cell_done(save(make_record("c0", tmp_path), tmp_path), {})
    exporter.sweep_done()
    (line,) = exporter.close()
    assert "1 of 2 runs were not written" in line and "sweep.json" in line
    assert (tmp_path / "cells" / "c0" / "wandb.json").exists()


@pytest.mark.parametrize(("setting", "variable"), [("disabled", "offline"), ("offline", "disabled")])
def test_disabled_starts_nothing_whichever_side_says_so(
    setting: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", variable)
    assert export(Settings(folder=str(tmp_path), mode=setting), two_cells(tmp_path)) == []
    assert not (tmp_path / "wandb").exists()


def test_a_wrong_mode_is_told_and_costs_no_cell(tmp_path: Path) -> None:
    (line,) = export(Settings(folder=str(tmp_path), mode="offlien"), two_cells(tmp_path))
    assert "'offlien' is not one of offline, online, disabled" in line


def test_the_users_variables_stand_below_the_group_and_above_the_mode_of_the_settings(tmp_path: Path) -> None:
    environment = {"WANDB_MODE": "online", "WANDB_RUN_GROUP": "mine"}
    settings = Settings(folder=str(tmp_path / "ablation"))
    assert dataclasses.replace(settings, group="asked").resolved(environment).group == "asked"
    assert (settings.resolved(environment).mode, settings.resolved(environment).group) == ("online", "mine")
    assert (settings.resolved({}).mode, settings.resolved({}).group) == ("offline", "ablation")


def test_the_parents_side_leaves_wandb_alone() -> None:
    program = "import sys, memexp.tracking.exporter; sys.exit('wandb' in sys.modules or 'torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[1], check=True, timeout=60)


@pytest.mark.parametrize(("logger", "mode"), [("wandb_offline", "offline"), ("wandb", "online"), ("none", "disabled")])
def test_each_logger_option_fills_the_settings(logger: str, mode: str) -> None:
    option = yaml.safe_load((LOGGERS / f"{logger}.yaml").read_text())
    assert option.keys() | {"folder"} == {field.name for field in dataclasses.fields(Settings)}
    assert Settings.from_dict({**option, "folder": "here"}) == Settings(folder="here", mode=mode)


def test_one_plan_has_one_id_in_a_sweep_and_another_in_the_next(tmp_path: Path) -> None:
    sweeps = [tmp_path / name for name in ("a", "b")]
    for sweep in sweeps:
        sweep.mkdir()
    ids = [run_id(sweep, plan) for sweep in sweeps for plan in ("c0", "c1")]
    assert len(set(ids)) == 4
    assert ids == [run_id(sweep, plan) for sweep in sweeps for plan in ("c0", "c1")]


def test_seconds_stand_at_the_last_trained_steps_and_a_worst_case_has_none() -> None:
    phases = ("warmup", "measured", "measured", "worst_case")
    record = Record(
        id="a",
        sweep="s",
        status="ok",
        memory=Memory(per_step=tuple({"step": step, "phase": phase} for step, phase in enumerate(phases, start=1))),
        speed=Speed(step_seconds=(0.5, 0.25)),
        loss=Loss(per_step=(3.0, None, 1.0)),
    )
    assert history(record) == [
        {"train/step": 1, "train/phase": "warmup", "train/loss": 3.0},
        {"train/step": 2, "train/phase": "measured", "train/step_seconds": 0.5},
        {"train/step": 3, "train/phase": "measured", "train/loss": 1.0, "train/step_seconds": 0.25},
        {"train/step": 4, "train/phase": "worst_case"},
    ]


@pytest.mark.parametrize(
    ("status", "code"), [("ok", 0), ("oom", 0), ("refused", 0), ("failed", 1), ("timeout", 1), ("killed", 1)]
)
def test_out_of_memory_and_refused_are_answers_and_not_errors(status: str, code: int) -> None:
    assert exit_code(Record(id="a", sweep="s", status=status)) == code


def test_a_tag_is_cut_where_wandb_would_refuse_the_run() -> None:
    assert run_tags(Record(id="a", sweep="s", status="ok"), ["x" * 80, "y", "y", ""]) == ("x" * 64, "y")


def test_a_key_is_hidden_wherever_it_stands_and_short_values_are_no_keys() -> None:
    secrets = secrets_in({"WANDB_API_KEY": API_KEY, "HF_TOKEN": "hf_12345678", "MY_TOKEN": "a", "HOME": "/home/me/x"})
    value = {"a": [f"url?key={API_KEY}", None, 1], "hf_12345678": "/home/me/x"}
    assert without_secrets(value, secrets) == {"a": ["url?key=***", None, 1], "***": "/home/me/x"}
