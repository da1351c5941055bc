"""The command line as a tired user types it: one clear line, the right exit code, and nothing started."""

import importlib
import os
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest
from hydra._internal.utils import get_args_parser
from processes import command_lines, wait_until
from sweeping import sweep

from memexp.cli import main
from memexp.hydra_arguments import prepare
from memexp.hydra_options import PLAIN, VALUED, VALUES


@pytest.mark.parametrize(
    "typed",
    [
        ["-m", "packing=bfd,wrapped"],
        ["packing=bfd,wrapped", "-m"],
        ["offload=true", "--multirun", "packing=bfd,wrapped"],
    ],
)
def test_multirun_may_stand_anywhere(typed: list[str]) -> None:
    assert prepare(typed)[0] == "-m"


def test_the_options_and_their_values_are_those_of_hydras_own_parser() -> None:
    # memexp has a version of its own, and runs cells again in another way.
    actions = [a for a in get_args_parser()._actions if not {*a.option_strings} & {"--version", "--experimental-rerun"}]
    takes_value = {flag: action.nargs != 0 for action in actions for flag in action.option_strings}
    assert takes_value == dict.fromkeys(PLAIN, False) | dict.fromkeys(VALUED, True)
    choices = {flag: tuple(action.choices) for action in actions if action.choices for flag in action.option_strings}
    assert choices == VALUES


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["packing=bfd,wrapped"], "add -m"),
        (["--packing", "bfd"], "Type packing=VALUE"),
        (["-x"], "--help"),
        (["packing"], "is no KEY=VALUE"),
        (["packin=bfd"], "Did you mean packing?"),
        (["reprot", "results"], "Did you mean report?"),
        (["report"], "memexp report --help"),
        (["report", "nowhere"], "report results/NAME"),
        (["-cd", "nowhere", "-m"], "no such folder"),
        (["-cn", "sweeps/nowhere", "-m"], "packing"),
        (["-cn", "nowhere"], "nowhere"),
        (["-cn", "packing", "-m"], "Did you mean -cn sweeps/packing?"),
        (["help"], "Did you mean --help?"),
        (["baseline=8", "--dry-run"], "names no axis of this sweep"),
        (["max_length=0"], "at least 1"),
        (["-m", "max_length=16,-5"], "at least 1"),
        (["data=jsonl", "data.path=nowhere.jsonl"], "data.path=nowhere.jsonl is not there"),
        (["model.weights=pretrained", "model.path=./nowhere"], "model.path=./nowhere is not there"),
        (["results_dir=/proc/nowhere"], "results_dir"),
        (["baseline=packing=none"], "baseline=packing=none"),
        (["data=lengths", "data.distribution=foo"], "lognormal"),
        (["-cn"], "a value is missing"),
        (["packing=bfd", "report"], "a command comes first"),
        (["packing=bfd", "--version"], "a command comes first"),
        (["--version=3"], "there is no such option"),
        (["-m=1", "packing=bfd"], "there is no such option"),
        (["-c=jbo"], "it shows one of job, hydra, all"),
        (["hydra/launcher=nowhere"], "hydra/launcher"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    typed: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(typed) == 2
    captured = capsys.readouterr()
    lines = (captured.out + captured.err).strip().splitlines()
    assert len(lines) == 1
    assert said in lines[0]
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_there_is_a_row_inside_a_sweep(tmp_path: Path) -> None:
    result = sweep(tmp_path, "-m", "data=jsonl", "data.path=/nowhere.jsonl,/elsewhere.jsonl", "logger=none")
    assert result.code == 0
    assert {record["reason_kind"] for record in result.records} == {"not_found"}


SWEEP_FILE = """
defaults: [config, _self_]
hydra:
  sweeper:
    params:
      packing: bfd,wrapped
      offload: true,false
      padding_free: [true, false]
"""


def test_a_sweep_file_takes_bare_booleans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text(SWEEP_FILE)
    assert main(["-m", "-cd", str(tmp_path), "-cn", "mine", "--dry-run", "backend=cpu"]) == 0
    out = capsys.readouterr().out
    assert "8 cells" in out
    assert "packing=wrapped offload=false padding_free=true" in out


def test_a_bare_boolean_in_a_defaults_list_says_to_quote_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [config, {override offload: true}, _self_]\n")
    assert main(["-cd", str(tmp_path), "-cn", "mine", "--dry-run"]) == 2
    assert 'offload: "true"' in capsys.readouterr().err


def test_a_broken_sweep_file_is_named_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [config\n")
    assert main(["-cd", str(tmp_path), "-cn", "mine"]) == 2
    assert "mine.yaml, line 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("model: tiny", "model: tiny in a config file chooses no option. Under defaults, behind - config, write "
         "- override /model: tiny."),
        ("offload: true", 'write - override /offload: "true".'),
        ("packing: [none, bfd]", "write packing: none,bfd under hydra: sweeper: params:"),
        ("defaults: [config, {override /packing: [none, bfd]}, _self_]", "-m packing=OPTION,OPTION"),
        ("hydra: {sweeper: {params: {packing: 'none,[none,bfd]'}}}", "packing takes one option"),
    ],
)  # fmt: skip
def test_an_option_that_a_file_chooses_in_another_way_is_told_how_it_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], written: str, said: str
) -> None:
    defaults = "" if written.startswith("defaults") else "defaults: [config, _self_]\n"
    (tmp_path / "mine.yaml").write_text(f"{defaults}{written}\n")
    assert main(["-cd", str(tmp_path), "-cn", "mine", "-m", "--dry-run"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_an_interpreter_without_the_packages_is_told_in_one_line() -> None:
    ran = subprocess.run(
        [sys.executable, "-S", "-m", "memexp", "doctor"],
        cwd=Path(__file__).parents[1],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 2
    (line,) = ran.stderr.splitlines()
    assert f"the package hydra is not installed in {sys.executable}. Type " in line


def test_a_sweep_file_of_ones_own_needs_m(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("defaults: [config, _self_]\nhydra: {sweeper: {params: {seed: '0,1'}}}\n")
    assert main(["-cd", str(tmp_path), "-cn", "mine", "--dry-run"]) == 2
    assert "a sweep over seed=0,1" in (said := capsys.readouterr().err) and "Add -m" in said


@pytest.mark.parametrize(
    ("sent", "ignored"),
    [(signal.SIGINT, False), (signal.SIGTERM, False), (signal.SIGTERM, True)],
    ids=["SIGINT", "SIGTERM", "SIGTERM with SIGINT ignored, as a shell's background job"],
)
def test_an_interrupted_sweep_leaves_no_half_cell_and_says_how_to_resume(
    tmp_path: Path, sent: signal.Signals, ignored: bool
) -> None:
    command = [sys.executable, "-m", "memexp", "-m", "seed=0,1", "backend=cpu", "logger=none", "isolation=fresh",
               f"results_dir={tmp_path}", "sweep=mine"]  # fmt: skip
    # Set either way: a test run in a shell's background inherits the signal ignored.
    handling = signal.SIG_IGN if ignored else signal.SIG_DFL
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, handling),
    )
    cells = tmp_path / "mine" / "cells"
    wait_until(lambda: process.poll() is not None or any(cells.glob("*/log.txt")))
    process.send_signal(sent)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    assert (
        f"python -m memexp -m seed=0,1 backend=cpu logger=none isolation=fresh results_dir={tmp_path} sweep=mine" in out
    )
    assert not list(cells.glob("*/record.json"))
    assert not any("memexp" in command and str(tmp_path) in command for _, command in command_lines())


def test_an_interrupt_before_anything_has_begun_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Importing(types.ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "memexp.cli", Importing("memexp.cli"))
    assert importlib.import_module("memexp.__main__").main() == 130


def test_a_terminal_that_is_not_utf_8_gets_rules_and_bars_of_what_it_has() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    code = "import sys; from memexp.cli import main; assert main(['--help']) == 0; print('──█…µ')"
    typed = [sys.executable, "-c", code]
    done = subprocess.run(typed, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "--#...?"
