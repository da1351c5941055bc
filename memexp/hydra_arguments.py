"""A command line as typed, made one that Hydra takes. What is wrong with it is said here, before Hydra sees it."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from memexp.commands import COMMANDS
from memexp.hydra_options import CONFIG_DIR, CONFIG_NAME, CONFIG_PATH, MULTIRUN, PLAIN, SHOWING, VALUED, VALUES
from memexp.plan import conf
from memexp.plan.overrides import normalise, require_single, typed_twice
from memexp.plan.plan import PlanError


def prepare(arguments: Sequence[str]) -> list[str]:
    """The command line as Hydra takes it: `-m` first wherever it stood, booleans of groups quoted, typos refused.

    Raises PlanError. `--dry-run` becomes `dry_run=true`, and `-cn sweeps/NAME` finds the sweep files that ship, which
    need no `-m`.
    """
    options, overrides = _split(arguments)
    folders = [Path(value) for flag, value in itertools.pairwise(options) if flag in CONFIG_DIR]
    multirun = any(option in MULTIRUN for option in options) or conf.sweeps_dir() in folders
    only_shows = any(option in SHOWING for option in options)
    for folder in folders:
        if not folder.is_dir():
            raise PlanError(f"-cd {folder}: there is no such folder. Type the folder that holds your configs.")
    _check_name(options, folders)
    typed = normalise(overrides, conf.groups(*folders))
    if not multirun and not only_shows:
        require_single(typed, "To run all of them, add -m.")
    rest = [option for option in options if option not in MULTIRUN]
    return [*(["-m"] if multirun and not only_shows else []), *rest, *typed]


def remarks(arguments: Sequence[str]) -> list[str]:
    """What is right and may not be what was meant. For a command line that `prepare` has taken."""
    return typed_twice(_split(arguments)[1])


def _check_name(options: Sequence[str], folders: Sequence[Path]) -> None:
    """Raise PlanError where `-cn packing` was typed for sweeps/packing: Hydra would tell of its search path."""
    named = [(flag, value.removesuffix(".yaml")) for flag, value in itertools.pairwise(options) if flag in CONFIG_NAME]
    if any(option in CONFIG_PATH for option in options):
        return
    for flag, name in named:
        there = any((folder / f"{name}.yaml").is_file() for folder in (conf.conf_dir(), *folders))
        if not there and name in _sweeps():
            raise PlanError(f"{flag} {name}: there is no such config. Did you mean {flag} sweeps/{name}?")


def _sweeps() -> list[str]:
    return sorted(path.stem for path in conf.sweeps_dir().glob("*.yaml"))


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options, each value behind its own, and the overrides."""
    options: list[str] = []
    overrides: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--dry-run":
            overrides.append("dry_run=true")
        elif argument in VALUED:
            value = next(rest, "")
            if not value or value.startswith("-"):
                raise PlanError(f"{argument}: a value is missing after it.")
            options += _valued(argument, value)
        elif argument in ("run", "--version", *COMMANDS):
            raise PlanError(f"{argument}: a command comes first. Type python -m memexp {argument} …")
        elif argument.startswith("-"):
            options += _option(argument)
        else:
            overrides.append(argument)
    return options, overrides


def _option(argument: str) -> list[str]:
    flag, equals, value = argument.partition("=")
    if flag in VALUED and equals:
        return _valued(flag, value)
    if argument not in PLAIN:
        bare = flag.lstrip("-")
        hint = f"Type {bare}=VALUE, without dashes." if bare in (*conf.groups(), *conf.primary()) else ""
        raise PlanError(
            f"{argument}: there is no such option. {hint or 'python -m memexp --help lists what there is.'}"
        )
    return [argument]


def _valued(flag: str, value: str) -> list[str]:
    if flag in VALUES and value not in VALUES[flag]:
        raise PlanError(f"{flag} {value}: it shows one of {', '.join(VALUES[flag])}.")
    name = value.removeprefix("sweeps/")
    if flag not in CONFIG_NAME or name == value:
        return [flag, value]
    if name.removesuffix(".yaml") not in _sweeps():
        raise PlanError(f"{flag} {value}: there is no such sweep. There are: {', '.join(_sweeps()) or 'none'}.")
    return ["-cd", str(conf.sweeps_dir()), flag, name]
