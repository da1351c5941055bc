"""What a sweep says before its first cell runs, all that a dry run says, and how it says what is to be pasted."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console

from memexp.invocation import as_typed
from memexp.plan.cells import PlannedCells
from memexp.plan.plan import Plan
from memexp.results.sweep import SweepFolder

_LONG_SECONDS = 10


def announce(
    planned: PlannedCells, unique: Sequence[Plan], pending: Sequence[Plan], folder: SweepFolder, console: Console
) -> None:
    """How many cells there are, how many of them run, which are the same, and what took so long where it did."""
    refused = sum(plan.refusal is not None for plan in unique)
    finished = len(unique) - len(pending) - refused
    parts = [
        f"{len(pending)} to run",
        f"{refused} refused" if refused else "",
        f"{finished} finished before" if finished else "",
    ]
    cells = f"{len(unique)} cell{'s' if len(unique) != 1 else ''}"
    said = f"{cells}: {', '.join(part for part in parts if part)}. Results in {folder.path}"
    console.print(said, markup=False, soft_wrap=True)  # a path is copied whole
    if planned.composing_seconds > _LONG_SECONDS:
        console.print(_seconds(planned), markup=False)
    _name_twins(planned.plans, console)


def print_plans(planned: PlannedCells, console: Console) -> None:
    """The cells of a dry run: their ids, what was typed for them, and why one is refused."""
    unique = {plan.id: plan for plan in planned.plans}.values()
    for plan in unique:
        console.print(f"{plan.id}  {' '.join(as_typed(plan.overrides)) or '(defaults)'}", markup=False)
        if plan.refusal is not None:
            console.print(f"    refused ({plan.refusal.kind}): {plan.refusal.reason}", markup=False)
    _name_twins(planned.plans, console)
    refused = sum(plan.refusal is not None for plan in unique)
    cells = "1 cell" if len(unique) == 1 else f"{len(unique)} cells"
    console.print(f"{cells}, {refused} refused, nothing started. {_seconds(planned)}", markup=False)


def print_command(command: str, console: Console) -> None:
    """A line of its own, whatever the terminal's width: one broken into two would paste as two commands."""
    console.print(command, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def said_if_long(what: str, console: Console, after_seconds: float = 1.0) -> Iterator[None]:
    """Say what is waited for, where that takes longer than a person waits without asking."""
    timer = threading.Timer(after_seconds, console.print, (what,), {"markup": False})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _seconds(planned: PlannedCells) -> str:
    composed = f"Hydra composed in {planned.composing_seconds:.2f} s, " if planned.composing_seconds > 0.01 else ""
    return f"{composed}memexp planned in {planned.planning_seconds:.2f} s."


def _name_twins(plans: Sequence[Plan], console: Console) -> None:
    twins: dict[str, list[Plan]] = {}
    for plan in plans:
        twins.setdefault(plan.id, []).append(plan)
    for same in twins.values():
        if len(same) > 1:
            names = " and ".join(" ".join(as_typed(twin.overrides)) or "(defaults)" for twin in same)
            console.print(f"One cell, since they run the same: {names}", markup=False)
