"""What nobody should type, write or hand over: one clear line or a plan, never a traceback, never a file elsewhere.

No cell is started here: overrides go as far as a plan, records as far as a printed table, rows as far as a dataset.
"""

import copy
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_records import folder_of, two_by_two
from omegaconf import DictConfig, OmegaConf, open_dict
from rich.console import Console

from memexp.cli import main
from memexp.hydra_arguments import prepare
from memexp.plan import conf, load
from memexp.plan.compose import compose_cells, user_errors
from memexp.plan.machine import this_machine
from memexp.plan.make import make_plan
from memexp.plan.overrides import parse
from memexp.plan.plan import PlanError
from memexp.plan.preflight import preflight
from memexp.results.store import read_records, read_sweep
from memexp.results.sweep import SweepFolder
from memexp.results.table import make_table, print_table, write_tables

LOOKS = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
_OVERRIDES = json.loads((Path(__file__).parent / "hostile_overrides.json").read_text(encoding="utf-8"))
ODD_VALUES = (*_OVERRIDES["values"], "9" * 400, "a" * 5000)
ODD_KEYS = (*_OVERRIDES["keys"], "a" * 3000)
_KEYS = ("packing", "steps", "model.path", "sweep", "jobs", "rerun")
_TYPED = {f"{key}={value}" for key in ODD_KEYS for value in ("1", "''", "../x")}
CORPUS = sorted({*_TYPED, *(f"{key}={value}" for value in ODD_VALUES for key in _KEYS), *ODD_KEYS, *ODD_VALUES})


@pytest.fixture(scope="module")
def composed() -> DictConfig:
    return compose_cells([["backend=cpu"]])[0]


def goes_as_far_as_a_plan(text: str, composed: DictConfig) -> None:
    """Through the door, and where that lets it pass for a plain value, into the config and on to a plan."""
    try:
        prepare([text])
        (override,) = parse([text])
        key = override.key_or_group
        if (
            override.is_sweep_override()
            or override.package
            or key in conf.groups()
            or key.startswith("hydra")
            or override.is_delete()
        ):
            return
        config = copy.deepcopy(composed)
        with open_dict(config), user_errors():
            OmegaConf.update(config, key, override.value(), merge=True, force_add=True)
        assert preflight(make_plan(config, this_machine()), this_machine()).id
    except PlanError as error:
        assert str(error).strip()


@pytest.mark.parametrize("chunk", [CORPUS[start::8] for start in range(8)], ids=range(8))
def test_a_malformed_override_is_one_clear_line_or_a_plan(chunk: list[str], composed: DictConfig) -> None:
    for text in chunk:
        goes_as_far_as_a_plan(text, composed)


def test_there_are_more_than_three_hundred_of_them() -> None:
    assert len(CORPUS) + len(YAMLS) + len(DATASETS) + len(RECORDS) > 300
    assert len(CORPUS) > 300


@LOOKS
@given(text=st.text(max_size=40))
def test_any_text_is_one_clear_line_or_a_plan(composed: DictConfig, text: str) -> None:
    goes_as_far_as_a_plan(text, composed)


@LOOKS
@given(
    key=st.sampled_from(
        [
            *conf.groups(),
            *(name for name in conf.primary() if name not in ("defaults", "hydra")),
            "budget.tokens",
            "model.path",
            "trainer.args.seed",
        ]
    ),
    value=st.one_of(st.text(max_size=20), st.integers().map(str), st.floats().map(str), st.booleans().map(str)),
)
def test_any_value_of_a_known_key_is_one_clear_line_or_a_plan(composed: DictConfig, key: str, value: str) -> None:
    goes_as_far_as_a_plan(f"{key}={value}", composed)


# What gets through the door and has to be composed: each costs a quarter of a second.
WHOLE_LINES = (
    ["hydra.job.name=../../x"],
    ["~packing"],
    ["~steps"],
    ["+hydra.callbacks.x._target_=os.system"],
    ["hydra/launcher=../x"],
    ["packing=${steps}"],
    ["model=[tiny]"],
    ["results_dir="],
    ["-m", "seed=range(0,3,0)"],
    ["-m", "packing=glob(x*)"],
    ["--cfg", "nothing"],
    ["-m", "steps=choice()"],
    ["experiment=nowhere"],
    ["-cd", "/dev/null"],
    ["-cn", "../../etc/passwd"],
    ["+packing@x=bfd"],
)


