"""From overrides to plans: ids, defaults, booleans at every door, values that are wrong by themselves."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from memexp.plan import Plan, PlanError, conf, load, load_sweep


def plan(*overrides: str) -> Plan:
    return load("backend=cpu", *overrides)


def test_planning_does_not_import_torch() -> None:
    code = "import sys, memexp.plan; memexp.plan.load('offload=true'); print({'torch', 'trl'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "set()\n"


def test_a_plan_survives_json() -> None:
    before = plan("packing=bfd", "peft=lora", "budget.tokens=1000")
    assert Plan.from_json(before.to_json()) == before


def test_the_same_job_has_the_same_id_wherever_it_lands() -> None:
    assert plan("sweep=a", "logger=none").id == plan("results_dir=elsewhere", "timeout_seconds=5").id


def test_the_same_job_has_the_same_id_under_another_name() -> None:
    assert plan("precision=auto").id == plan("precision=fp32").id
    assert plan("model=auto").id == plan("model=tiny").id


@pytest.mark.parametrize(
    "change", ["packing=bfd", "seed=1", "batch_size=2", "threads=2", "model.config.hidden_size=32"]
)
def test_another_job_has_another_id(change: str) -> None:
    assert plan("model=tiny", change).id != plan("model=tiny").id


def test_a_changed_data_file_is_another_job(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a"}\n')
    before = plan("data=jsonl", f"data.path={file}").id
    file.write_text('{"text": "another row"}\n')
    assert plan("data=jsonl", f"data.path={file}").id != before


def test_every_technique_is_off_until_asked_for() -> None:
    args = plan().work.trainer.args
    assert args["packing"] is False
    assert args["padding_free"] is False
    assert args["activation_offloading"] is False
    assert args["activation_checkpointing"] is False
    assert plan().work.peft is None
    assert plan().work.env == {"PYTORCH_ALLOC_CONF": None, "PYTORCH_CUDA_ALLOC_CONF": None}


@pytest.mark.parametrize("packing", ["bfd", "bfd_split", "wrapped"])
def test_a_packing_becomes_a_flag_and_a_strategy(packing: str) -> None:
    # TRL takes any string for `packing` and packs with bfd: the name must never be passed through.
    args = plan(f"packing={packing}").work.trainer.args
    assert (args["packing"], args["packing_strategy"]) == (True, packing)


def test_auto_is_resolved_in_the_choices() -> None:
    choices = plan().choices
    assert (choices["backend"], choices["model"], choices["precision"]) == ("cpu", "tiny", "fp32")


def test_a_sweep_is_planned_in_the_order_typed_last_axis_fastest() -> None:
    cells = load_sweep("backend=cpu", "packing=bfd,wrapped", "offload=true,false")
    assert [(cell.choices["packing"], cell.choices["offload"]) for cell in cells] == [
        ("bfd", "true"),
        ("bfd", "false"),
        ("wrapped", "true"),
        ("wrapped", "false"),
    ]


def test_load_names_load_sweep_where_a_value_lists_several() -> None:
    with pytest.raises(PlanError, match="load_sweep"):
        load("packing=bfd,wrapped")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["max_length=0"], "max_length must be at least 1"),
        (["max_length=-5"], "max_length must be at least 1"),
        (["max_length=x"], "max_length is a whole number"),
        (["max_length=1.5"], "max_length is a whole number"),
        (["pad_to_multiple_of=0"], "pad_to_multiple_of must be at least 1"),
        (["steps=0"], "steps must be at least 1"),
        (["batch_size=true"], "batch_size is a whole number"),
        (["learning_rate=fast"], "learning_rate is a number"),
        (["learning_rate=nan"], "learning_rate is a number"),
        (["timeout_seconds=0"], "more than 0"),
        (["budget.tokens=5", "budget.steps=3"], "a budget is one of them"),
        (["peft=lora", "peft.r=0"], "peft.r must be at least 1"),
        (["peft=lora", "peft.rr=8"], "no rr"),
        (["peft.r=8"], "peft=dora and peft=lora and peft=rslora have it"),
        (["data=jsonl"], "Type data.path="),
        (["model=tiny", "model.weights=pretrained"], "model.path="),
        (["model=tiny", "model.path=x"], "model.weights=pretrained"),
        (["model.weights=foo"], "random, pretrained"),
        (["trainer.args.weight_decy=1"], "Did you mean trainer.args.weight_decay?"),
        (["trainer.args.max_steps=3"], "budget.steps=100"),
        (["trainer.args.packing=true"], "packing=…"),
        (["trainer.args.max_length=3"], "max_length=…"),
        (["trainer.args.per_device_train_batch_size=3"], "batch_size=…"),
        (["allocator.conf=expandable_segment:True"], "expandable_segments"),
        (["allocator.conf=5"], "allocator.conf=5"),
        (["allocator.conf=[a]"], "allocator.conf is text"),
        (["seed=99999999999999999999"], "at most 4294967295"),
        (["peft=lora", "peft.dropout=2"], "at most 1"),
        (["peft=lora", "peft.target_modules=5"], "[q_proj,v_proj]"),
        (["peft=lora", "peft.target_modules=[]"], "[q_proj,v_proj]"),
        (["peft=lora", "peft.peft=5"], "Type peft=OPTION"),
        (["model=tiny", "model.config=5"], "model.config is a set of values"),
        (["data=jsonl", "data.path=x", "data.columns=5"], "data.columns is a set of values"),
        (["trainer.args=5"], "one argument at a time"),
        (["trainer.args={weight_decay:0.1}"], "one argument at a time"),
        (["data=jsonl", "data.path=x", "data.columns.txet=body"], "It reads messages"),
        (["trainer.args.weight_decay=abc"], "TRL takes a number for weight_decay"),
        (["trainer.args.assistant_only_loss=3"], "true or false"),
        (["trainer.name=foo"], "Type trainer=OPTION"),
        (["trainer.sets.max_length=5"], "Type trainer=OPTION"),
        (["packing.args=5"], "Type packing=OPTION"),
        (["packing=null"], "packing is one of its options: bfd"),
        (["data.path=mine.jsonl"], "data=jsonl"),
        (["data.columns.text=body"], "data=jsonl"),
        (["+foo=1"], "there is no foo"),
        (["+data.rows=5"], "without the +"),
        (["allocator.conf=expandable_segments:maybe"], "maybe"),
    ],
)
def test_a_value_wrong_by_itself_stops_everything_with_one_line(typed: list[str], said: str) -> None:
    with pytest.raises(PlanError) as error:
        plan(*typed)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("typed", [5, None, ["a"]])
def test_an_override_that_is_no_text_is_a_plan_error(typed: object) -> None:
    with pytest.raises(PlanError, match="an override is a string"):
        load(typed)  # type: ignore[arg-type]


def test_a_wrong_value_stops_a_whole_sweep() -> None:
    with pytest.raises(PlanError, match="max_length=0"):
        load_sweep("backend=cpu", "max_length=16,0")


def test_trainer_args_are_merged_last() -> None:
    assert plan("trainer.args.weight_decay=0.25").work.trainer.args["weight_decay"] == 0.25


def test_allocator_settings_are_set_under_both_names() -> None:
    env = plan("allocator=expandable").work.env
    assert env == dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), "expandable_segments:True")


EVERY_OPTION = [
    (group, name) for group, names in conf.groups().items() for name in names if group not in conf.STRUCTURE
]


def test_there_are_techniques() -> None:
    assert len(EVERY_OPTION) > 20


@pytest.mark.parametrize(("group", "name"), EVERY_OPTION)
def test_every_option_plans_and_says_what_it_is(group: str, name: str) -> None:
    made = load("backend=cpu", f"{group}='{name}'")
    file = conf.option(group, name)
    assert made.choices[group] == name or name == "auto"
    assert file.get("about") or file.get("auto")
    assert any(technique.group == group for technique in made.techniques)


@pytest.mark.parametrize(("group", "name"), EVERY_OPTION)
def test_an_option_file_has_no_key_that_nobody_reads(group: str, name: str) -> None:
    read = {
        "about",
        "acts_on",
        "auto",
        "is_off",
        "trainers",
        "needs",
        "args",
        "model",
        "peft",
        "env",
        "confirm",
        "same_loss",
    }
    fields = {"peft": {"r", "alpha", "dropout", "target_modules"}, "allocator": {"conf"}, "optimizer": {"name"}}
    fields |= {"launch": {"processes"}, "vllm_sleep": {"use_vllm"}}
    fields |= {"quantization": {"quant_type", "compute_dtype", "double_quant"}}
    assert set(conf.option(group, name)) <= read | fields.get(group, set())


@pytest.mark.parametrize(("group", "name"), EVERY_OPTION)
def test_what_is_not_off_says_what_the_trainer_must_show(group: str, name: str) -> None:
    file = conf.option(group, name)
    assert file.get("is_off") or file.get("auto") or file.get("confirm")


def test_plans_are_json_that_anyone_can_read() -> None:
    assert json.loads(plan().to_json())["work"]["model"]["config"]["num_hidden_layers"] == 2


def test_a_cell_of_several_processes_starts_fresh_ones_and_says_so_where_warm_was_asked_for() -> None:
    ranks = load("backend=cpu", "launch=torchrun")
    assert (ranks.isolation, ranks.notes) == ("fresh", ())
    warm = load("backend=cpu", "launch=torchrun", "isolation=warm")
    assert warm.isolation == "fresh"
    assert warm.notes == ("isolation=warm is for cells of one process: these 2 start fresh interpreters",)
    assert (load("backend=cpu").isolation, load("backend=cpu").notes) == ("warm", ())


def test_what_zero3_does_to_adapters_is_a_note() -> None:
    assert any("adapters in the dtype of the weights" in note for note in load("launch=zero3", "peft=lora").notes)
    assert load("launch=zero3").notes == load("peft=lora").notes == ()


def test_deepspeeds_settings_are_an_option_of_launch() -> None:
    with pytest.raises(PlanError, match="launch=zero3"):
        plan("trainer.args.deepspeed=config.json")
