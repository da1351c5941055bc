"""Plain frozen data that survives a round trip through JSON. Nothing in here knows what the data is about."""

import dataclasses
import functools
import json
import types
import typing
from pathlib import Path
from typing import Any, Self


class Frozen:
    """Mix into a `@dataclass(frozen=True)` whose fields are JSON values, tuples, or other Frozen dataclasses."""

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values, nested dataclasses as mappings. A copy: the caller may change it."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    def to_json(self) -> str:
        """One line, keys in field order. Raises ValueError for NaN and infinity, which JSON does not have."""
        return json.dumps(self.to_dict(), allow_nan=False, ensure_ascii=False)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Rebuild nested dataclasses. Keys this version does not know are dropped, so that newer files stay readable.

        Raises TypeError for a missing field without a default and for data that is no mapping.
        """
        if not isinstance(data, dict):
            raise TypeError(f"{cls.__name__} is read from a mapping, not from {type(data).__name__}")
        hints = _field_hints(cls)  # type: ignore[arg-type]
        return cls(**{key: _rebuild(hints[key], value) for key, value in data.items() if key in hints})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`. Raises ValueError for text that is no JSON and TypeError for another shape."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read one object from a JSON file. Raises OSError, ValueError or TypeError; never runs anything it reads."""
        return cls.from_json(path.read_text(encoding="utf-8"))


@functools.cache
def _field_hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _rebuild(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    origin, arguments = _taken_apart(hint)
    if origin in (typing.Union, types.UnionType):
        return _rebuild(next(a for a in arguments if a is not type(None)), value)
    if origin is tuple:
        return tuple(_rebuild(arguments[0], item) for item in value)
    if isinstance(hint, type) and issubclass(hint, Frozen):
        return hint.from_dict(value)
    return value


@functools.cache
def _taken_apart(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(hint), typing.get_args(hint)