@pytest.mark.parametrize("typed", WHOLE_LINES, ids=" ".join)
def test_a_malformed_command_line_is_one_line_and_no_traceback(
    typed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = main([*typed, "--dry-run", "backend=cpu"])
    said = capsys.readouterr()
    assert code in (0, 2)
    assert "Traceback" not in said.out + said.err
    if code:
        assert len(said.err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


YAMLS = {
    "nothing": "",
    "no mapping": "- a\n- b\n",
    "text": "hello",
    "a tag of Python": "defaults: [config, _self_]\nsteps: !!python/object/apply:os.system ['touch it_ran']\n",
    "no YAML": "a: b: c",
    "a tab": "a:\n\t- b",
    "no text": "\x00\x01\x02",
    "an anchor that holds itself": "defaults: [config, _self_]\nmodel: &a {config: *a}\n",
    "a billion laughs": "a: &a [x,x,x]\nb: &b [*a,*a,*a]\nc: &c [*b,*b,*b]\ndefaults: [config, _self_]\n",
    "a list for a value": "defaults: [config, _self_]\nsteps: [1, 2]\n",
    "a mapping for a value": "defaults: [config, _self_]\nseed: {a: 1}\n",
    "a value for a mapping": "defaults: [config, _self_]\nbudget: 5\n",
    "a value for a group": "defaults: [config, _self_]\npacking: bfd\n",
    "null for a group": "defaults: [config, _self_]\nmodel: null\n",
    "defaults of another kind": "defaults: 5\n",
    "a default that is not there": "defaults: [config, {override packing: nowhere}, _self_]\n",
    "an unknown key": "defaults: [config, _self_]\nnowhere: 1\n",
    "params of another kind": "defaults: [config, _self_]\nhydra: {sweeper: {params: 5}}\n",
    "hydra of another kind": "defaults: [config, _self_]\nhydra: 5\n",
    "nested without end": "a: " + "[" * 2000,
}


@pytest.mark.parametrize("text", YAMLS.values(), ids=YAMLS)
def test_a_malformed_yaml_file_is_one_line_or_a_plan(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "theirs.yaml").write_bytes(text.encode())
    monkeypatch.chdir(tmp_path)
    code = main(["-m", "-cd", str(tmp_path), "-cn", "theirs", "--dry-run"])
    said = capsys.readouterr()
    assert code in (0, 2)
    assert "Traceback" not in said.out + said.err
    if code:
        assert len(said.err.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["theirs.yaml"]


HOSTILE = (None, True, -1, 10**30, -1e300, "x", "\x1b[2J\u202e|<b>`*", "", [], {}, [None], {"a": {"b": [1]}}, [[]] * 3)


def damaged(data: Any, path: tuple[Any, ...] = ()) -> Iterator[Any]:
    """The same JSON with each of its values replaced in turn by something else, a different thing for each place."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for number, (key, value) in enumerate(items):
        for turn in range(2):
            whole = copy.deepcopy(data)
            whole[key] = HOSTILE[(number + 5 * turn + len(path)) % len(HOSTILE)]
            yield whole
        if isinstance(value, dict | list):
            for inner in damaged(value, (*path, key)):
                yield {**data, key: inner} if isinstance(data, dict) else [*data[:key], inner, *data[key + 1 :]]


SWEEP, MADE = two_by_two()
RECORDS = [json.dumps(record) for record in damaged(json.loads(MADE[3].to_json()))]


def shows(folder: SweepFolder) -> None:
    sweep = read_sweep(folder)
    stored = read_records(folder, sweep)
    table = make_table(sweep, stored.records, stored.missing, stored.damaged)
    print_table(table, Console(file=io.StringIO(), width=100))
    write_tables(folder, table)


def folder_of_four(path: Path) -> SweepFolder:
    return folder_of(path / "sweep", SWEEP, MADE)


def test_a_damaged_record_is_set_aside_or_shown(tmp_path: Path) -> None:
    folder = folder_of_four(tmp_path)
    for text in RECORDS:
        folder.record("d").write_text(text)
        shows(folder)
        for aside in folder.cell("d").glob("record.json.damaged-*"):
            aside.unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["sweep"]


def test_a_damaged_sweep_file_is_told_or_shown(tmp_path: Path) -> None:
    folder = folder_of_four(tmp_path)
    whole = json.loads(SWEEP.to_json())
    for data in damaged(whole):
        folder.sweep_json.write_text(json.dumps(data))
        try:
            shows(folder)
        except (ValueError, TypeError) as error:
            assert str(error)  # `open_sweep` makes one line of it
            with pytest.raises((ValueError, TypeError)):
                read_sweep(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["sweep"]


@LOOKS
@given(cut=st.integers(0, 2000), junk=st.binary(max_size=8))
def test_a_record_with_other_bytes_in_it_is_set_aside_or_shown(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes
) -> None:
    folder = folder_of_four(tmp_path_factory.mktemp("bytes"))
    content = folder.record("d").read_bytes()
    folder.record("d").write_bytes(content[:cut] + junk + content[cut + len(junk) :])
    shows(folder)


ROW = '{"input_ids": [5, 6, 7]}\n'
DATASETS: dict[str, str | bytes] = {
    "nothing": "",
    "blank lines": "\n\n \n",
    "no JSON": "hello\n",
    "half a line": ROW[:10],
    "a list": "[1, 2]\n",
    "null": "null\n",
    "a number": "5\n",
    "NaN": '{"input_ids": [NaN]}\n',
    "an endless number": '{"input_ids": [1e999]}\n',
    "no text": b"\xff\xfe\x00\x01",
    "UTF-16": ROW.encode("utf-16"),
    "a zero byte": '{"text": "a\x00b"}\n',
    "a lone surrogate": '{"text": "\\ud800"}\n',
    "no column that is known": '{"foo": 1}\n',
    "an empty object": "{}\n",
    "ids that are text": '{"input_ids": "abc"}\n',
    "ids that are null": '{"input_ids": null}\n',
    "ids that are nested": '{"input_ids": [[1]]}\n',
    "ids that are fractions": '{"input_ids": [1.5]}\n',
    "ids that are truths": '{"input_ids": [true, false]}\n',
    "ids below zero": '{"input_ids": [-5, 1]}\n',
    "ids beyond the vocabulary": '{"input_ids": [999999999]}\n',
    "an id beyond 64 bits": '{"input_ids": [99999999999999999999999]}\n',
    "no ids": '{"input_ids": []}\n',
    "labels of another length": '{"input_ids": [5, 6], "labels": [5]}\n',
    "labels that are text": '{"input_ids": [5, 6], "labels": "ab"}\n',
    "labels beyond the vocabulary": '{"input_ids": [5, 6], "labels": [5, 999999999]}\n',
    "another column in the second row": ROW + '{"text": "a"}\n',
    "a text that is a number": '{"text": 5}\n',
    "a text that is a list": '{"text": ["a"]}\n',
    "a text that is null": '{"text": null}\n',
    "text in one row, a number in the next": '{"text": "a"}\n{"text": 5}\n',
    "messages that are text": '{"messages": "hello"}\n',
    "messages that are empty": '{"messages": []}\n',
    "messages without a role": '{"messages": [{"content": "a"}]}\n',
    "messages of another kind": '{"messages": [5]}\n',
    "a role that nobody has": '{"messages": [{"role": "alien", "content": "a"}]}\n',
    "content that is null": '{"messages": [{"role": "user", "content": null}]}\n',
    "a prompt without a completion": '{"prompt": "a"}\n',
    "a prompt in messages, a completion in text": '{"prompt": [{"role": "user", "content": "a"}], "completion": "b"}\n',
    "nested without end": '{"text": ' + "[" * 100_000 + "\n",
    "a key twice": '{"text": "a", "text": 5}\n',
    "columns that are not alike": '{"text": "a", "x": 1}\n{"text": "b", "x": "y"}\n',
}


@pytest.fixture(scope="module")
def loading() -> Any:
    from memexp.run.data import load_data
    from memexp.run.refusal import Refused

    return load_data, Refused


@pytest.mark.parametrize("content", DATASETS.values(), ids=DATASETS)
def test_a_malformed_dataset_is_refused_with_its_place_or_read(
    content: str | bytes, tmp_path: Path, loading: Any
) -> None:
    load_data, refused = loading
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    plan = PLAN_OF_ROWS(path)
    try:
        assert len(load_data(plan, 4096)) > 0
    except refused as refusal:
        assert refusal.kind == "invalid_data"
        assert str(path) in str(refusal)
        assert len(str(refusal).splitlines()) == 1


def PLAN_OF_ROWS(path: Path) -> Any:
    from dataclasses import replace

    plan = _LOADED.setdefault("plan", load("backend=cpu", "data=lengths"))
    data = {"kind": "jsonl", "path": str(path), "columns": None}
    return replace(plan, work=replace(plan.work, data=data))


_LOADED: dict[str, Any] = {}
