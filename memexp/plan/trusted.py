"""What a file from elsewhere may name. Plans, records and YAML are data: none of them says which code runs.

Three things in them could: a class by its dotted name, a variable of the worker's environment, and what Hydra makes
objects of (`_target_`, logging handlers). Each is held to a list here, and an option from elsewhere to the shape of
those that ship. What the user types as `trainer.reward` is code that is asked for, as is
`model.trust_remote_code=true`.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from memexp.plan import conf
from memexp.plan.plan import PlanError
from memexp.plan.suggest import did_you_mean

CLASSES = ("trl.",)
# Hydra takes plugins from the first two alone; its own callbacks only log and pickle.
TARGETS = ("hydra_plugins.", "hydra._internal.core_plugins.", "hydra.experimental.callbacks.")
_LOGGING = ("logging.", "ext://sys.stdout", "ext://sys.stderr", "colorlog.")


def check_options(job: Mapping[str, Any], options: Mapping[str, str | None]) -> None:
    """Raise PlanError for an option of the user's own that is not made like the others of its group, and for a key that
    nobody reads: a typo in a file is found as one that is typed.
    """
    _check_names("", job, [*conf.groups(), *conf.primary()])
    for group, name in options.items():
        if name is not None and group in conf.groups() and group != "experiment":
            _check_shape(group, name, job.get(group))
    for field in ("config_class", "trainer_class"):
        check_class(job["trainer"][field])


def check_class(path: Any) -> None:
    """Raise PlanError where a trainer or its config is none of TRL's."""
    if not isinstance(path, str) or not path.startswith(CLASSES):
        raise PlanError(f"{path!r} is no class of TRL's, and memexp trains with those alone.")


def check_environment(env: Mapping[str, Any]) -> None:
    """Raise PlanError for a variable that no option of conf/ sets: LD_PRELOAD would run what it likes."""
    for name, value in env.items():
        if name not in variables() or not isinstance(value, str | None):
            raise PlanError(f"env.{name}: an option sets {', '.join(variables())}, and nothing else.")


def check_hydra(config: DictConfig) -> None:
    """Raise PlanError where a composed config would make Hydra, or Python's logging, call something unknown.

    Call it before Hydra configures logging and makes callbacks, which is as soon as it has composed.
    """
    whole = OmegaConf.to_container(config, resolve=False)
    for path, key, value in _leaves(whole, ""):
        if key == "_target_" and not str(value).startswith(TARGETS):
            raise PlanError(f"{path}={value}: memexp makes no object of it. Leave it out.")
        in_logging = path.startswith(("hydra.job_logging.", "hydra.hydra_logging."))
        calls = key in ("()", "class", "factory") or str(value).startswith(("ext://", "cfg://"))
        if in_logging and calls and not str(value).startswith(_LOGGING):
            raise PlanError(f"{path}={value}: logging makes no object of it here. Leave it out.")


def _check_shape(group: str, name: str, given: Any) -> None:
    _check_names(f"{group}.", given, _fields(group))
    for key, kinds in _shape(group).items():
        if key not in given:
            raise PlanError(f"{group}={name}: every option of {group} says its {key}, and this one does not.")
        kind = next((kind for kind in (dict, list) if kinds == {kind}), None)
        if kind is not None and not isinstance(given[key], kind):
            raise PlanError(f"{group}={name}: its {key} is a {'mapping' if kind is dict else 'list'} of values.")
    kinds_known = {str(file["kind"]) for file in _files(group) if "kind" in file}
    if kinds_known and given.get("kind") not in kinds_known:
        raise PlanError(f"{group}={name}: its kind is one of {', '.join(sorted(kinds_known))}.")


def _check_names(path: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in given:
        if key not in known:
            hint = did_you_mean(str(key), known, "Leave it out.", before=path)
            raise PlanError(f"{path}{key}: nothing reads it. {hint}")


@functools.cache
def _fields(group: str) -> tuple[str, ...]:
    """What an option of this group may say: whatever a shipped one does, a technique whatever any technique does."""
    alike = [group] if group in conf.STRUCTURE else [name for name in conf.groups() if name not in conf.STRUCTURE]
    return ("auto", *sorted({key for name in alike for file in _files(name) for key in file}))


@functools.cache
def _shape(group: str) -> dict[str, set[type]]:
    """What every shipped option of a group says, and the types of it."""
    files = _files(group)
    shared = set.intersection(*(set(file) for file in files)) if files else set()
    return {key: {type(file[key]) for file in files} for key in sorted(shared)}


def _files(group: str) -> list[dict[str, Any]]:
    return [file for name in conf.groups()[group] if "auto" not in (file := conf.option(group, name))]


@functools.cache
def variables() -> tuple[str, ...]:
    """Every variable that an option in conf/ sets for its cell, sorted."""
    files = (conf.option(group, name) for group, names in conf.groups().items() for name in names)
    return tuple(sorted({name for file in files for name in file.get("env") or {}}))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        below = f"{path}.{key}" if path else str(key)
        if isinstance(item, dict | list):
            yield from _leaves(item, below)
        else:
            yield below, str(key), item
