"""The commands beside a run: one module each, its `main(arguments)` returning the exit code. No torch in the parent.

A new command is a module here and a line in COMMANDS.
"""

import importlib
from collections.abc import Callable
from typing import cast

COMMANDS = {
    "report": "a sweep's table again, and what is on the card when each cell peaks",
}


def command(name: str) -> Callable[[list[str]], int]:
    """The `main` of a command, its module imported only now, so that a run does not pay for what it does not use."""
    return cast(Callable[[list[str]], int], importlib.import_module(f"memexp.commands.{name}").main)
