"""The command line: subcommands beside the run, and the run itself, which is Hydra's with its rough edges taken off.

Every mistake of the user's is one line on stderr and exit code 2. A traceback is shown for faults of memexp's own, and
with HYDRA_FULL_ERROR=1 for everything.
"""

import itertools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import hydra

from memexp import __version__, invocation
from memexp.app import job
from memexp.plan import conf
from memexp.plan.compose import user_errors
from memexp.plan.overrides import normalise, require_single
from memexp.plan.plan import PlanError

MULTIRUN = ("-m", "--multirun")
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line. Returns 0, 1 (a cell failed), 2 (nothing could be planned) or 130 (interrupted)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    wants_traceback = os.environ.get("HYDRA_FULL_ERROR") == "1"
    try:
        command = SUBCOMMANDS.get(arguments[0]) if arguments else None
        return command(arguments[1:]) if command else _run(arguments)
    except PlanError as error:
        if wants_traceback:
            raise
        print(f"memexp: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)


def _run(arguments: list[str]) -> int:
    invocation.remember(arguments)
    sys.argv = [sys.argv[0], *prepare(arguments)]
    run = hydra.main(config_path=str(conf.conf_dir()), config_name="config", version_base="1.3")(job)
    # Otherwise Hydra prints its own report of an error and exits with 1.
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        with user_errors():
            run()
    finally:
        del os.environ["HYDRA_FULL_ERROR"]
        if before is not None:
            os.environ["HYDRA_FULL_ERROR"] = before
    return 0


def prepare(arguments: Sequence[str]) -> list[str]:
    """The command line as Hydra takes it: `-m` first wherever it stood, booleans of groups quoted, typos refused.

    Raises PlanError. `--dry-run` becomes `dry_run=true`, and `-cn sweeps/NAME` finds the sweep files that ship.
    """
    options, overrides = _split(arguments)
    multirun = any(option in MULTIRUN for option in options)
    folders = [Path(value) for flag, value in itertools.pairwise(options) if flag in ("-cd", "--config-dir")]
    for folder in folders:
        if not folder.is_dir():
            raise PlanError(f"-cd {folder}: there is no such folder. Type the folder that holds your configs.")
    typed = normalise(overrides, conf.groups(*folders))
    if not multirun and not _only_shows(options):
        require_single(typed, "To run all of them, add -m.")
    return [*(option for option in options if option in MULTIRUN), *(o for o in options if o not in MULTIRUN), *typed]


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    options: list[str] = []
    overrides: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--dry-run":
            overrides.append("dry_run=true")
        elif argument in _VALUED:
            options += _sweep_file(argument, next(rest, ""))
        elif argument.startswith("-") and "=" not in argument.lstrip("-")[:1]:
            options += _sweep_file(*argument.split("=", 1)) if "=" in argument else [argument]
        else:
            overrides.append(argument)
    return options, overrides


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


def _report(arguments: list[str]) -> int:
    from rich.console import Console

    from memexp.results.report import report

    if len(arguments) != 1 or arguments[0].startswith("-"):
        raise PlanError(
            f"report {' '.join(arguments)}: report takes the folder of a sweep. Type memexp report results/NAME."
        )
    return report(Path(arguments[0]), Console())


def _version(arguments: list[str]) -> int:
    print(f"memexp {__version__}")
    return 0


def _explicit_run(arguments: list[str]) -> int:
    return _run(arguments)


SUBCOMMANDS: dict[str, Callable[[list[str]], int]] = {"run": _explicit_run, "report": _report, "--version": _version}
