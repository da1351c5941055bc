"""Reading files that may be damaged, half written or made by hand: what comes back has the types that it says."""

import json
import math
import typing
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar

from memexp.frozen import Frozen

_Kind = TypeVar("_Kind", bound=Frozen)


def read_strictly(kind: type[_Kind], path: Path) -> _Kind:
    """`Frozen.read`, and ValueError for a number that JSON does not have, TypeError for a field of another type.

    Raises OSError, RecursionError for nesting that no writer makes, and whatever the dataclass itself refuses.
    """
    text = path.read_text(encoding="utf-8")
    data = kind.from_dict(json.loads(text, parse_constant=_finite, parse_float=_finite))
    if not _matches(kind, data):
        raise TypeError(f"{path} does not hold the fields of a {kind.__name__}")
    return data


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number")
    return number


def _matches(hint: Any, value: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, UnionType):
        return any(_matches(argument, value) for argument in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and all(_matches(arguments[0], item) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_matches(arguments[1], item) for item in value.values())
    if hint is None or hint is NoneType:
        return value is None
    if hint in (int, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, Frozen):
        return isinstance(value, hint)
    return isinstance(value, hint) and all(_matches(h, getattr(value, name)) for name, h in _hints(hint).items())


@cache
def _hints(kind: type[Frozen]) -> dict[str, Any]:
    return typing.get_type_hints(kind)
