"""How values read: options as they are typed, numbers in units that people use. Files for machines stay raw."""

import json
from collections.abc import Sequence
from typing import Any

KIB, MIB, GIB = 2**10, 2**20, 2**30


def option_text(value: Any) -> str:
    """An option as it is typed. null is `null`, a truth value `true` or `false`, a list or mapping its JSON."""
    if isinstance(value, str):
        return value
    if type(value) is int:  # as JSON, and ten times as fast: tables ask for every cell of every axis
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=str)


def visible(text: str) -> str:
    """The text with everything that moves a cursor, hides or reorders made visible as an escape, newlines too."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str, limit: int = 300) -> str:
    """Free text on one line of at most `limit` characters, its end cut off with an ellipsis."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def bytes_text(count: float) -> str:
    """Binary units: 1.23 GiB, 512 MiB, 3.21 MiB, 12.0 KiB."""
    if count >= GIB:
        return f"{count / GIB:,.2f} GiB"
    if count >= MIB:
        return f"{_three_digits(count / MIB)} MiB"
    return f"{_three_digits(count / KIB)} KiB" if count >= KIB else f"{count:.0f} B"


def seconds_text(seconds: float) -> str:
    return f"{_three_digits(seconds)} s" if seconds >= 1 else f"{_three_digits(1000 * seconds)} ms"


def rate_text(per_second: float) -> str:
    return _three_digits(per_second)


def fraction_text(fraction: float) -> str:
    """A fraction as percent. 100% and 0% are said only of what is exactly that."""
    percent = f"{100 * fraction:.1f}".removesuffix(".0")
    if percent == "100" and fraction < 1:
        return ">99.9%"
    return "<0.1%" if percent == "0" and fraction > 0 else f"{percent}%"


def change_text(percent: float) -> str:
    """A signed change in percent: -34.1%, +0.3%, +1,234%."""
    text = f"{percent:+,.0f}%" if abs(percent) >= 1000 else f"{percent:+.1f}%"
    return "0.0%" if text in ("+0.0%", "-0.0%") else text


def spread_text(percent: float | None) -> str:
    """How far repeats lie apart, to be put behind a number: ` ±1.2%`; empty where they agree or nothing is known."""
    return f" ±{percent:.1f}%" if percent is not None and percent >= 0.05 else ""


def listing(words: Sequence[str], total: int | None = None, at_most: int = 4) -> str:
    """`a, b and c`, or the first of them `and 7 more`. `total` counts words that were left out of `words`."""
    shown = list(words[:at_most])
    rest = (len(words) if total is None else total) - len(shown)
    if rest:
        return f"{', '.join(shown)} and {rest:,} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def _three_digits(number: float) -> str:
    if number >= 100:
        return f"{number:,.0f}"
    if number >= 10:
        return f"{number:.1f}"
    return f"{number:.2f}" if number >= 0.01 or number == 0 else f"{number:.1g}"
