"""Writes memexp/assets/docstrings.jsonl: about 1,000 conversations made of Python's own docstrings.

Run once by a maintainer, with CPython 3.11 and nothing installed; then train the tokenizer again:

    python3.11 tools/make_docstrings.py && python tools/train_tokenizer.py

The same interpreter writes the same bytes. Left out: what depends on how Python was built, what is private, inherited
or said twice, and every module whose source carries a licence notice of its own (see LICENSE-docstrings.txt).
"""

import hashlib
import importlib
import inspect
import json
import pkgutil
import random
import re
import sys
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

OUTPUT = Path(__file__).parents[1] / "memexp" / "assets" / "docstrings.jsonl"
ROWS = 1_000
MOST_ROWS_OF_A_MODULE = 25
# Three conversations in four end with the first answer; the others have one, two or three questions more.
FOLLOW_UP_SHARES = (0.75, 0.92, 0.98)
ORDER_SEED = 0
DOCSTRING_CHARACTERS = range(40, 16_001)
SIGNATURE_CHARACTERS = range(100)

ACT_ON_IMPORT = {"antigravity", "this"}
NOT_IN_EVERY_BUILD = {"crypt", "curses", "dbm", "nis", "ossaudiodev", "readline", "spwd", "tkinter", "turtle"}
NOT_FOR_CALLERS = {"encodings", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "tests", "turtledemo"}
GONE_IN_PYTHON_3_12 = {"asynchat", "asyncore", "distutils", "imp", "smtpd"}
SKIPPED = ACT_ON_IMPORT | NOT_IN_EVERY_BUILD | NOT_FOR_CALLERS | GONE_IN_PYTHON_3_12
# Users know these modules as `os` and `os.path`.
HIDDEN = {"genericpath", "ntpath", "nturl2path", "posix", "posixpath"}

LICENCE_NOTICE = re.compile(
    "Permission (to use|is granted|is hereby)|copy, modify, merge|Redistribution and use|NO WARRANTY|Licensed under the"
)
# Credits say who wrote a module, not what it does; a person's address or one in memory has no place in a data set.
UNFIT_DOCSTRING = re.compile(r"(?i)copyright|authors?:|written by|\bat 0x|[\w.]+@[\w-]+\.\w|/(home|root|users)/")
# A default that prints as <object at 0x7f...> or as a path is the machine's, not Python's.
UNFIT_SIGNATURE = re.compile(r"[</\\]")

QUESTIONS = {
    "module": (
        "What is the `{name}` module for?",
        "Tell me about Python's `{name}` module.",
        "I found `import {name}` in a script. What does this module do?",
        "Give me an overview of `{name}`.",
        "When would I use `{name}` from the standard library?",
    ),
    "class": (
        "What is `{name}`?",
        "Explain the class `{name}`.",
        "I came across `{name}` in some Python code. What does it represent?",
        "What is the class `{name}{signature}` for?",
        "How do I use `{name}{signature}`?",
        "Write the docstring of `{name}`.\n\n```python\nclass {short}: ...\n```",
    ),
    "function": (
        "What does `{name}` do?",
        "How is `{name}` used?",
        "Could you remind me what `{name}` does?",
        "I am reading code that calls `{name}`. What should I know about it?",
        "What does `{name}{signature}` do?",
        "Explain `{name}{signature}`.",
        "In Python, what is `{name}{signature}` for?",
        "Write the docstring of `{name}`.\n\n```python\ndef {short}{signature}: ...\n```",
    ),
    "attribute": (
        "What is `{name}`?",
        "What does the attribute `{name}` hold?",
        "What do I get when I read `{name}`?",
    ),
    "follow-up": (
        "And what about `{name}`?",
        "How does `{name}` fit in?",
        "Thanks. And `{name}{signature}`?",
        "What does `{name}{signature}` do, then?",
    ),
}

Message = dict[str, str]


@dataclass(frozen=True)
class Entry:
    """One documented thing. `owner` is the name of the class or module that holds it, and a module's own name."""

    name: str
    kind: str
    module: str
    owner: str
    signature: str
    docstring: str


def main() -> None:
    entries = list(documented_entries())
    rows = [json.dumps({"messages": messages}, ensure_ascii=False) for messages in conversations(entries)]
    OUTPUT.write_text("\n".join(rows) + "\n", encoding="utf-8")
    print(f"{OUTPUT.name}: {len(rows)} conversations from {len(entries)} docstrings, {OUTPUT.stat().st_size:,} bytes")


