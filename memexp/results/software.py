"""What two environments differ in: library versions and memexp's own code. From JSON alone."""

from collections.abc import Iterable, Mapping
from typing import Any


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """`("torch 2.12.0 (now 2.13.0)", "memexp's code")`, from the `environment` of two records. What either does not
    state is no difference.
    """
    old, new = _versions(before), _versions(now)
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
        for name, version in _versions(environment).items():
            found.setdefault(name, {})[str(version)] = None
    versions = [f"{name} {' and '.join(several)}" for name, several in found.items() if len(several) > 1]
    return (*versions, *(["memexp's code"] if len(codes) > 1 else []))


def _versions(environment: Mapping[str, Any]) -> dict[str, Any]:
    versions = environment.get("versions")
    return {str(name): version for name, version in versions.items()} if isinstance(versions, dict) else {}
