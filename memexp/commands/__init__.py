"""The commands beside a run: one module each, its `main(arguments)` returning the exit code. No torch in the parent.

A new command is a module here, a line in COMMANDS and a line in the help of conf/config.yaml.
"""

import importlib
from collections.abc import Callable
from typing import cast

COMMANDS = {
    "frontier": "for each combination the largest batch_size or max_length that fits the card",
    "doctor": "what this machine can run, and what each missing thing would need",
    "lengths": "how long a dataset's rows are in tokens, and what each max_length and packing would do to them",
    "recommend": "the fastest configuration of a sweep that fits a card, with the TRL code that trains it",
    "report": "a sweep's table again, and what is on the card when each cell peaks",
}


def command(name: str) -> Callable[[list[str]], int]:
    """The `main` of a command, its module imported only now, so that a run does not pay for what it does not use."""
    return cast(Callable[[list[str]], int], importlib.import_module(f"memexp.commands.{name}").main)
