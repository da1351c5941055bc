"""`python -m memexp`, and the command `memexp`."""

import sys
from pathlib import Path


def main() -> int:
    """The command line, which takes a second to import: Ctrl-C ends that as quietly as what follows."""
    try:
        from memexp.cli import main as command_line
    except KeyboardInterrupt:
        return 130
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] == "memexp":
            raise
        print(f"memexp: {_not_installed(error)}", file=sys.stderr)
        return 2
    try:
        return command_line()
    except KeyboardInterrupt:
        return 130


def _not_installed(error: ModuleNotFoundError) -> str:
    checkout = Path(__file__).parents[1]
    activate = checkout / ".venv" / "bin" / "activate"
    # As it is typed: what an interpreter resolves to is no help to who chose it.
    if activate.is_file() and Path(sys.prefix) != activate.parents[1]:
        remedy = f"source {activate}"
    elif (checkout / "pyproject.toml").is_file():
        remedy = f"{sys.executable} -m pip install -e {checkout}, or activate the environment where that is done"
    else:
        remedy = f"{sys.executable} -m pip install memexp, or activate the environment where that is done"
    return f"the package {error.name} is not installed in {sys.executable}. Type {remedy}."


if __name__ == "__main__":
    sys.exit(main())
