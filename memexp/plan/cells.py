"""The cells of a sweep planned one by one, and what composing them cost beside planning them."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from omegaconf import DictConfig

from memexp.plan.machine import Machine
from memexp.plan.make import make_plan
from memexp.plan.plan import Plan
from memexp.plan.preflight import preflight


@dataclass(frozen=True)
class PlannedCells:
    """`config` is that of the first cell: what concerns the whole sweep is the same in each. Seconds are for all."""

    config: DictConfig
    plans: tuple[Plan, ...]
    composing_seconds: float
    planning_seconds: float


def plan_cells(configs: Iterable[DictConfig], machine: Machine) -> PlannedCells:
    """Plan each config as it comes and let go of it: a thousand of them would fill the memory. Raises PlanError."""
    plans: list[Plan] = []
    first: DictConfig | None = None
    composing = planning = 0.0
    rest = iter(configs)
    while True:
        started = time.perf_counter()
        config = next(rest, None)
        composed = time.perf_counter()
        composing += composed - started
        if config is None:
            break
        first = config if first is None else first
        plans.append(preflight(make_plan(config, machine), machine))
        planning += time.perf_counter() - composed
    assert first is not None
    return PlannedCells(first, tuple(plans), composing, planning)
