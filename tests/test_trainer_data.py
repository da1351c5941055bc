"""Pairs and prompts: a user's own, those made from documents, those of stated lengths, and what is refused by name."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
import transformers

from memexp.plan import load
from memexp.run.build import build_tokenizer
from memexp.run.data import ASSETS, how_rows_are_made, load_data
from memexp.run.refusal import Refused
from memexp.run.reward import frequent_letter_share
from memexp.run.row_lengths import has_something_to_prefer, pair_lengths
from memexp.run.tokenizer_check import check_tokenizer

USER, BOT = [{"role": "user", "content": "hi"}], [{"role": "assistant", "content": "ho"}]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(ASSETS / "tokenizer")


def data(trainer: str, folder: Path, *rows: Any, more: tuple[str, ...] = ()) -> Any:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    plan = load("backend=cpu", f"trainer={trainer}", "data=jsonl", f"data.path={path}", *more)
    return load_data(plan, vocab_size=4096)


def test_a_users_own_pairs_and_prompts_are_taken_as_they_are(tmp_path: Path) -> None:
    pair = {"prompt": "a", "chosen": "b", "rejected": "c", "text": "x"}
    assert data("dpo", tmp_path, pair).to_list() == [{"prompt": "a", "chosen": "b", "rejected": "c"}]
    assert data("reward", tmp_path, {"chosen": USER + BOT, "rejected": USER}).column_names == ["chosen", "rejected"]
    # A margin is part of a reward's loss.
    assert data("reward", tmp_path, {**pair, "margin": 0.5})["margin"] == [0.5]
    # A reward of the user's own may read the answer.
    assert data("grpo", tmp_path, {"prompt": "a", "answer": 4}).to_list() == [{"prompt": "a", "answer": 4}]
    named = data("grpo", tmp_path, {"question": "a"}, more=("data.columns.prompt=question",))
    assert named["prompt"] == ["a"]


def test_a_documents_answer_is_chosen_and_the_next_ones_is_rejected(tmp_path: Path) -> None:
    rows = [{"prompt": "1+1=", "completion": "2"}, {"prompt": "1+2=", "completion": "3"}]
    assert data("dpo", tmp_path, *rows).to_list() == [
        {"prompt": "1+1=", "chosen": "2", "rejected": "3"},
        {"prompt": "1+2=", "chosen": "3", "rejected": "2"},
    ]
    assert data("rloo", tmp_path, *rows)["prompt"] == ["1+1=", "1+2="]
    chat = data("dpo", tmp_path, {"messages": USER + BOT}, {"messages": USER + USER})
    assert chat[0] == {"prompt": USER, "chosen": BOT, "rejected": USER}
    # One row has no next one: its own words stand the other way round.
    assert data("dpo", tmp_path, {"text": "to be or not"}).to_list() == [
        {"prompt": "to be or", "chosen": " not", "rejected": "not "}
    ]


def test_a_record_says_where_its_pairs_come_from(tmp_path: Path) -> None:
    def note(trainer: str, row: dict[str, str]) -> tuple[str, ...]:
        path = tmp_path / "rows.jsonl"
        path.write_text(json.dumps(row) + "\n")
        return how_rows_are_made(load("backend=cpu", f"trainer={trainer}", "data=jsonl", f"data.path={path}"))

    assert note("sft", {"text": "a"}) == note("dpo", {"chosen": "a", "rejected": "b"}) == ()
    (said,) = note("dpo", {"text": "a b"})
    assert said.startswith("pairs are made from documents")
    (said,) = how_rows_are_made(load("backend=cpu", "trainer=grpo"))
    assert said.startswith("prompts are made from documents")


@pytest.mark.parametrize(
    ("trainer", "rows", "said"),
    [
        ("dpo", [{"prompt": "a", "chosen": "b", "rejected": None}], "row 1, column rejected: it is null"),
        ("dpo", [{"prompt": "a", "chosen": 4, "rejected": "b"}], "row 1, column chosen"),
        ("dpo", [{"prompt": "a", "chosen": BOT, "rejected": "b"}], "column chosen: it is a list of messages"),
        ("grpo", [{"prompt": "a"}, {"prompt": USER}], "row 2, column prompt: it is a list of messages, where row 1"),
        ("grpo", [{"prompt": "a"}, {"prompt": []}], "row 2, column prompt"),
        ("grpo", [{"input_ids": [1, 2]}], "trainer=grpo takes one of: prompt; messages; prompt and completion; text"),
        (
            "sft",
            [{"prompt": "a", "chosen": "b", "rejected": "c"}],
            "text. trainer=dpo or trainer=reward takes such rows. Name yours",
        ),
        ("dpo", [{"input_ids": [1, 2]}], "text. trainer=sft takes such rows."),
        ("dpo", [{"messages": USER}], "row 1, column messages: it is too short to be cut into a prompt and an answer"),
        ("sft", [{"prompt": "a", "completion": "b"}, {"prompt": USER, "completion": BOT}], "row 2, column prompt"),
    ],
)
def test_what_cannot_be_trained_on_is_named_by_row_and_column(
    trainer: str, rows: list[dict[str, Any]], said: str, tmp_path: Path
) -> None:
    with pytest.raises(Refused) as refused:
        data(trainer, tmp_path, *rows)
    assert refused.value.kind == "invalid_data"
    assert said in str(refused.value)


def test_made_up_pairs_have_the_tokens_that_were_asked_for(tokenizer: Any) -> None:
    lengths = [3, 9, 40]
    plan = load("backend=cpu", "trainer=dpo", "data=lengths", f"data.distribution={lengths}")
    rows = load_data(plan, 4096, tokenizer)
    for row, length in zip(rows, lengths, strict=True):
        # As TRL does: the answer behind the prompt, ended by eos.
        for half in ("chosen", "rejected"):
            ids = tokenizer(row["prompt"] + row[half] + tokenizer.eos_token)["input_ids"]
            assert len(ids) == length
    assert rows.to_list() == load_data(plan, 4096, tokenizer).to_list()
    prompts = load_data(load("backend=cpu", "trainer=grpo", *plan.overrides[2:]), 4096, tokenizer)
    assert [len(tokenizer(row["prompt"])["input_ids"]) for row in prompts] == [length // 2 for length in lengths]
    with pytest.raises(Refused, match="a length of 2 has no room"):
        load_data(load("backend=cpu", "trainer=dpo", "data=lengths", "data.distribution=[2,9]"), 4096, tokenizer)


@pytest.mark.parametrize(("max_length", "mode"), [(6, "keep_start"), (6, "keep_end"), (None, "keep_start")])
def test_dpo_keeps_the_pairs_that_trl_keeps(tokenizer: Any, max_length: int | None, mode: str) -> None:
    from trl import DPOTrainer

    from memexp.run.metered import metered
    from memexp.run.meters import Meters

    rows = datasets.Dataset.from_list(
        [{"prompt": " a" * n, "chosen": " b", "rejected": " c"} for n in (2, 5, 6, 7, 30)]
    )
    args = SimpleNamespace(max_length=max_length, truncation_mode=mode, dataset_num_proc=None)
    meters = SimpleNamespace(tokenised=lambda rows, lengths: None)

    def prepared(cls: Any) -> list[Any]:
        trainer = object.__new__(cls)
        trainer._tokenizer = tokenizer
        return list(trainer._prepare_dataset(rows, tokenizer, args, "train")["prompt_ids"])

    mine: Meters = meters  # type: ignore[assignment]
    assert prepared(metered(DPOTrainer, mine, "pairs")) == prepared(DPOTrainer)


def test_lengths_of_pairs_count_the_prompt_in_both_halves_and_stop_at_max_length() -> None:
    rows = datasets.Dataset.from_list([{"prompt_ids": [1, 2], "chosen_ids": [3], "rejected_ids": [4, 5, 6, 7]}])
    assert (pair_lengths(rows).tokens, pair_lengths(rows).widths) == ([3 + 6], [6])
    assert (pair_lengths(rows, 4).tokens, pair_lengths(rows, 4).widths) == ([3 + 4], [4])


def test_pairs_may_differ_at_the_end_that_is_kept_alone() -> None:
    rows = datasets.Dataset.from_list([{"prompt_ids": [1, 2, 3], "chosen_ids": [4, 5], "rejected_ids": [4, 6]}])
    assert not has_something_to_prefer(rows, 2)
    assert has_something_to_prefer(rows, 2, keep_end=True)


def test_pairs_that_are_the_same_within_max_length_teach_nothing() -> None:
    rows = datasets.Dataset.from_list([{"prompt_ids": [1], "chosen_ids": [2, 3], "rejected_ids": [2, 4]}])
    assert has_something_to_prefer(rows)
    assert has_something_to_prefer(rows, 3)
    assert not has_something_to_prefer(rows, 2)


@pytest.mark.parametrize(
    ("taken", "column", "row", "said"),
    [
        ("chat_template", "prompt", USER, "has no chat template"),
        ("eos_token", "prompt", "a", "has none"),
        ("eos_token", "text", "a", "has none"),
    ],
)
def test_a_tokenizer_that_lacks_what_trl_needs_is_refused(taken: str, column: str, row: Any, said: str) -> None:
    poor = transformers.AutoTokenizer.from_pretrained(ASSETS / "tokenizer")
    setattr(poor, taken, None)
    rows = datasets.Dataset.from_list([{column: row}])
    with pytest.raises(Refused, match=said) as refused:
        check_tokenizer(poor, rows, load("backend=cpu", "trainer=grpo"))
    assert refused.value.kind == "invalid_data"
    assert f"column {column}" in str(refused.value)


def test_the_shipped_reward_is_the_share_of_one_letter() -> None:
    assert frequent_letter_share(["Eve", "", "xyz"], prompts=["a"] * 3) == [pytest.approx(2 / 3), 0.0, 0.0]
    assert frequent_letter_share([[{"role": "assistant", "content": "e"}]]) == [1.0]


def test_a_column_that_begins_in_a_later_row_is_kept(tmp_path: Path) -> None:
    rows = data("grpo", tmp_path, {"prompt": "a"}, {"prompt": "b", "answer": 4})
    assert rows["answer"] == [None, 4]
    tools = [{"type": "function", "function": {"name": "f"}}]
    chats = data("sft", tmp_path, {"messages": USER + BOT}, {"messages": USER + BOT, "tools": tools})
    assert chats["tools"][1] is not None
    with pytest.raises(Refused, match="row 1, column margin: it is null"):
        data("reward", tmp_path, {"chosen": "a", "rejected": "b"}, {"chosen": "a", "rejected": "b", "margin": 1.0})


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"level": "hard"}, {"level": 3}], "column level: its rows hold values of different kinds"),
        ([{"completions": "x"}], "has the column completions, and TRL gives a reward its own completions. Rename it"),
    ],
)
def test_a_column_that_no_reward_can_be_given_is_refused_by_name(
    rows: list[dict[str, Any]], said: str, tmp_path: Path
) -> None:
    with pytest.raises(Refused, match=said):
        data("rloo", tmp_path, *({"prompt": "a", **row} for row in rows))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ({"tokenizer.json": '{"a": 1}'}, "the tokenizer of model.path={} cannot be loaded: KeyError: "),
        ({"tokenizer.json": "{"}, "the tokenizer of model.path={} cannot be loaded: Expecting property name"),
        ({"tokenizer.json": None, "tokenizer_config.json": None}, "model.path={} has no tokenizer. Give its"),
    ],
)
def test_a_damaged_tokenizer_is_refused_by_its_path(damage: dict[str, str | None], said: str, tmp_path: Path) -> None:
    shutil.copytree(ASSETS / "tokenizer", tmp_path, dirs_exist_ok=True)
    transformers.Qwen2Config().save_pretrained(tmp_path)
    for name, text in damage.items():
        (tmp_path / name).unlink()
        if text is not None:
            (tmp_path / name).write_text(text)
    plan = load("backend=cpu", "model.weights=pretrained", f"model.path={tmp_path}")
    with pytest.raises(Refused, match=re.escape(said.format(tmp_path))) as error:
        build_tokenizer(plan)
    assert error.value.kind == "not_found"
