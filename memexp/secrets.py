"""Keys and passwords of the user's, kept out of every file that memexp writes.

A variable of the environment is told by its name, and its value is looked for in text. A key that was typed is told by
its shape where its maker gave it one. Any other key that is only in a file (`~/.netrc`) is not known here; memexp reads
no such file.
"""

import os
import re
from collections.abc import Mapping
from typing import Any

_NAME_OF_A_SECRET = re.compile(
    r"^AWS_|(^|_)(\w*KEY|\w*TOKEN|SECRET|PASS|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|PAT)(_ID)?$"
)
_SHAPE_OF_A_SECRET = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{20,}|gh[opsu]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|AKIA[0-9A-Z]{16})\b"
    r"|(?<=://)[^\s/:@]+:[^\s/@]+(?=@)"  # the user and password of an address
)
_SHORTEST_SECRET = 8
HIDDEN = "***"


def is_secret(name: str) -> bool:
    """Whether a variable is named like a key: WANDB_API_KEY, HF_TOKEN, AWS_…, DB_PASSWORD."""
    return _NAME_OF_A_SECRET.search(name.upper()) is not None


def secrets_in(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Values of variables that are named like a key, longest first.

    Left out are short ones, which occur by chance, and paths that exist: they say where a key is, and name data too.
    """
    values = {value.strip() for name, value in environment.items() if is_secret(name)}
    return tuple(sorted(filter(_can_be_told, values), key=len, reverse=True))


def without_secrets(value: Any, secrets: tuple[str, ...]) -> Any:
    """The same JSON value with each secret inside a text or a key, and what has a secret's shape, replaced by "***"."""
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, HIDDEN)
        return _SHAPE_OF_A_SECRET.sub(HIDDEN, value)
    if isinstance(value, dict):
        return {without_secrets(key, secrets): without_secrets(item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(item, secrets) for item in value]
    return value


def _can_be_told(value: str) -> bool:
    return len(value) >= _SHORTEST_SECRET and not os.path.exists(value)
