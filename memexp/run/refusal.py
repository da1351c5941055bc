"""How the worker's stages say that a cell cannot run. Not an error: a row with its reason."""

import traceback
from collections.abc import Mapping
from typing import Any

import jinja2

from memexp.plan.values import show

_OWN_CHECKS = ("trl.", "transformers.", "accelerate.")


class Refused(Exception):
    """Raised by a stage of the worker; `kind` is one of `memexp.results.record.REASON_KINDS`."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


def objection(error: Exception, choices: Mapping[str, Any]) -> Refused | None:
    """TRL's own words against an argument that was typed as `trainer.args.NAME`; None for any other error.

    That is an error which a library raises on purpose, in its own code, about a value or a missing package, and which
    names the argument or its value. A chat template's own words against a conversation are as much. `choices` are those
    of the plan.
    """
    if isinstance(error, jinja2.TemplateError):
        said = f"a conversation of data={choices['data']} does not fit the tokenizer's chat template: {error}"
        return Refused("invalid_data", said)
    if not isinstance(error, ValueError | NotImplementedError | ImportError):
        return None
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not (modules and modules[-1].startswith(_OWN_CHECKS)):
        return None
    said = str(error)
    for key, value in choices.items():
        name = key.removeprefix("trainer.args.")
        if name != key and (name in said or (isinstance(value, str) and len(value) > 2 and value in said)):
            kind = "needs_package" if isinstance(error, ImportError) else "conflict"
            return Refused(kind, f"{key}={show(value)}: TRL refuses it. {said.strip().splitlines()[0]}")
    return None
