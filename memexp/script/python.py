"""Python code from JSON values. Whatever a string holds, it stays a string."""

import inspect
import json
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from memexp.results.format import visible


def name(dotted: Any) -> str:
    """A dotted name as it is. Raises ValueError for anything else, which would be code of somebody's."""
    if not isinstance(dotted, str) or not all(part.isidentifier() for part in dotted.split(".")):
        raise ValueError(f"{dotted!r} is no name")
    return dotted


def literal(value: Any) -> str:
    """A JSON value as Python, strings in double quotes; what would move a cursor or reorder text is an escape."""
    if isinstance(value, str):
        return visible(json.dumps(value, ensure_ascii=False))
    if isinstance(value, dict):
        return f"{{{', '.join(f'{literal(key)}: {literal(item)}' for key, item in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(literal, value))}]"
    return repr(value)


def comment(text: str) -> str:
    """The text as lines of comment, its first letter a capital."""
    return textwrap.fill(text[0].upper() + text[1:], 108, initial_indent="# ", subsequent_indent="# ")


def call(function: str, arguments: list[str]) -> str:
    """A call with one argument a line; those that begin with # are comments."""
    lines = (f"    {each}" if each.startswith("#") else f"    {each}," for each in arguments)
    return "\n".join([f"{function}(", *lines, ")"])


def keyword_arguments(values: Mapping[str, Any], null_too: bool = False) -> list[str]:
    """`name=value` for each, null ones left out: they are what a call without them means."""
    return [f"{name(key)}={literal(value)}" for key, value in values.items() if value is not None or null_too]


def quoted(*functions: Callable[..., Any]) -> str:
    """The source of functions that need nothing around them but what the script imports."""
    return "\n\n\n".join(inspect.getsource(function).rstrip() for function in functions)
