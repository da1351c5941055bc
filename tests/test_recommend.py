"""Which configuration for a card: held to a brute-force search over the records, and to the code that it prints."""

import ast
import itertools
import json
import random
import runpy
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_records import GIB, OFFLOAD, PACKING, folder_of, made, not_ok, swept
from sweeping import Swept, sweep, write_rows

from memexp.cli import main
from memexp.commands.recommend import parse_size
from memexp.plan import load
from memexp.plan.plan import Plan, PlanError, Work
from memexp.results.compare import compare
from memexp.results.grid import Grid
from memexp.results.recommend import CARD_SIZES, Card, Recommendation, jobs, recommend
from memexp.results.recommend_text import fits_lines, fits_table, headline
from memexp.results.record import Data, Loss, Record, Simulation
from memexp.results.store import write_plan
from memexp.results.sweep import Axis, Sweep, SweepFolder
from memexp.run.made_rows import MADE
from memexp.script.python import literal
from memexp.script.training import training_script

CHECKPOINTING = Axis("checkpointing", ("none", "full", "selective"), "none")
AXES = (PACKING, OFFLOAD, CHECKPOINTING)
MIB = 2**20


def phased(plan_id: str, reserved: dict[str, float], **fields: Any) -> Record:
    """An ok cell with these reserved peaks by phase, in GiB."""
    record = made(plan_id, GIB, **fields)
    phases = {
        name: {"peak_reserved_bytes": int(size * GIB), "peak_allocated_bytes": GIB} for name, size in reserved.items()
    }
    memory = {**record.memory.to_dict(), "phases": phases}
    return Record.from_dict({**record.to_dict(), "memory": memory})


def random_grid(seed: int) -> tuple[Sweep, list[Record]]:
    """Every combination of AXES, with peaks around the sizes of cards; some cells ran out of memory or failed."""
    draw = random.Random(seed)
    records = []
    for number, options in enumerate(itertools.product(*(axis.options for axis in AXES))):
        choices = dict(zip((axis.name for axis in AXES), options, strict=True))
        status = draw.choices(["ok", "oom", "failed", "refused"], [8, 1, 1, 1])[0]
        if status == "ok":
            peaks = {name: draw.uniform(8, 100) for name in ("load", "warmup", "measured", "worst_case")}
            records.append(phased(str(number), peaks, rate=draw.uniform(100, 9000), choices=choices))
        else:
            records.append(not_ok(str(number), status, "why", choices=choices))
    return swept(*AXES), records


@pytest.mark.parametrize("size", [16, 24, 40, 80])
@pytest.mark.parametrize("seed", range(6))
def test_the_best_is_what_a_brute_force_search_finds(size: int, seed: int) -> None:
    sweep, records = random_grid(seed)
    found = recommend(Grid(sweep, records), Card("card", size * GIB, 512 * MIB))
    best: Record | None = None
    for record in records:
        if record.status != "ok":
            continue
        needed = 0
        for phase in record.memory.phases.values():
            needed = max(needed, phase["peak_reserved_bytes"])
        fits = needed + 512 * MIB <= 0.92 * size * GIB
        rate = record.speed.real_tokens_per_second or 0
        if fits and (best is None or rate > (best.speed.real_tokens_per_second or 0)):
            best = record
    assert (found.best.id if found.best else None) == (best.id if best else None)
    assert len(found.candidates) + len(found.left_out) == len(records)


