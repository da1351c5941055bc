"""Where conf/ is, and what its option files say, read as plain YAML. No Hydra in here."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

# Groups that say what is run; every other group is a technique.
STRUCTURE = ("trainer", "model", "data", "backend", "gpu", "logger", "experiment")


@functools.cache
def conf_dir() -> Path:
    """memexp/conf in an installed wheel, conf/ beside memexp/ in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


def sweeps_dir() -> Path:
    """The sweep files, beside conf/ in a checkout and beside it in the wheel."""
    return conf_dir().with_name("sweeps")


def groups(*folders: Path) -> dict[str, list[str]]:
    """Group name to its options, sorted, over conf/ and any folders of the user's own that hold groups."""
    return _groups_in(*folders) if folders else _shipped_groups()


@functools.cache
def _shipped_groups() -> dict[str, list[str]]:
    return _groups_in()


def _groups_in(*folders: Path) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for folder in (conf_dir(), *folders):
        for group in sorted(path for path in folder.iterdir() if path.is_dir() and path.name != "hydra"):
            options = {file.stem for file in group.iterdir() if file.suffix in (".yaml", ".yml")}
            if options or folder == conf_dir():
                found.setdefault(group.name, set()).update(options)
    return {group: sorted(options) for group, options in found.items()}


@functools.cache
def option(group: str, name: str) -> dict[str, Any]:
    """The file of one option as written, interpolations included. Raises OSError where there is none."""
    loaded: dict[str, Any] = yaml.safe_load((conf_dir() / group / f"{name}.yaml").read_text(encoding="utf-8")) or {}
    return loaded


@functools.cache
def primary() -> dict[str, Any]:
    """config.yaml as written."""
    loaded: dict[str, Any] = yaml.safe_load((conf_dir() / "config.yaml").read_text(encoding="utf-8"))
    return loaded


@functools.cache
def acts_on() -> dict[str, tuple[str, ...]]:
    """Technique's group to the categories of memory that any of its options acts on, as its files say."""
    found: dict[str, dict[str, None]] = {}
    for group, names in groups().items():
        for name in names if group not in STRUCTURE else ():
            found.setdefault(group, {}).update(dict.fromkeys(option(group, name).get("acts_on") or ()))
    return {group: tuple(categories) for group, categories in found.items() if categories}


@functools.cache
def values_not_taken(trainer: str) -> tuple[str, ...]:
    """Keys of config.yaml that fill an argument of some trainer, as `max_length`, and none of this one."""
    filling = {name: {*filling_keys(option("trainer", name)["sets"]).values()} for name in groups()["trainer"]}
    others = set().union(*filling.values()) - filling[trainer]
    return tuple(key for key in sorted(others) if key in primary())


def filling_keys(sets: Mapping[str, Any]) -> dict[str, str]:
    """TRL's arguments to the keys that fill them, from a trainer's file, where `max_length: ${max_length}` says so."""
    return {argument: str(value).removeprefix("${").removesuffix("}") for argument, value in sets.items()}


@functools.cache
def group_defaults() -> dict[str, str | None]:
    """Group to the option that config.yaml's defaults list names; None where it names none."""
    entries = (entry for entry in primary()["defaults"] if isinstance(entry, dict))
    return {group: name for entry in entries for group, name in entry.items() if not group.startswith("override ")}


def default_option(group: str, backend: str) -> str | None:
    """A group's default, `auto` replaced by what it stands for on a backend. Raises KeyError for no such group."""
    default = group_defaults()[group]
    auto = option(group, default).get("auto") if default is not None else None
    return auto.get(backend) if isinstance(auto, dict) else default
