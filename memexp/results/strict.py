"""Reading files that may be damaged, half written or made by hand: what comes back has the types that it says."""

import json
import math
import typing
from collections.abc import Callable
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
    return parse_strictly(kind, path.read_text(encoding="utf-8"))


def parse_strictly(kind: type[_Kind], text: str) -> _Kind:
    """`read_strictly` of text that is in hand. Raises all that it does but OSError."""
    data = kind.from_dict(json.loads(text, parse_constant=_finite, parse_float=_finite))
    if not _matches(kind, data):
        raise TypeError(f"these are not the fields of a {kind.__name__}")
    return data


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number")
    return number


def _matches(hint: Any, value: Any) -> bool:
    return _matcher(hint)(value)


@cache
def _matcher(hint: Any) -> Callable[[Any], bool]:
    """Whether a value is of a type, as a function: a folder has thousands of records, all of the same few types."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return lambda value: True
    if origin in (typing.Union, UnionType):
        options = [_matcher(argument) for argument in arguments]
        return lambda value: any(matches(value) for matches in options)
    if origin is tuple:
        item = _matcher(arguments[0])
        return lambda value: isinstance(value, tuple) and all(map(item, value))
    if origin is dict:
        item = _matcher(arguments[1])
        return lambda value: isinstance(value, dict) and all(map(item, value.values()))
    if hint is None or hint is NoneType:
        return lambda value: value is None
    if hint in (int, float):
        return lambda value: isinstance(value, int | float) and not isinstance(value, bool)
    if not issubclass(hint, Frozen):
        return lambda value: isinstance(value, hint)
    fields = [(name, _matcher(kind)) for name, kind in typing.get_type_hints(hint).items()]
    return lambda value: isinstance(value, hint) and all(matches(getattr(value, name)) for name, matches in fields)
