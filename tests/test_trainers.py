"""The trainers beside SFT, in real runs on the CPU: what memexp counts is what TRL itself counts."""

import json
from pathlib import Path
from typing import Any

import jinja2
import pytest
import transformers

from memexp.plan import load
from memexp.run.data import ASSETS
from memexp.run.refusal import objection
from memexp.run.worker import Job

ROWS = ("data=lengths", "data.rows=12", "data.distribution=[9,17,12,20,5,14,9,11,16,8,13,10]")
PAIR = {"prompt": "one two three four five six", "chosen": " seven eight", "rejected": " nine"}
ONLINE = ("grpo", "rloo", "online_dpo")
# TRL and transformers still call checkpointing by its old name; online DPO is experimental.
pytestmark = [
    pytest.mark.usefixtures("jobs_in_this_process"),
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:You are importing from 'trl.experimental'"),
]


def _rows(more: tuple[str, ...]) -> tuple[str, ...]:
    return () if any(typed.startswith("data=") for typed in more) else ROWS


def job_of(folder: Path, trainer: str, *more: str) -> Job:
    online = ("trainer.max_completion_length=6",) if trainer in ONLINE else ()
    plan = load("backend=cpu", f"trainer={trainer}", "model=tiny", "logger=none", *_rows(more), *online, *more)
    cell = folder / "cells" / plan.id
    cell.mkdir(parents=True)
    job = Job(plan, cell, "fresh")
    job.recorded = job.run()  # type: ignore[attr-defined]
    return job


def ran(folder: Path, trainer: str, *more: str) -> Job:
    job = job_of(folder, trainer, *more)
    assert job.recorded.status == "ok", job.recorded.reason  # type: ignore[attr-defined]
    return job


def logged(job: Job, name: str) -> list[Any]:
    return [entry[name] for entry in job.trainer.state.log_history if name in entry]


@pytest.mark.parametrize("trainer", ["dpo", "reward", "grpo", "rloo"])
def test_loss_and_tokens_of_each_step_are_those_that_trl_logs(trainer: str, tmp_path: Path) -> None:
    job = ran(tmp_path, trainer, "batch_size=2", "gradient_accumulation=2", "steps=2", "unmeasured_steps=1")
    record = job.recorded  # type: ignore[attr-defined]
    assert record.loss.per_step == pytest.approx(logged(job, "loss"), abs=1e-6)
    # TRL's num_tokens adds up what is no padding; for the online ones once for what was sampled.
    assert record.data.real_tokens == logged(job, "num_tokens")[-1]
    assert record.data.steps == 3


def test_online_dpo_counts_both_completions_of_each_prompt(tmp_path: Path) -> None:
    job = ran(tmp_path, "online_dpo", "batch_size=2", "steps=2", "unmeasured_steps=0")
    record = job.recorded  # type: ignore[attr-defined]
    assert record.loss.per_step == pytest.approx(logged(job, "loss"), abs=1e-4)  # it rounds its log to that
    # The first four prompts are of 4, 8, 6 and 10 tokens, each twice, with at most 6 sampled tokens behind.
    sampled = record.data.real_tokens - 2 * (4 + 8 + 6 + 10)
    assert 8 <= sampled <= 8 * 6
    rate = record.speed.loss_tokens_per_second * sum(record.speed.step_seconds)
    assert rate == pytest.approx(sampled)


def test_groups_of_completions_decide_how_many_steps_an_epoch_has(tmp_path: Path) -> None:
    # 12 prompts, 4 completions each, 4 completions a batch and two batches a step: 6 steps.
    job = ran(tmp_path, "grpo", "gradient_accumulation=2", "steps=1", "unmeasured_steps=0")
    data = job.recorded.data  # type: ignore[attr-defined]
    assert data.steps_per_epoch == 6
    assert (data.rows_in, data.rows_kept, data.cut_rows, data.kept_fraction) == (12, 12, 0, 1.0)
    seconds = job.recorded.speed.step_seconds  # type: ignore[attr-defined]
    assert data.hours_per_epoch == pytest.approx(6 * seconds[0] / 3600)


