"""What the user typed, so that the commands memexp prints can be pasted back."""

import itertools
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress

from memexp.hydra_options import MULTIRUN, WHICH_CONFIG
from memexp.results.format import one_line
from memexp.secrets import secrets_in, without_secrets

_LONGEST_LINE = 2000
_typed: list[str] = []


def remember(argv: Sequence[str]) -> None:
    """Keep the command line as typed, before memexp prepares it for Hydra."""
    _typed[:] = argv


def resume_command(sweep: str) -> str:
    """The command that runs what is left of a sweep: the same one, with its name."""
    # What was to run again has lost its record by now, and runs without being asked for once more.
    kept = [
        argument for argument in _typed if not argument.startswith(("sweep=", "rerun=")) and argument != "--dry-run"
    ]
    return command_line([*kept, f"sweep={sweep}"])


def fail(error: Exception) -> int:
    """Say a user's mistake in one line on stderr, whatever was typed, and give the exit code for it."""
    said = str(without_secrets(str(error), secrets_in(os.environ)))
    with suppress(OSError):  # a terminal that was closed
        print(f"memexp: {one_line(said, _LONGEST_LINE)}", file=sys.stderr)
    return 2


def said_by_the_system(error: OSError) -> str:
    """What the system says, with the file that it is about where it is about one."""
    said = error.strerror or str(error)
    return said if error.filename is None else f"{error.filename}: {said}"


def as_typed(overrides: Sequence[str]) -> list[str]:
    """Overrides as a user would type them: booleans bare, and nothing that memexp put there itself."""
    return [_bare(override) for override in overrides if not override.startswith("dry_run=")]


def config_flags() -> list[str]:
    """`-cd` and `-cn` as typed, with `-m` where they name a sweep: what a file sets is part of a cell."""
    kept: list[str] = []
    for argument, value in itertools.zip_longest(_typed, _typed[1:], fillvalue=""):
        if argument in WHICH_CONFIG:
            kept += [argument, value]
        elif argument.startswith(tuple(f"{flag}=" for flag in WHICH_CONFIG)):
            kept.append(argument)
    return ["-m", *kept] if kept and {*MULTIRUN} & {*_typed} else kept


def replay_command(overrides: Sequence[str], flags: Sequence[str] = ()) -> str:
    """The command that runs one cell again by itself. Keys of W&B and of the sweep are no part of it."""
    sweeps = ("sweep=", "results_dir=", "logger", "jobs=", "rerun=", "fail_fast=")
    kept = [override for override in overrides if not override.startswith(sweeps)]
    return command_line([*flags, *as_typed(kept)])


def command_line(arguments: Sequence[str]) -> str:
    """`python -m memexp …` as it can be pasted into a shell, without the user's keys."""
    command = shlex.join(["python", "-m", "memexp", *arguments])
    return str(without_secrets(command, secrets_in(os.environ)))


def _bare(override: str) -> str:
    # offload='true' was quoted for Hydra; a user types it bare.
    key, _, value = override.partition("=")
    return f"{key}={value[1:-1]}" if value in ("'true'", "'false'") else override
