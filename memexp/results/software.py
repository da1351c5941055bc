"""The software of a record's environment, and what two of them differ in: versions and memexp's own code."""

from collections.abc import Iterable, Mapping
from typing import Any


def versions_of(environment: Mapping[str, Any]) -> dict[str, Any]:
    """By package; empty where the environment states none."""
    versions = environment.get("versions")
    return {str(name): version for name, version in versions.items()} if isinstance(versions, dict) else {}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """`("torch 2.12.0 (now 2.13.0)", "memexp's code")`, from the `environment` of two records. What either does not
    state is no difference.
    """
    old, new = versions_of(before), versions_of(now)
    changed = [
        f"{name} {old[name] or 'missing'} (now {new[name] or 'missing'})"
        for name in old
        if name in new and old[name] != new[name]
    ]
    codes = before.get("code"), now.get("code")
    return (*changed, *(["memexp's code"] if None not in codes and codes[0] != codes[1] else []))


def mixed(environments: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """What is not the same in all of them: `("trl 1.16.0 and 1.17.0", "memexp's code")`."""
    found: dict[str, dict[str, None]] = {}
    codes: set[Any] = set()
    for environment in environments:
        codes |= {environment.get("code")} - {None}
        for name, version in versions_of(environment).items():
            found.setdefault(name, {})[str(version)] = None
    versions = [f"{name} {' and '.join(several)}" for name, several in found.items() if len(several) > 1]
    return (*versions, *(["memexp's code"] if len(codes) > 1 else []))
