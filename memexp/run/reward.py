"""A reward that a model can learn to get in a few steps, for the trainers that sample. Pure Python."""

from typing import Any

LETTER = "e"


def frequent_letter_share(completions: list[Any], **_: Any) -> list[float]:
    """For each completion, text or one message in a list, the share of its characters that are an e: 0 to 1.

    English has about one in nine. A completion without characters is worth 0.
    """
    texts = [completion if isinstance(completion, str) else completion[0]["content"] for completion in completions]
    return [text.lower().count(LETTER) / len(text) if text else 0.0 for text in texts]
