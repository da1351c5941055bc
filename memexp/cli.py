"""The command line: subcommands beside the run, and the run itself, which is Hydra's with its rough edges taken off.

Every mistake of the user's is one line on stderr and exit code 2. A traceback is shown for faults of memexp's own, and
with HYDRA_FULL_ERROR=1 for everything.
"""

import difflib
import functools
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any
from unittest.mock import patch

import hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import DictConfig

from memexp import __version__, invocation
from memexp.app import job
from memexp.commands import COMMANDS, command
from memexp.plan import conf
from memexp.plan.compose import user_errors
from memexp.plan.overrides import normalise, require_single
from memexp.plan.plan import PlanError
from memexp.plan.trusted import check_hydra
from memexp.run.signals import handling

MULTIRUN = ("-m", "--multirun")
_PLAIN = (
    *MULTIRUN,
    "-h",
    "--help",
    "--hydra-help",
    "--version",
    "-r",
    "--run",
    "--resolve",
    "-sc",
    "--shell-completion",
)
# Hydra's own options that take a value.
_VALUED = (
    "-cn",
    "--config-name",
    "-cp",
    "--config-path",
    "-cd",
    "--config-dir",
    "-p",
    "--package",
    "-i",
    "--info",
    "-c",
    "--cfg",
)
_KNOWN_VALUES = {
    ("-c", "--cfg"): ("job", "hydra", "all"),
    ("-i", "--info"): ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line. Returns 0, 1 (a cell failed), 2 (nothing could be planned) or 130 (interrupted)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _print_in_any_encoding()
    wants_traceback = os.environ.get("HYDRA_FULL_ERROR") == "1"
    try:
        chosen = _subcommand(arguments[0]) if arguments else None
        return chosen(arguments[1:]) if chosen else run(arguments)
    except PlanError as error:
        if wants_traceback:
            raise
        return invocation.fail(error)
    except BrokenPipeError:
        # `| head` has read what it wanted. Python would flush stdout once more on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if wants_traceback or error.filename is None:
            raise
        return invocation.fail(PlanError(f"{error.filename}: {error.strerror}."))
    except KeyboardInterrupt:
        return 130
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)


