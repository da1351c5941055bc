"""The sweeper behind `memexp frontier`: rounds of memexp's own sweep, each with the probes that the last one asks for.

Every probe is a cell like any other: it lands in the sweep's folder, is in its table, and is not run again on resume.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict
from rich.console import Console
from rich.text import Text

from memexp.app import Finish, run_sweep
from memexp.frontier.fit import fits
from memexp.frontier.search import Bounds, next_sizes
from memexp.frontier.table import frontier_table
from memexp.plan.machine import this_machine
from memexp.plan.make import make_plan
from memexp.plan.plan import Plan, PlanError
from memexp.results.csv_table import csv_text
from memexp.results.markdown import markdown
from memexp.results.report import report_page
from memexp.results.store import read_records, write_atomically
from memexp.results.sweep import Sweep, SweepFolder
from memexp.results.table import print_table
from memexp.run.warm import warm_server
from memexp.sweeper import PlanningSweeper

AXES = {"batch_size": 1, "max_length": 64}  # and how fine each is searched: longer rows come in multiples anyway


class Frontier(PlanningSweeper):
    """For each combination of the grid the largest `axis` from `low` to `high` that fits the card with `headroom`."""

    def __init__(
        self,
        axis: str,
        low: int,
        high: int,
        step: int | None = None,
        headroom: float = 0.0,
        params: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(params=params)
        self.axis, self.headroom = axis, headroom
        self._typed = (low, high, step)

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Raises PlanError for an axis, bounds or headroom that cannot be: Hydra wraps what a constructor raises."""
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        low, high, step = self._typed
        if self.axis not in AXES:
            raise PlanError(f"frontier {self.axis}: the axis is {' or '.join(AXES)}, along which more needs more.")
        if not isinstance(self.headroom, int | float) or not 0 <= self.headroom < 1:
            raise PlanError(f"frontier: headroom={self.headroom} is no fraction of the card. Type headroom=0.08.")
        try:
            self.bounds = Bounds(int(low), int(high), int(step or AXES[self.axis]))
        except ValueError as error:
            raise PlanError(f"frontier {self.axis}={low}:{high}: {error}.") from error

    def sweep(self, arguments: list[str]) -> None:
        """Probe in rounds until each combination is known. Raises PlanError, and SystemExit with the exit code."""
        grid = self.cells(arguments)
        if any(key == self.axis for cell in grid for key in (override.partition("=")[0] for override in cell)):
            raise PlanError(f"{self.axis} is what the frontier looks for: leave {self.axis}=… out.")
        combinations = [_Combination(self, cell) for cell in grid]
        probes: list[_Probe] = [probe for combination in combinations for probe in combination.next_probes()]
        _require_a_card(probes[0].config)
        last: list[tuple[Sweep, SweepFolder]] = []
        with warm_server([probe.plan for probe in probes]):
            while True:
                configs = [probe.config for probe in probes]
                code = run_sweep(configs, self._launch, finish=_remember(last), more_follows=True, announced=bool(last))
                if not last or code:  # a dry run, or an interrupt
                    raise SystemExit(code)
                sweep, folder = last[-1]
                fitted = {r.id: fits(r, self.headroom) for r in read_records(folder, sweep).records}
                more = [probe for c in combinations for probe in c.next_probes(fitted)]
                if not more:
                    break
                probes += more
                _land_in(folder, probes)
        code = run_sweep([probe.config for probe in probes], self._launch, finish=self._finish, announced=True)
        if code:
            raise SystemExit(code)

    def _finish(self, sweep: Sweep, folder: SweepFolder, console: Console, single: bool) -> int:
        from memexp.app import exit_code, write_results

        stored, probes = write_results(sweep, folder)
        table = frontier_table(sweep, stored.records, self.axis, self.bounds, self.headroom)
        write_atomically(folder.path / "frontier.md", markdown(table))
        write_atomically(folder.path / "frontier.csv", csv_text(table))
        console.print(Text())
        print_table(table, console)
        page = report_page(folder, sweep, stored, probes, console)
        files = "  ".join([f"\n{folder.path}/frontier.md", "frontier.csv", "and of every probe table.md", *page])
        console.print(files, markup=False, soft_wrap=True)
        return exit_code(stored.records, single)


@dataclass(frozen=True)
class _Probe:
    size: int
    config: DictConfig
    plan: Plan


class _Combination:
    """One cell of the grid without the axis, and what has been probed of it."""

    def __init__(self, frontier: Frontier, overrides: Sequence[str]) -> None:
        self.frontier, self.overrides = frontier, overrides
        self.probes: dict[int, _Probe] = {}

    def next_probes(self, fitted: "dict[str, bool | None] | None" = None) -> list[_Probe]:
        """None where the answer is known, or where a probe did not run at all: no other size would either."""
        known = {size: (fitted or {}).get(probe.plan.id) for size, probe in self.probes.items()}
        if any(fit is None for fit in known.values()):
            return []
        sizes = next_sizes(self.frontier.bounds, {size: bool(fit) for size, fit in known.items()})
        made = [self._probe(size) for size in sizes]
        self.probes |= {probe.size: probe for probe in made}
        return made

    def _probe(self, size: int) -> _Probe:
        config = self.frontier.compose([*self.overrides, f"{self.frontier.axis}={size}"])
        return _Probe(size, config, make_plan(config, this_machine()))


def _remember(seen: list[tuple[Sweep, SweepFolder]]) -> Finish:
    def finish(sweep: Sweep, folder: SweepFolder, console: Console, single: bool) -> int:
        seen.append((sweep, folder))
        return 0

    return finish


def _land_in(folder: SweepFolder, probes: Sequence[_Probe]) -> None:
    for probe in probes:
        with open_dict(probe.config):
            probe.config.sweep = folder.path.name
            probe.config.rerun = []  # done in the first round


def _require_a_card(config: DictConfig) -> None:
    backend = config.hydra.runtime.choices.backend
    if backend == "cpu":
        raise PlanError("frontier: backend=cpu has no card to fill. Leave backend out, or type backend=simulate.")
