"""The data set and the tokenizer that ship: what they promise, read from the files as they are."""

import inspect
import json
import pydoc
import re
import sys
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any

import pytest

from memexp.plan.length_distributions import SHIPPED_SPECIAL_TOKENS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ASSETS = Path(__file__).parents[1] / "memexp" / "assets"
Conversation = list[dict[str, str]]


@pytest.fixture(scope="module")
def conversations() -> list[Conversation]:
    with (ASSETS / "docstrings.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line)["messages"] for line in lines]


@pytest.fixture(scope="module")
def tokenizer() -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(ASSETS / "tokenizer", local_files_only=True)


def rendered(tokenizer: "PreTrainedTokenizerBase", conversation: Conversation) -> dict[str, list[int]]:
    both: Any = tokenizer.apply_chat_template(conversation, return_dict=True, return_assistant_tokens_mask=True)
    return {"input_ids": both["input_ids"], "assistant_masks": both["assistant_masks"]}


def test_about_a_thousand_conversations_ship(conversations: list[Conversation]) -> None:
    assert 900 <= len(conversations) <= 1_100


def test_the_data_is_small_enough_to_live_in_the_package() -> None:
    assert (ASSETS / "docstrings.jsonl").stat().st_size < 1.2 * 2**20


def test_every_conversation_is_questions_and_answers_in_turn(conversations: list[Conversation]) -> None:
    for messages in conversations:
        assert [message["role"] for message in messages] == ["user", "assistant"] * max(1, len(messages) // 2)
        assert all(message.keys() == {"role", "content"} for message in messages)
        assert all(message["content"].strip() for message in messages)


def test_some_conversations_go_on_after_the_first_answer(conversations: list[Conversation]) -> None:
    assert 0.1 < mean(len(messages) > 2 for messages in conversations) < 0.5


def test_no_text_ships_twice(conversations: list[Conversation]) -> None:
    texts = [message["content"] for messages in conversations for message in messages]
    assert len(set(texts)) == len(texts)


def test_no_text_names_a_path_or_an_object_of_the_machine_it_was_made_on(conversations: list[Conversation]) -> None:
    of_a_machine = re.compile(r"/(home|root|Users)/|:\\Users|pyenv|conda|\bat 0x[0-9a-f]+")
    texts = [message["content"] for messages in conversations for message in messages]
    assert [text for text in texts if of_a_machine.search(text)] == []


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions of Python have other docstrings")
@pytest.mark.parametrize("module", ["difflib", "heapq", "json", "statistics", "textwrap"])
def test_an_answer_is_the_docstring_of_what_the_question_names(module: str, conversations: list[Conversation]) -> None:
    turns = [turn for messages in conversations for turn in zip(messages[::2], messages[1::2], strict=True)]
    named = [(re.search(rf"`({module}[\w.]*)", asked["content"]), answer["content"]) for asked, answer in turns]
    answers = {match[1]: answer for match, answer in named if match}
    assert answers
    assert answers == {name: inspect.getdoc(pydoc.locate(name)) for name in answers}


def test_the_licence_of_the_docstrings_ships_beside_them() -> None:
    text = (ASSETS / "LICENSE-docstrings.txt").read_text(encoding="utf-8")
    assert "Copyright (c) 2001-2023 Python Software Foundation; All Rights Reserved" in text
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in text
    assert all(f"\n{section}. " in text for section in range(1, 9))


def test_conversations_have_a_long_tail_of_lengths(
    conversations: list[Conversation], tokenizer: "PreTrainedTokenizerBase"
) -> None:
    lengths = [len(rendered(tokenizer, messages)["input_ids"]) for messages in conversations]
    assert min(lengths) < 40
    assert mean(lengths) > 1.3 * median(lengths)
    assert 5 < sum(length > 1_024 for length in lengths) < 50


def test_the_vocabulary_has_4096_tokens_whose_first_are_special(tokenizer: "PreTrainedTokenizerBase") -> None:
    assert len(tokenizer) == tokenizer.vocab_size == 4_096
    assert sorted(tokenizer.all_special_ids) == list(range(SHIPPED_SPECIAL_TOKENS))


def test_padding_is_not_the_end_of_a_turn(tokenizer: "PreTrainedTokenizerBase") -> None:
    assert tokenizer.pad_token == "<|pad|>"
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert tokenizer.bos_token is None


@pytest.mark.parametrize(
    "text",
    [
        "".join(map(chr, range(0x0, 0x600))),
        "🤗 👩\u200d👩\u200d👧 \U0010ffff",
        "e\u0301 and \u00e9 are not the same, nor are \ufb01 and fi",
        "  two spaces before , and a space before a comma\t\r\n\n  n't ",
        "",
    ],
)
def test_decoding_gives_back_any_text(text: str, tokenizer: "PreTrainedTokenizerBase") -> None:
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == text


def test_every_byte_has_a_token_of_its_own(tokenizer: "PreTrainedTokenizerBase") -> None:
    from tokenizers.pre_tokenizers import ByteLevel

    assert set(ByteLevel.alphabet()) <= tokenizer.get_vocab().keys()
    assert len(ByteLevel.alphabet()) == 256


def test_the_chat_template_is_chatml(tokenizer: "PreTrainedTokenizerBase") -> None:
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    prompt = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    answered = [*asked, {"role": "assistant", "content": "So."}]
    assert tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True) == prompt
    assert tokenizer.apply_chat_template(answered, tokenize=False) == prompt + "So.<|im_end|>\n"


def test_the_assistant_mask_covers_each_answer_and_its_end_and_nothing_else(
    conversations: list[Conversation], tokenizer: "PreTrainedTokenizerBase"
) -> None:
    emoji = [{"role": "user", "content": "🤗 ?"}, {"role": "assistant", "content": "🤗 yes 👩\u200d👧"}]
    for messages in [*conversations, emoji]:
        both = rendered(tokenizer, messages)
        trained = [token for token, in_answer in zip(*both.values(), strict=True) if in_answer]
        answers = [message["content"] for message in messages[1::2]]
        assert tokenizer.decode(trained) == "".join(f"{answer}<|im_end|>" for answer in answers)
        starts = sum(later > earlier for earlier, later in pairwise(both["assistant_masks"]))
        assert starts == len(answers)
