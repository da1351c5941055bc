"""What the user typed, so that the commands memexp prints can be pasted back."""

import shlex
import sys
from collections.abc import Sequence

_typed: list[str] = []


def remember(argv: Sequence[str]) -> None:
    """Keep the command line as typed, before memexp prepares it for Hydra."""
    _typed[:] = argv


def resume_command(sweep: str) -> str:
    """The command that runs what is left of a sweep: the same one, with its name."""
    kept = [argument for argument in _typed if not argument.startswith("sweep=") and argument != "--dry-run"]
    return shlex.join(["python", "-m", "memexp", *kept, f"sweep={sweep}"])


def fail(error: Exception) -> int:
    """Say a user's mistake in one line on stderr, and give the exit code for it."""
    print(f"memexp: {error}", file=sys.stderr)
    return 2


def as_typed(overrides: Sequence[str]) -> list[str]:
    """Overrides as a user would type them: booleans bare, and nothing that memexp put there itself."""
    return [_bare(override) for override in overrides if not override.startswith("dry_run=")]


def replay_command(overrides: Sequence[str]) -> str:
    """The command that runs one cell again by itself. Keys of W&B and of the sweep are no part of it."""
    kept = [override for override in overrides if not override.startswith(("sweep=", "results_dir=", "logger"))]
    return shlex.join(["python", "-m", "memexp", *as_typed(kept)])


def _bare(override: str) -> str:
    # offload='true' was quoted for Hydra; a user types it bare.
    key, _, value = override.partition("=")
    return f"{key}={value[1:-1]}" if value in ("'true'", "'false'") else override
