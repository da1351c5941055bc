"""From what was typed to frozen Plans: `load("packing=bfd")`, `load_sweep("packing=bfd,wrapped")`. No torch."""

from memexp.plan.compose import compose_cells, grid
from memexp.plan.conf import groups
from memexp.plan.machine import this_machine
from memexp.plan.make import make_plan
from memexp.plan.overrides import normalise, require_single
from memexp.plan.plan import Plan, PlanError, Refusal
from memexp.plan.preflight import preflight

__all__ = ["Plan", "PlanError", "Refusal", "load", "load_sweep"]


def load(*overrides: str) -> Plan:
    """The plan of one cell, with its `refusal` where it cannot run here.

    Raises PlanError for what cannot be planned at all, a value that lists several options among it.
    """
    typed = normalise(overrides, groups())
    require_single(typed, "To plan all of them, call memexp.plan.load_sweep.")
    return _plans([typed])[0]


def load_sweep(*overrides: str) -> list[Plan]:
    """The plans of every combination, in grid order (the last axis fastest). Raises PlanError as `load` does."""
    return _plans(grid(normalise(overrides, groups())))


def _plans(cells: list[list[str]]) -> list[Plan]:
    machine = this_machine()
    return [preflight(make_plan(cfg, machine), machine) for cfg in compose_cells(cells)]