def conversations(entries: list[Entry]) -> list[list[Message]]:
    """A sample of ROWS in which longer docstrings are likelier, since most of the library's are a single line."""
    ranked = sorted(entries, key=lambda entry: share(entry.name) ** (1 / len(entry.docstring)), reverse=True)
    members: dict[str, list[Entry]] = defaultdict(list)
    for entry in ranked:
        members[entry.owner].append(entry)
    used: set[str] = set()
    rows_of_module: Counter[str] = Counter()
    rows: list[list[Message]] = []
    for entry in ranked:
        if len(rows) == ROWS:
            break
        if entry.name in used or rows_of_module[entry.module] == MOST_ROWS_OF_A_MODULE:
            continue
        used.add(entry.name)
        related = [other for other in members[entry.name] or members[entry.owner] if other.name not in used]
        follow_ups = related[: bisect(FOLLOW_UP_SHARES, share(f"{entry.name} follow-ups"))]
        used.update(other.name for other in follow_ups)
        rows_of_module[entry.module] += 1
        rows.append(turn(entry, entry.kind) + [message for other in follow_ups for message in turn(other, "follow-up")])
    random.Random(ORDER_SEED).shuffle(rows)
    return rows


def turn(entry: Entry, kind: str) -> list[Message]:
    templates = [text for text in QUESTIONS[kind] if entry.signature or "{signature}" not in text]
    template = templates[int(share(f"{entry.name} question") * len(templates))]
    question = template.format(name=entry.name, short=entry.name.rpartition(".")[2], signature=entry.signature)
    return [{"role": "user", "content": question}, {"role": "assistant", "content": entry.docstring}]


def share(text: str) -> float:
    """A number between 0 and 1, neither of them, that depends on the text alone."""
    return (int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") + 1) / (2**48 + 2)


def documented_entries() -> Iterator[Entry]:
    """Every fit docstring of the standard library, once. Imports all of its public modules."""
    seen: set[str] = set()
    for module in public_modules():
        for entry in entries_of(module):
            if entry.docstring not in seen and len(entry.docstring) in DOCSTRING_CHARACTERS:
                seen.add(entry.docstring)
                yield entry


def public_modules() -> Iterator[ModuleType]:
    top = {name for name in sys.stdlib_module_names if not name.startswith("_")} - SKIPPED - HIDDEN
    for name in sorted(top | {"os.path"}):
        yield from importable(name)


def importable(name: str) -> Iterator[ModuleType]:
    """The module, then its public submodules: what a package exports is known by its shortest name."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        return
    source = Path(getattr(module, "__file__", None) or "")
    if source.suffix == ".py" and LICENCE_NOTICE.search(source.read_text(encoding="utf-8")):
        return
    yield module
    for child in sorted(info.name for info in pkgutil.iter_modules(getattr(module, "__path__", []))):
        if not child.startswith("_") and child not in SKIPPED:
            yield from importable(f"{name}.{child}")


def entries_of(module: ModuleType) -> Iterator[Entry]:
    """The module, its classes and functions, and what its classes define themselves: no base's docstring again."""
    home = "os.path" if module.__name__ == "posixpath" else module.__name__
    yield Entry(home, "module", home, home, "", docstring_of(module))
    for key in sorted(getattr(module, "__all__", vars(module))):
        thing = getattr(module, key, None)
        if key.startswith("_") or getattr(thing, "__name__", key) != key or not belongs(thing, module):
            continue
        name = key if home == "builtins" else f"{home}.{key}"
        kind = "class" if isinstance(thing, type) else "function"
        yield Entry(name, kind, home, home, signature_of(thing), docstring_of(thing))
        for member, value in sorted(vars(thing).items()) if isinstance(thing, type) else ():
            if not member.startswith("_") and not isinstance(value, type):
                value = getattr(value, "__func__", value)
                kind = "function" if callable(value) else "attribute"
                yield Entry(f"{name}.{member}", kind, home, name, signature_of(value), docstring_of(value))


def belongs(thing: object, module: ModuleType) -> bool:
    """Defined by the module, or listed by it and lent by a private part. What it imports for its own use is not."""
    home = getattr(thing, "__module__", None) or ""
    same_package = home.split(".")[0] == module.__name__.split(".")[0]
    lent = hasattr(module, "__all__") and (same_package or home.startswith("_") or home in HIDDEN)
    return callable(thing) and (home == module.__name__ or lent)


def docstring_of(thing: object) -> str:
    """Without indentation; empty where it is only that of the thing's type, or unfit."""
    text = thing.__doc__
    if not isinstance(text, str) or text == type(thing).__doc__ or UNFIT_DOCSTRING.search(text):
        return ""
    return inspect.cleandoc(text).strip()


def signature_of(thing: object) -> str:
    """`(text, width=70)`; empty where Python knows none or it is unfit."""
    try:
        signature = str(inspect.signature(thing)) if callable(thing) else ""
    except (TypeError, ValueError):
        return ""
    return "" if len(signature) not in SIGNATURE_CHARACTERS or UNFIT_SIGNATURE.search(signature) else signature


if __name__ == "__main__":
    main()
