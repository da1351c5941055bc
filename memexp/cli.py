"""The command line: subcommands beside the run, and the run itself, which is Hydra's with its rough edges taken off.

Every mistake of the user's is one line on stderr and exit code 2. A traceback is shown for faults of memexp's own, and
with HYDRA_FULL_ERROR=1 for everything.
"""

import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import DictConfig

from memexp import __version__, invocation
from memexp.app import job
from memexp.commands import COMMANDS, command
from memexp.hydra_arguments import prepare, remarks
from memexp.plan import conf
from memexp.plan.compose import user_errors
from memexp.plan.plan import PlanError
from memexp.plan.suggest import did_you_mean
from memexp.plan.trusted import check_hydra
from memexp.run.signals import handling
from memexp.run.variables import changed_variables
from memexp.stdout import print_in_any_encoding


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line. Returns 0, 1 (a cell failed), 2 (nothing could be planned) or 130 (interrupted)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    print_in_any_encoding()
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
        if wants_traceback:
            raise
        return invocation.fail(PlanError(f"{invocation.said_by_the_system(error)}."))
    except KeyboardInterrupt:
        return 130
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)


def run(arguments: list[str], typed: Sequence[str] | None = None) -> int:
    """Hand a command line to Hydra. `typed` is what the user typed, where that differs: it is printed back."""
    invocation.remember(arguments if typed is None else typed)
    sys.argv = [sys.argv[0], *prepare(arguments)]
    for remark in remarks(arguments):
        print(f"memexp: {remark}", file=sys.stderr)
    hydra_main = hydra.main(config_path=str(conf.conf_dir()), config_name="config", version_base="1.3")(job)
    # What ends a job on a cluster, and a terminal that closes, end a sweep as Ctrl-C does: in order.
    ended = handling(_interrupt, signal.SIGTERM, signal.SIGHUP)
    with _hydra_raises(), ended, user_errors(), _configs_are_data():
        hydra_main()
    return 0


@contextmanager
def _hydra_raises() -> Iterator[None]:
    # Otherwise Hydra prints its own report of an error and exits with 1.
    with changed_variables({"HYDRA_FULL_ERROR": "1"}):
        yield


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


def _subcommand(word: str) -> "Callable[[list[str]], int] | None":
    meant = did_you_mean(word, [*SUBCOMMANDS, "--help"])
    if meant and word not in SUBCOMMANDS and word.isalpha():
        raise PlanError(f"{word}: there is no such command. {meant}")
    return SUBCOMMANDS.get(word)


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