def _print_in_any_encoding() -> None:
    """Lines and blocks of a table become `?` where the terminal's encoding has none, instead of an error."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def run(arguments: list[str], typed: Sequence[str] | None = None) -> int:
    """Hand a command line to Hydra. `typed` is what the user typed, where that differs: it is printed back."""
    invocation.remember(arguments if typed is None else typed)
    sys.argv = [sys.argv[0], *prepare(arguments)]
    hydra_main = hydra.main(config_path=str(conf.conf_dir()), config_name="config", version_base="1.3")(job)
    # What ends a job on a cluster ends a sweep as Ctrl-C does: in order, and with the command to resume it.
    sigterm = handling(_interrupt, signal.SIGTERM)
    with _hydra_raises(), sigterm, user_errors(), _configs_are_data():
        hydra_main()
    return 0


@contextmanager
def _hydra_raises() -> Iterator[None]:
    # Otherwise Hydra prints its own report of an error and exits with 1.
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        del os.environ["HYDRA_FULL_ERROR"]
        if before is not None:
            os.environ["HYDRA_FULL_ERROR"] = before


@contextmanager
def _configs_are_data() -> Iterator[None]:
    """Look at what Hydra has composed before it acts on it: it makes objects of what a config names."""
    load = ConfigLoaderImpl.load_configuration

    def checked(loader: ConfigLoaderImpl, *arguments: Any, **named: Any) -> DictConfig:
        config = load(loader, *arguments, **named)
        check_hydra(config)
        return config

    with patch.object(ConfigLoaderImpl, "load_configuration", checked):
        yield


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def prepare(arguments: Sequence[str]) -> list[str]:
    """The command line as Hydra takes it: `-m` first wherever it stood, booleans of groups quoted, typos refused.

    Raises PlanError. `--dry-run` becomes `dry_run=true`, and `-cn sweeps/NAME` finds the sweep files that ship, which
    need no `-m`.
    """
    options, overrides = _split(arguments)
    folders = [Path(value) for flag, value in itertools.pairwise(options) if flag in ("-cd", "--config-dir")]
    multirun = any(option in MULTIRUN for option in options) or conf.sweeps_dir() in folders
    for folder in folders:
        if not folder.is_dir():
            raise PlanError(f"-cd {folder}: there is no such folder. Type the folder that holds your configs.")
    typed = normalise(overrides, conf.groups(*folders))
    if not multirun and not _only_shows(options):
        require_single(typed, "To run all of them, add -m.")
    rest = [option for option in options if option not in MULTIRUN]
    return [*(["-m"] if multirun and not _only_shows(options) else []), *rest, *typed]


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    options: list[str] = []
    overrides: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--dry-run":
            overrides.append("dry_run=true")
        elif argument in _VALUED:
            value = next(rest, "")
            if not value or value.startswith("-"):
                raise PlanError(f"{argument}: a value is missing after it.")
            options += _valued(argument, value)
        elif argument.startswith("-"):
            options += _option(argument)
        else:
            overrides.append(argument)
    late = [argument for argument in overrides if argument in SUBCOMMANDS]
    if late:
        raise PlanError(f"{late[0]}: a command comes first. Type python -m memexp {late[0]} …")
    return options, overrides


def _option(argument: str) -> list[str]:
    flag, equals, value = argument.partition("=")
    if flag in _VALUED and equals:
        return _valued(flag, value)
    if flag not in _PLAIN:
        bare = flag.lstrip("-")
        hint = f"Type {bare}=VALUE, without dashes." if bare in (*conf.groups(), *conf.primary()) else ""
        raise PlanError(
            f"{argument}: there is no such option. {hint or 'python -m memexp --help lists what there is.'}"
        )
    return [argument]


def _subcommand(word: str) -> "Callable[[list[str]], int] | None":
    near = difflib.get_close_matches(word, SUBCOMMANDS, n=1)
    if near and word not in SUBCOMMANDS and word.isalpha():
        raise PlanError(f"{word}: there is no such command. Did you mean {near[0]}?")
    return SUBCOMMANDS.get(word)


def _valued(flag: str, value: str) -> list[str]:
    known = next((values for flags, values in _KNOWN_VALUES.items() if flag in flags), None)
    if known is not None and value not in known:
        raise PlanError(f"{flag} {value}: it shows one of {', '.join(known)}.")
    return _sweep_file(flag, value)


def _sweep_file(flag: str, value: str) -> list[str]:
    name = value.removeprefix("sweeps/")
    if flag not in ("-cn", "--config-name") or name == value:
        return [flag, value]
    known = sorted(path.stem for path in conf.sweeps_dir().glob("*.yaml"))
    if name.removesuffix(".yaml") not in known:
        raise PlanError(f"{flag} {value}: there is no such sweep. There are: {', '.join(known) or 'none'}.")
    return ["-cd", str(conf.sweeps_dir()), flag, name]


def _only_shows(options: Sequence[str]) -> bool:
    return any(
        option in ("--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i", "--version") for option in options
    )


def _version(arguments: list[str]) -> int:
    print(f"memexp {__version__}")
    return 0


def _command(name: str, arguments: list[str]) -> int:
    return command(name)(arguments)


def _explicit_run(arguments: list[str]) -> int:
    if any(argument.partition("=")[0] == "--replay" for argument in arguments):
        return command("replay")(arguments)
    return run(arguments)


SUBCOMMANDS: dict[str, Callable[[list[str]], int]] = {
    "run": _explicit_run,
    "--version": _version,
    **{name: functools.partial(_command, name) for name in COMMANDS},
}
