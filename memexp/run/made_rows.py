"""Preference pairs and prompts from documents, always the same from the same rows: every trainer has data to run on.

A document is cut in two, prompt and answer. What a real dataset of preferences means is not in them; its shape is.
Recommended code (`memexp.results.script`) quotes functions of this module, so that it trains on the same rows.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

from memexp.plan.length_distributions import length_distribution

# The columns of documents that pairs and prompts are made from.
DOCUMENTS: tuple[tuple[str, ...], ...] = (("messages",), ("prompt", "completion"), ("text",))
# For each kind of rows, the shapes that TRL's trainers take, each with the columns that it needs.
SHAPES: dict[str, tuple[tuple[str, ...], ...]] = {
    "documents": (("input_ids",), *DOCUMENTS),
    "pairs": (("prompt", "chosen", "rejected"), ("chosen", "rejected")),
    "prompts": (("prompt",),),
}
# What a record says where they are made.
MADE = {
    "pairs": "pairs are made from documents: a row's answer is chosen, the next row's is rejected",
    "prompts": "prompts are made from documents: what comes before the answer",
}
_WORDS = 512  # as many different words as made-up text draws from


def cut_in_two(row: dict[str, Any]) -> tuple[Any, Any] | None:
    """Prompt and answer of one document, or None where it is too short to have both.

    The last message is the answer to those before; a text is cut at the space behind its middle.
    """
    if "messages" in row:
        messages = row["messages"]
        return (messages[:-1], messages[-1:]) if len(messages) > 1 else None
    if "completion" in row:
        return row["prompt"], row["completion"]
    text = row["text"]
    space = text.find(" ", len(text) // 2)
    middle = space if space > 0 else len(text) // 2
    return (text[:middle], text[middle:]) if middle else None


def pairs(halves: Sequence[tuple[Any, Any]]) -> list[dict[str, Any]]:
    """The answer is chosen, the next row's is rejected; where that is the same, the answer with its words reversed."""
    following = [*halves[1:], *halves[:1]]
    return [
        {"prompt": prompt, "chosen": answer, "rejected": other if other != answer else with_words_reversed(answer)}
        for (prompt, answer), (_, other) in zip(halves, following, strict=True)
    ]


def rows_of_lengths(data: dict[str, Any], kind: str, tokenizer: Any) -> list[dict[str, Any]]:
    """Made-up text whose prompt and answer have together as many tokens as `data` states, end of sequence included.

    `kind` is pairs or prompts; a prompt is half of its length. Raises ValueError for what cannot be drawn, and where a
    length has no room for both.
    """
    random = Random(data["seed"])
    lengths = length_distribution(data["distribution"], data).draw(data["rows"], random)
    least = {"pairs": 3, "prompts": 2}[kind]
    if min(lengths) < least:
        raise ValueError(f"a length of {min(lengths)} has no room for a prompt and an answer; the least is {least}")
    words = single_token_words(tokenizer, _WORDS)
    return [row_of_length(length, kind, words, random) for length in lengths]


def row_of_length(length: int, kind: str, words: Sequence[str], random: Random) -> dict[str, str]:
    """A row whose prompt and answer have `length` tokens, of words that are one token each."""
    prompt = "".join(random.choices(words, k=length // 2))
    if kind == "prompts":
        return {"prompt": prompt}
    answer_words = length - length // 2 - 1  # TRL adds the end of sequence
    chosen, rejected = ("".join(random.choices(words, k=answer_words)) for _ in range(2))
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


def single_token_words(tokenizer: Any, most: int) -> list[str]:
    """Words, each with the space before it, that are one token wherever they stand behind another.

    Raises ValueError where there are none.
    """
    found: list[str] = []
    for token_id in range(len(tokenizer)):
        word = tokenizer.decode([token_id])
        if not (word.startswith(" ") and word[1:].isascii() and word[1:].isalpha()):
            continue
        if tokenizer(word * 3, add_special_tokens=False)["input_ids"] == [token_id] * 3:
            found.append(word)
        if len(found) == most:
            break
    if not found:
        raise ValueError("the tokenizer has no words of one token to make text of a stated length from")
    return found


def with_words_reversed(answer: Any) -> Any:
    if isinstance(answer, str):
        return " ".join(reversed(answer.split(" ")))
    return [{**message, "content": with_words_reversed(message["content"])} for message in answer]
