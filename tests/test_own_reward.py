"""A reward of the user's own that fails is named, with what it did: TRL's errors do not, and a NaN it takes as 0."""

import asyncio
import math
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from memexp.run.own_reward import RewardError, load_reward


def given(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.ModuleType("own")
    module.reward = function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own", module)
    return load_reward("own.reward")


def broken(completions: list[str], **_: Any) -> list[float]:
    raise KeyError("gold")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda **_: [1.0], "returned 1 rewards for 2 completions"),
        (lambda **_: [1.0] * 3, "returned 3 rewards for 2 completions"),
        (lambda **_: [1.0, math.nan], "returned nan for completion 2"),
        (lambda **_: [-math.inf, 1.0], "returned -inf for completion 1"),
        (lambda **_: [None, None], "returned None for each completion"),
        (lambda **_: None, "returned None"),
        (lambda **_: 1.0, r"returned 1\.0"),
        (lambda **_: ["good", "bad"], r"returned \['good', 'bad'\]"),
        (broken, "raised KeyError: 'gold'"),
        (lambda completions: [1.0, 1.0], "raised TypeError: .* unexpected keyword argument 'answer'"),
    ],
)
def test_a_reward_that_fails_is_named_with_what_it_did(
    function: Callable[..., Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RewardError, match=rf"trainer\.reward=own\.reward {said}"):
        given(function, monkeypatch)(completions=["a", "b"], answer=["a", "b"])


def test_a_reward_that_holds_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    reward = given(lambda completions, answer: [1, None], monkeypatch)
    assert reward(completions=["a", "b"], answer=["a", "b"]) == [1.0, None]
    assert reward.__name__ == "reward"

    async def judge(completions: list[str], **_: Any) -> list[bool]:
        return [True, False]

    assert asyncio.run(given(judge, monkeypatch)(completions=["a", "b"])) == [1.0, 0.0]
