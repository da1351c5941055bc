"""The reward function that a user names: found as Python finds it, and what it gives back judged before TRL adds it up.

TRL 1.16 takes a NaN or None as 0 among its sums and says nothing, and its own errors do not name the function.
"""

import importlib
import inspect
import math
from collections.abc import Callable
from functools import wraps
from typing import Any

from memexp.run.refusal import Refused

_SHOWN = 60  # characters of what a function returned


class RewardError(Exception):
    """A reward function raised, or gave back what is no reward. The cell failed, and its reason names the function."""


def load_reward(path: str) -> Callable[..., Any]:
    """The function of trainer.reward=MODULE.FUNCTION. Raises Refused (not_found) where there is none.

    Called, it raises RewardError where it raises itself or gives back anything but a number, or None, a completion.
    """
    module, _, name = path.rpartition(".")
    try:
        reward = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever a user's module does when it is imported
        raise Refused(
            "not_found", f"trainer.reward={path} cannot be imported: {error}. Type MODULE.FUNCTION, as python finds it."
        ) from error
    if not callable(reward):
        raise Refused("not_found", f"trainer.reward={path} is no function. Type MODULE.FUNCTION.")
    return _judged(reward, path, name)


def _judged(reward: Callable[..., Any], path: str, name: str) -> Callable[..., Any]:
    async def called_async(*, completions: list[Any], **columns: Any) -> list[float | None]:
        try:
            given = await reward(completions=completions, **columns)
        except Exception as error:
            raise _raised(path, error) from error
        return _numbers(given, len(completions), path)

    def called(*, completions: list[Any], **columns: Any) -> list[float | None]:
        try:
            given = reward(completions=completions, **columns)
        except Exception as error:
            raise _raised(path, error) from error
        return _numbers(given, len(completions), path)

    wrapper = wraps(reward)(called_async if inspect.iscoroutinefunction(reward) else called)
    wrapper.__name__ = name  # TRL asks for it, and an object that can be called has none
    return wrapper


def _raised(path: str, error: Exception) -> RewardError:
    return RewardError(f"trainer.reward={path} raised {type(error).__name__}: {error}")


def _numbers(given: Any, completions: int, path: str) -> list[float | None]:
    try:
        rewards = [None if reward is None else float(reward) for reward in given]
    except (TypeError, ValueError) as error:
        said = repr(given)
        raise _useless(path, said if len(said) <= _SHOWN else f"{said[:_SHOWN]}…") from error
    if len(rewards) != completions:
        raise _useless(path, f"{len(rewards)} rewards for {completions} completions")
    if not any(reward is not None for reward in rewards):
        raise _useless(path, "None for each completion of a batch, which leaves nothing to learn")
    for number, reward in enumerate(rewards, start=1):
        if reward is not None and not math.isfinite(reward):
            raise _useless(path, f"{reward} for completion {number}")
    return rewards


def _useless(path: str, what: str) -> RewardError:
    return RewardError(f"trainer.reward={path} returned {what}. Let it return a list with a number a completion.")