def one(record: Record, card: Card | None = None) -> Recommendation:
    return recommend(Grid(swept(), [record]), card or Card("24GiB", 24 * GIB, GIB // 2))


def test_the_worst_case_must_fit_and_not_only_the_run() -> None:
    # 24 GiB less 8% are 22.08 GiB, of which 0.5 GiB are the context's.
    assert one(phased("a", {"measured": 9, "worst_case": 21.5}, rate=1.0)).best is not None
    found = one(phased("a", {"measured": 9, "worst_case": 21.7}, rate=1.0))
    assert found.best is None
    assert found.short_bytes == pytest.approx((21.7 + 0.5 - 22.08) * GIB, abs=2)


def test_a_headroom_of_nothing_uses_the_whole_card() -> None:
    record = phased("a", {"worst_case": 23.5}, rate=1.0)
    assert one(record, Card("x", 24 * GIB, GIB // 2, headroom=0)).best is not None
    assert one(record, Card("x", 24 * GIB, GIB // 2 + 1, headroom=0)).best is None


def measured_on_a_card(used: float, **environment: Any) -> Record:
    record = phased("a", {"worst_case": 10.0}, rate=1.0, environment=environment)
    memory = {**record.memory.to_dict(), "device_used_peak_bytes": int(used * GIB)}
    return Record.from_dict({**record.to_dict(), "memory": memory})


def test_what_the_driver_saw_in_use_counts_where_nobody_else_used_the_card() -> None:
    card = Card("24GiB", 24 * GIB, GIB // 2)
    assert one(measured_on_a_card(12.0)).candidates[0].needed_bytes(card) == 12 * GIB
    shared = measured_on_a_card(12.0, foreign_processes=[{"pid": 7}])
    assert one(shared).candidates[0].needed_bytes(card) == 10.5 * GIB


def test_where_reserved_is_unknown_allocated_stands_in_and_is_said_to() -> None:
    found = one(made("a", 4 * GIB, worst=5 * GIB, rate=1.0))
    assert found.candidates[0].allocator_bytes == 5 * GIB
    assert any("is unknown here" in line for line in headline(found))


def test_of_repeats_memory_is_the_highest_and_speed_the_median() -> None:
    seeds = Axis("seed", (0, 1, 2), 0)
    records = [
        phased(str(seed), {"worst_case": size}, rate=rate, choices={"seed": seed})
        for seed, (size, rate) in enumerate(((10.0, 100.0), (11.0, 900.0), (9.0, 110.0)))
    ]
    (candidate,) = recommend(Grid(swept(seeds), records), Card("x", 24 * GIB, 0)).candidates
    assert (candidate.allocator_bytes, candidate.real_tokens_per_second) == (11 * GIB, 110.0)


def kept(tokens: int) -> Data:
    return Data(real_tokens=100, kept_tokens=tokens, kept_fraction=tokens / 1000)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"effective": {"fell_back": ["packing=bfd"]}}, "fell back"),
        ({"loss": Loss(verdict="different")}, "loss verdict: different"),
        ({"loss": Loss(max_abs_difference=0.5, tolerance=0.01)}, "loss verdict: off by 0.5"),
        ({"loss": Loss(per_step=(2.0, None))}, "no finite number"),
        ({"data": Data(real_tokens=300, kept_tokens=1000)}, "different work"),
        ({"data": kept(900)}, "90% of the baseline's tokens"),
        ({"rate": None}, "its speed is unknown"),
        ({"peak": None}, "its peak memory is unknown"),
        ({"status": "oom"}, "OOM"),
        (
            {"status": "refused", "reason": "no GPU", "reason_kind": "needs_hardware"},
            "refused (needs_hardware): no GPU",
        ),
    ],
)
def test_a_faster_cell_that_is_not_the_same_job_is_left_out_with_its_reason(
    fields: dict[str, Any], reason: str
) -> None:
    slow = made("a", GIB, rate=10.0, choices={"packing": "none"}, data=kept(1000))
    fast = made(
        "b", fields.pop("peak", GIB), **{"rate": 99.0, "data": kept(1000), "choices": {"packing": "bfd"}, **fields}
    )
    found = recommend(Grid(swept(PACKING, cells="ab"), [slow, fast]), Card("x", 24 * GIB, 0))
    assert found.best is not None and found.best.id == "a"
    (left_out,) = found.left_out
    assert reason in left_out.reason


def test_a_technique_that_no_cell_got_leaves_none_out() -> None:
    every = {"effective": {"fell_back": ["padding_free=true"]}}
    records = [made(i, GIB, rate=1.0, choices={"packing": p}, **every) for i, p in (("a", "none"), ("b", "bfd"))]
    assert len(recommend(Grid(swept(PACKING), records), Card("x", 24 * GIB, 0)).candidates) == 2


def test_the_table_of_sizes_marks_what_fits_and_what_is_best() -> None:
    sweep, records = random_grid(3)
    found = recommend(Grid(sweep, records), Card("x", 24 * GIB, GIB // 2))
    table = fits_table(found, 300)
    assert table is not None
    columns = {str(column.header): [str(cell) for cell in column.cells] for column in table.columns}
    for size in CARD_SIZES:
        here = recommend(Grid(sweep, records), Card("x", size * GIB, GIB // 2))
        marks = [
            "best" if here.best and each.id == here.best.id else "yes" if each.fits(here.card) else "-"
            for each in found.candidates
        ]
        assert columns[str(size)] == marks
    assert compare(Grid(sweep, records)).cells


def test_without_room_for_the_table_every_candidate_is_named_with_the_least_card() -> None:
    records = [
        phased(name, {"worst_case": size}, rate=rate, choices={"checkpointing": name})
        for name, size, rate in (("none", 30.0, 200.0), ("full", 200.0, 100.0))
    ]
    found = recommend(Grid(swept(CHECKPOINTING), records), Card("x", 24 * GIB, 0))
    assert fits_table(found, 30) is None
    assert list(fits_lines(found)) == [
        "checkpointing=none",
        "  needs 30.00 GiB, 200 tokens/s: fits 40 and more, best for 40 to 141",
        "checkpointing=full",
        "  needs 200.00 GiB, 100 tokens/s: fits none of them",
    ]


def test_of_a_prediction_with_two_streams_the_later_one_must_fit() -> None:
    record = replace(
        phased("a", {"worst_case": 8.0}, rate=1.0), simulation=Simulation(peak_reserved_at_most_bytes=9 * GIB)
    )
    assert one(record).candidates[0].allocator_bytes == 9 * GIB


@pytest.mark.parametrize("axis", ["backend", "model.config.num_hidden_layers", "data.median"])
def test_what_no_recommendation_can_span_is_another_job(axis: str) -> None:
    records = [made(option, GIB, rate=1.0, choices={axis: option}) for option in ("1", "2")]
    assert jobs(Grid(swept(Axis(axis, ("1", "2"), "1")), records)) == {axis: ["1", "2"]}


def test_a_key_that_is_typed_twice_takes_cells_with_either(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = [
        phased(name, {"worst_case": 9.0}, rate=rate, choices={"checkpointing": name})
        for name, rate in (("none", 3.0), ("full", 2.0), ("selective", 1.0))
    ]
    folder = stored(tmp_path / "s", records, CHECKPOINTING)
    where = ["--where", "checkpointing=selective", "--where", "checkpointing=full"]
    # There are no plans, so that the code cannot be shown behind the answer.
    assert main(["recommend", str(folder), "--memory", "24GiB", *where]) == 2
    said = capsys.readouterr().out
    assert "\ncheckpointing=full\n" in said and "Runner-up: checkpointing=selective" in said


# ---- the command


@pytest.mark.parametrize(
    ("text", "size"),
    [("24GiB", 24 * GIB), ("24 gib", 24 * GIB), ("24GB", 24 * 10**9), ("24576MiB", 24 * GIB), ("1.5GiB", 1.5 * GIB)],
)
def test_a_size_says_its_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["24", "24 potatoes", "", "0GiB", "-24GiB", "1e3GiB", "24KiB"])
def test_a_size_without_a_meaning_is_one_line(text: str) -> None:
    with pytest.raises(PlanError, match="no size of a card"):
        parse_size(text)


def stored(folder: Path, records: Sequence[Record], *axes: Axis) -> Path:
    """A sweep's folder with these records, and without plans."""
    return folder_of(folder, Sweep("made", axes, tuple(record.id for record in records)), records).path


def test_a_card_that_was_swept_is_judged_by_its_own_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cards = Axis("gpu", ("h100_80gb", "t4_16gb"), "h100_80gb")
    records = [
        phased(card[0], {"worst_case": size}, rate=1.0, choices={"gpu": card})
        for card, size in (("h100_80gb", 9.0), ("t4_16gb", 30.0))
    ]
    folder = stored(tmp_path / "s", records, cards)
    assert main(["recommend", str(folder), "--gpu", "t4_16gb"]) == 0
    # 30 GiB and the 256 MiB of a context, against 92% of 14.6 GiB.
    assert "Nothing fits. The smallest, gpu=t4_16gb, needs 30.25 GiB: 16.82 GiB too much." in capsys.readouterr().out


def test_an_answer_begins_with_the_job_that_it_is_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = {"model": "mistral_7b", "trainer": "sft", "data": "docstrings", "batch_size": 2, "max_length": 512}
    records = [
        phased(packing, {"worst_case": 30.0}, rate=1.0, choices={**job, "packing": packing, "offload": "true"})
        for packing in ("none", "bfd")
    ]
    offload = Axis("offload", ("true",), "false")
    folder = stored(tmp_path / "s", records, Axis("packing", ("none", "bfd"), "none"), offload)
    assert main(["recommend", str(folder), "--memory", "24GiB"]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "Measured with trainer=sft model=mistral_7b data=docstrings backend=cuda"
    assert second.strip() == "batch_size=2 max_length=512 offload=true"


def test_a_card_has_less_for_the_allocator_than_for_the_driver() -> None:
    said = next(headline(one(phased("a", {"worst_case": 9.0}, rate=1.0), Card("x", 24 * GIB, GIB // 2))))
    assert "of 24.00 GiB may be used" in said
    assert said.endswith("512 MiB of the card go to the CUDA context, which leaves PyTorch's allocator 23.50 GiB")


def test_nothing_fits_is_an_answer_that_says_by_how_much(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = stored(tmp_path / "s", [phased("a", {"worst_case": 30.0}, rate=5.0)])
    assert main(["recommend", str(folder), "--memory", "24GiB"]) == 0
    # 30 and 0.5 GiB of context, against 22.08 GiB.
    assert "Nothing fits. The smallest, this cell, needs 30.50 GiB: 8.42 GiB too much." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ([], "--memory --gpu is required"),
        (["--memory", "48"], "Type a number with GiB, GB or MiB: --memory 48GiB"),
        (["--gpu", "rtx9999"], "rtx4090_24gb"),
        (["--memory", "24GiB", "--gpu", "t4_16gb"], "not allowed"),
        (["--memory", "24GiB", "--headroom", "8"], "--headroom 8% or --headroom 0.08"),
        (["--memory", "24GiB", "--where", "model"], "KEY=VALUE"),
        (["--memory", "24GiB", "--where", "model=huge"], "no cell of this sweep"),
        (["--memory", "24GiB"], "different jobs"),
        (["--memory", "24GiB", "--where", "model=small", "--script", "/proc/nowhere.py"], "plan.json"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, typed: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    models = Axis("model", ("small", "big"), "small")
    records = [made(name[0], GIB, rate=1.0, choices={"model": name}) for name in ("small", "big")]
    folder = stored(tmp_path / "s", records, models)
    assert main(["recommend", str(folder), *typed]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert said in lines[0]


# ---- the code


def written(*overrides: str) -> str:
    return training_script(load("model=tiny", "backend=simulate", *overrides), "about")


def test_only_what_differs_from_trls_defaults_is_in_the_code() -> None:
    code = written("packing=bfd", "peft=lora", "allocator=expandable", "batch_size=8", "learning_rate=1e-4")
    assert 'os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"' in code
    assert code.index("os.environ") < code.index("import torch")
    assert 'LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=32' in code
    # batch 8 and max_length 1024 are TRL's defaults; checkpointing is on there.
    assert "activation_checkpointing=False" in code
    assert "per_device_train_batch_size" not in code and "max_length" not in code
    assert "import memexp" not in code and "from memexp" not in code


@pytest.mark.parametrize(
    "overrides",
    [
        ["data=lengths"],
        ["data=lengths", "trainer=dpo"],
        ["data=hub", "data.path=trl-lib/Capybara"],
        ["data=jsonl", "data.path=rows.jsonl", "data.columns.text=body"],
        ["model.weights=pretrained", "model.path=org/name"],
        ["quantization=nf4", "peft=lora"],
        ["trainer=dpo"],
        ["trainer=grpo"],
        ["trainer=reward"],
    ],
    ids=" ".join,
)
def test_the_code_is_python_for_every_kind_of_job(overrides: list[str]) -> None:
    tree = ast.parse(written(*overrides))
    assigned = {target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets}  # type: ignore[attr-defined]
    assert {"rows", "tokenizer", "model", "args", "trainer"} <= assigned


@pytest.mark.parametrize(
    ("trainer", "loads"),
    [
        ("dpo trainer.args.beta=0.0", True),
        ("dpo peft=lora", False),
        ("grpo", False),
        ("grpo trainer.args.beta=0.1", True),
        ("rloo trainer.args.beta=0.0", False),
        ("online_dpo", False),
    ],
)
def test_weights_lie_in_a_folder_only_where_trl_loads_a_reference_from_it(trainer: str, loads: bool) -> None:
    """By `create_model_from_path` in TRL's trainers, and the conditions before it."""
    assert ("save_pretrained(WEIGHTS)" in written(f"trainer={trainer.split()[0]}", *trainer.split()[1:])) == loads


def test_a_string_of_the_code_is_the_string_of_the_plan_and_moves_no_cursor() -> None:
    for text in ("\x9b31m", "\u202eevil", "\udc80", 'a\nb"\\', "\x1b[2J", "né", "\U000e0001"):
        assert ast.literal_eval(literal(text)) == text
        assert literal(text).isprintable()


@pytest.mark.parametrize(("option", "layer"), [("nf4", "Linear4bit"), ("int8", "Linear8bitLt")])
def test_the_code_for_quantized_random_weights_makes_a_quantized_model(
    option: str, layer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = written(f"quantization={option}", "peft=lora")
    arguments, model = code.index("args = SFTConfig("), code.index("model = Auto")
    made: dict[str, Any] = {}
    exec(code[:arguments] + code[model : code.index("trainer = SFTTrainer(")], made)
    assert type(made["model"].model.layers[0].mlp.up_proj).__name__ == layer


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # TRL's own
@pytest.mark.parametrize("trainer", ["dpo", "rloo"])
def test_the_code_of_a_trainer_with_a_reference_model_trains_random_weights(
    trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL loads the reference by the policy's name, which weights that were never loaded do not have."""
    from memexp.simulate import prepare

    prepare()  # this trains in the tests' own process, and a later test simulates in it
    monkeypatch.chdir(tmp_path)
    rows = tmp_path / "rows.jsonl"
    row = {"prompt": "one two", "chosen": "three four", "rejected": "five"}
    rows.write_text("\n".join(json.dumps(row if trainer == "dpo" else {"prompt": "one two"}) for _ in range(4)))
    jobs = {"dpo": ("max_length=16",), "rloo": ("trainer.max_completion_length=4",)}
    typed = ("backend=cpu", f"trainer={trainer}", "data=jsonl", f"data.path={rows}", "batch_size=4", *jobs[trainer])
    made: dict[str, Any] = {"__name__": "__main__"}
    exec(training_script(load("model=tiny", *typed), "about"), made)
    (reference,) = {str(made["trainer"].ref_model.config._name_or_path)}
    assert reference == "random_weights" and made["trainer"].state.global_step >= 1
    first, second = (next(iter(m.state_dict().values())).shape for m in (made["model"], made["trainer"].ref_model))
    assert first == second


DOCUMENTS: dict[str, dict[str, Any]] = {
    "text": {"text": "one two three four"},
    "messages": {"messages": [{"role": "user", "content": "how"}, {"role": "assistant", "content": "so and so"}]},
    "completion": {"prompt": "one two", "completion": " three four"},
}


def rows_of(plan: Plan, notes: Sequence[str] = ()) -> tuple[list[dict[str, Any]], Any]:
    """The rows that the code of a plan trains on, and its tokenizer: the code up to the trainer's arguments is run."""
    lines = training_script(plan, "about", notes).splitlines()
    end = next(number for number, line in enumerate(lines) if line.startswith("args = "))
    made: dict[str, Any] = {}
    exec("\n".join(lines[:end]), made)
    return list(made["rows"]), made["tokenizer"]


@pytest.mark.parametrize(
    ("trainer", "shape"), [("dpo", "text"), ("dpo", "messages"), ("reward", "completion"), ("grpo", "messages")]
)
def test_a_file_of_documents_is_made_into_the_rows_that_the_cell_made_of_it(
    trainer: str, shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from memexp.run.data import how_rows_are_made, load_data

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    first = DOCUMENTS[shape]
    last = json.loads(json.dumps(first).replace("four", "five").replace("so and so", "not at all"))
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in (first, last, last)))
    plan = load("model=tiny", "backend=cpu", f"trainer={trainer}", "data=jsonl", f"data.path={path}")
    rows, _ = rows_of(plan, how_rows_are_made(plan))
    assert rows == list(load_data(plan, vocab_size=4096))


def test_what_a_cell_noted_of_its_rows_reaches_the_code(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(DOCUMENTS["text"]))
    plan = load("model=tiny", "backend=cpu", "trainer=dpo", "data=jsonl", f"data.path={path}")
    folder = stored(tmp_path / "s", [phased(plan.id, {"worst_case": 1.0}, rate=1.0, notes=(MADE["pairs"],))])
    write_plan(SweepFolder(folder), plan)
    script = tmp_path / "train.py"
    assert main(["recommend", str(folder), "--memory", "24GiB", "--script", str(script)]) == 0
    assert "rows = Dataset.from_list(pairs([cut_in_two(row) for row in documents]))" in script.read_text()


@pytest.mark.parametrize("trainer", ["dpo", "grpo"])
def test_stated_lengths_are_those_of_the_text_that_the_code_makes(
    trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lengths = (8, 21, 3)
    typed = ("data=lengths", f"data.distribution=[{','.join(map(str, lengths))}]", f"trainer={trainer}")
    rows, tokenizer = rows_of(load("model=tiny", "backend=cpu", *typed))
    # A prompt is half of a length, and TRL adds the end of sequence to an answer.
    whole = [len(tokenizer(row["prompt"] + row.get("chosen", ""))["input_ids"]) for row in rows]
    assert whole == [length // 2 if trainer == "grpo" else length - 1 for length in lengths]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"text": "body"}, {"text": "right"}),
        ({"prompt": "body"}, {"prompt": "right", "completion": "so"}),
    ],
    ids=str,
)
def test_a_column_that_was_named_wins_over_one_of_that_name_and_keeps_its_partner(
    columns: dict[str, str], expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"text": "wrong", "prompt": "wrong", "completion": "so", "body": "right"}))
    named = [f"data.columns.{ours}={theirs}" for ours, theirs in columns.items()]
    rows, _ = rows_of(load("model=tiny", "backend=cpu", "data=jsonl", f"data.path={path}", *named))
    assert rows == [expected]


def test_a_reward_of_ones_own_is_imported_and_the_shipped_one_is_quoted() -> None:
    own = written("trainer=grpo", "trainer.reward=operator.length_hint")
    assert "from operator import length_hint" in own and "reward_funcs=[length_hint]" in own
    shipped: dict[str, Any] = {}
    code = written("trainer=grpo")
    exec(code[code.index('LETTER = "e"') : code.index("trainer = GRPOTrainer(")], shipped | {"Any": Any}, shipped)
    assert "reward_funcs=[frequent_letter_share]" in code and "from memexp" not in code


def test_deepspeed_knows_of_itself_before_there_are_weights_to_split() -> None:
    code = written("launch=zero3", "backend=cpu")
    assert code.index("args = SFTConfig(") < code.index("model = AutoModelForCausalLM")


# A script is run with TRL, and without memexp and what else need not be there; importing those raises.
PLAIN = """
import json, runpy, sys
sys.modules |= dict.fromkeys(("memexp", "bitsandbytes", "deepspeed", "wandb"))
import torch
torch.set_num_threads(1)
ran = runpy.run_path(sys.argv[1], run_name="__main__")
print("LOSSES", json.dumps([step["loss"] for step in ran["trainer"].state.log_history if "loss" in step]))
"""


def test_the_code_of_a_cell_of_two_processes_trains_under_torchrun(tmp_path: Path) -> None:
    """On the CPU over gloo, with weights that each process reads from a folder of its own."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"prompt": "a", "chosen": " b", "rejected": " c"}) for _ in range(4)))
    typed = ("launch=torchrun", "trainer=dpo", "data=jsonl", f"data.path={rows}", "batch_size=2", "max_length=16")
    script = tmp_path / "train.py"
    script.write_text(training_script(load("model=tiny", "backend=cpu", *typed), "about"))
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    plain = tmp_path / "plain.py"
    plain.write_text(PLAIN)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, str(plain), str(script)], cwd=tmp_path, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("train_loss") == 1  # said by the first of the two


def test_nothing_in_a_plan_runs_as_code() -> None:
    plan = load("model=tiny", "backend=cpu", "data=jsonl", "data.path='a\"); import os; os.system(\"id'")
    code = training_script(plan, 'end """ import os')
    assert [
        node.value
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Constant) and "os.system" in str(node.value)
    ]
    assert not [
        node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import) and node.names[0].name == "os"
    ]


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("trainer", "trainer_class", "trl.SFTTrainer\nimport os"),
        ("trainer", "config_class", "trl.SFTConfig; evil()"),
        ("trainer", "task", "EVIL"),
        ("trainer", "args", {"packing=evil(), x": 1}),
        ("model", "kwargs", {"dtype": "float32; evil()"}),
        ("model", "config", {"a=evil(), b": 1}),
    ],
)
def test_a_name_that_is_code_is_refused(section: str, field: str, value: Any) -> None:
    plan = load("model=tiny", "backend=cpu")
    work = plan.work.to_dict()
    work[section][field] = value
    with pytest.raises((ValueError, KeyError)):
        training_script(replace(plan, work=Work.from_dict(work)), "about")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """Four steps of the tiny model on the CPU, packed and not, on as many tokens."""
    folder = tmp_path_factory.mktemp("trained")
    rows = write_rows(folder / "rows.jsonl")
    return sweep(folder / "r", "-m", "peft=none,lora", "data=jsonl", f"data.path={rows}", "max_length=16",
                 "batch_size=2", "budget.epochs=1", "seed=7", "logger=none")  # fmt: skip


@pytest.mark.usefixtures("warm_cells")
def test_the_code_trains_the_tiny_model_as_the_cell_did_and_without_memexp(
    trained: Swept, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    assert trained.folder is not None
    assert main(["recommend", str(trained.folder), "--memory", "24GiB", "--script", str(script)]) == 0
    said = capsys.readouterr().out.splitlines()
    (best,) = [record for record in trained.records if f"peft={record['choices']['peft']}" in said]
    environment = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, str(script)], cwd=tmp_path, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    losses = json.loads(done.stdout.split("LOSSES")[1])
    assert losses == pytest.approx(best["loss"]["per_step"], abs=1e-6)


@pytest.mark.filterwarnings("ignore:a float was read from the simulated GPU")  # TRL logs the loss
def test_the_code_peaks_on_the_simulated_gpu_where_the_table_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_cells: None
) -> None:
    import torch

    from memexp.simulate import SimulatedGPU

    job = ("backend=simulate", "model=qwen2_5_0_5b", "model.config.num_hidden_layers=4", "packing=wrapped",
           "checkpointing=full", "data=lengths",
           "data.distribution=[512,512,512,512]", "max_length=512", "batch_size=2", "budget.epochs=1")  # fmt: skip
    ran = sweep(tmp_path / "r", *job, "logger=none")
    assert ran.folder is not None
    script = tmp_path / "train.py"
    assert main(["recommend", str(ran.folder), "--gpu", "h100_80gb", "--script", str(script)]) == 0
    monkeypatch.chdir(tmp_path)
    with SimulatedGPU("h100_80gb", warn_of_floats=False) as gpu, torch.device(gpu.device):
        runpy.run_path(str(script), run_name="__main__")
    memory = ran.records[0]["memory"]
    assert gpu.max_memory_allocated() == pytest.approx(memory["peak_allocated_bytes"], rel=0.01)
    assert gpu.max_memory_reserved() == pytest.approx(memory["peak_reserved_bytes"], rel=0.01)
