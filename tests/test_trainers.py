"""The trainers beside SFT, in real runs on the CPU: what memexp counts is what TRL itself counts."""

import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from memexp.plan import load
from memexp.run.worker import Job

ROWS = ("data=lengths", "data.rows=12", "data.distribution=[9,17,12,20,5,14,9,11,16,8,13,10]")
PAIR = {"prompt": "one two three four five six", "chosen": " seven eight", "rejected": " nine"}
ONLINE = ("grpo", "rloo", "online_dpo")
# TRL and transformers still call checkpointing by its old name; online DPO is experimental.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:You are importing from 'trl.experimental'"),
]


@pytest.fixture(scope="module", autouse=True)
def quick_collections() -> Iterator[None]:
    """accelerate collects garbage after each training: not through all that was imported."""
    threads = torch.get_num_threads()
    gc.freeze()
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)


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


def test_a_reward_is_learned_in_a_few_steps(tmp_path: Path) -> None:
    many = ("batch_size=32", "trainer.num_generations=32", "steps=12", "unmeasured_steps=0", "learning_rate=0.01")
    rewards = logged(ran(tmp_path, "grpo", *many), "reward")
    assert sum(rewards[-3:]) > 1.1 * sum(rewards[:3])