def test_reward_leaves_out_what_is_too_long_and_dpo_cuts_it(tmp_path: Path) -> None:
    short = ("max_length=10", "steps=1", "unmeasured_steps=0")
    lengths = (9, 17, 12, 20, 5, 14, 9, 11, 16, 8, 13, 10)
    reward = ran(tmp_path, "reward", *short).recorded.data  # type: ignore[attr-defined]
    kept = [length for length in lengths if length <= 10]
    assert (reward.rows_kept, reward.kept_tokens) == (len(kept), 2 * sum(kept))
    dpo = ran(tmp_path, "dpo", *short).recorded.data  # type: ignore[attr-defined]
    # A prompt is half of its row: that of 20 fills all ten tokens, and the row is dropped.
    kept = [min(length, 10) for length in lengths if length // 2 < 10]
    assert (dpo.rows_kept, dpo.kept_tokens) == (len(kept), 2 * sum(kept))
    assert dpo.cut_rows == sum(length > 10 for length in lengths)


@pytest.mark.parametrize(
    ("trainer", "rows", "more", "said"),
    [
        ("reward", [PAIR] * 3, "max_length=4", "no pair with a difference is left within max_length=4"),
        ("dpo", [PAIR] * 3, "max_length=4", "no pair with a difference is left within max_length=4"),
        ("dpo", [{**PAIR, "rejected": PAIR["chosen"]}] * 3, "max_length=64", "chosen and rejected are the same"),
        ("grpo", [{"prompt": "a"}, {"prompt": ""}], "seed=0", "row 2, column prompt: it has no token"),
        ("grpo", [{"prompt": "a"}], "batch_size=8", "1 prompts do not fill a batch"),
        (
            "rloo",
            [{"prompt": "a"}],
            "trainer.reward=nowhere.reward",
            "trainer.reward=nowhere.reward cannot be imported",
        ),
    ],
)
def test_what_teaches_nothing_is_refused_with_its_reason(
    trainer: str, rows: list[dict[str, str]], more: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    record = job_of(tmp_path, trainer, "data=jsonl", f"data.path={path}", more).recorded  # type: ignore[attr-defined]
    assert record.status == "refused", record.reason
    assert record.reason_kind == ("not_found" if "reward" in more else "invalid_data")
    assert said in record.reason


def test_log_probs_of_the_reference_computed_beforehand_need_no_second_model(tmp_path: Path) -> None:
    short = ("steps=1", "unmeasured_steps=0")
    held = ran(tmp_path / "a", "dpo", *short).recorded  # type: ignore[attr-defined]
    before = ran(tmp_path / "b", "dpo", *short, "trainer.args.precompute_ref_log_probs=true")
    record = before.recorded  # type: ignore[attr-defined]
    assert (held.effective["reference_model"], record.effective["reference_model"]) == (True, False)
    assert record.loss.first == pytest.approx(held.loss.first, abs=1e-5)
    # The reference is a second model of as many weights.
    weights = 4 * held.effective["parameters"]
    saved = held.memory.worst_case_peak_allocated_bytes - record.memory.worst_case_peak_allocated_bytes
    assert saved == pytest.approx(weights, rel=0.05)


@pytest.mark.parametrize(
    ("trainer", "typed", "kind", "said"),
    [
        ("grpo", "loss_type=nll", "conflict", "trainer.args.loss_type=nll: TRL refuses it. Unknown loss type: nll"),
        ("grpo", "sync_ref_model=true", "conflict", "trainer.args.sync_ref_model=true: TRL refuses it. You passed"),
        ("dpo", "truncation_mode=middle", "conflict", "expected 'keep_start' or 'keep_end'"),
    ],
)
def test_what_trl_says_against_an_argument_is_a_refusal_in_its_words(
    trainer: str, typed: str, kind: str, said: str, tmp_path: Path
) -> None:
    more = ("steps=1", "unmeasured_steps=0", f"trainer.args.{typed}")
    record = job_of(tmp_path, trainer, *more).recorded  # type: ignore[attr-defined]
    assert (record.status, record.reason_kind) == ("refused", kind)
    assert said in record.reason


def test_an_error_that_names_no_argument_that_was_typed_is_none_of_the_users() -> None:
    said = ValueError("--tf32 requires Ampere")
    assert objection(said, {"trainer.args.tf32": True}) is None  # raised by nobody
    with pytest.raises(ValueError, match="torch_empty_cache_steps") as raised:
        transformers.TrainingArguments(use_cpu=True, torch_empty_cache_steps=0)
    assert objection(raised.value, {"trainer.args.weight_decay": 0.1, "seed": 0}) is None


@pytest.mark.parametrize("template", ["{% for m in %}", "{{ raise_exception('Roles must alternate') }}"])
def test_what_a_chat_template_says_against_a_conversation_is_a_refusal(template: str) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(ASSETS / "tokenizer")
    with pytest.raises(jinja2.TemplateError) as raised:
        tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], chat_template=template)
    refused = objection(raised.value, {"data": "jsonl"})
    assert refused is not None
    assert refused.kind == "invalid_data"
    assert "data=jsonl does not fit the tokenizer's chat template" in str(refused)


def test_a_reward_is_learned_in_a_few_steps(tmp_path: Path) -> None:
    many = ("batch_size=32", "trainer.num_generations=32", "steps=12", "unmeasured_steps=0", "learning_rate=0.01")
    rewards = logged(ran(tmp_path, "grpo", *many), "reward")
    assert sum(rewards[-3:]) > 1.1 * sum(rewards[:3])
