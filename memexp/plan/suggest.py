"""What was probably meant by a word that nothing has: the nearest known one, and how that is said."""

import difflib
from collections.abc import Iterable


def did_you_mean(typed: str, known: Iterable[str], otherwise: str = "", before: str = "") -> str:
    """`Did you mean NAME?` for the nearest of `known`, `before` standing before it; `otherwise` where none is near."""
    names = list(known)
    near = difflib.get_close_matches(typed, names, n=1) or _containing(typed, names)
    return f"Did you mean {before}{near[0]}?" if near else otherwise


def _containing(typed: str, names: list[str]) -> list[str]:
    """`4090` is a part of `rtx4090_24gb` and far from the whole of it."""
    found = [name for name in names if len(typed) > 2 and typed.lower() in name.lower()]
    return sorted(found, key=len)
