"""The sweeper behind `-m`: composes each cell once and lets any Hydra launcher run what memexp.app planned.

Hydra's own sweeper composes every cell to validate it and lets the launcher compose it again. Here a cell is composed
and planned once, and the launcher is given `plan=PATH`, from which its job makes no config but the path itself.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from memexp.plan.cell_configs import CellConfigs
from memexp.plan.compose import user_errors
from memexp.plan.overrides import normalise
from memexp.run.cells import run_cells
from memexp.run.cluster import Lost, lost_jobs_are_results
from memexp.run.unmeasured import record_of_a_lost_job

# It would call each job in this process, one after another, which needs no config and no copies of it.
_BASIC_LAUNCHER = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"


class PlanningSweeper(BasicSweeper):
    """BasicSweeper's grid, without its second composing. `hydra.sweeper.params` takes bare booleans for groups too."""

    def __init__(self, params: dict[str, Any] | None = None) -> None:
        super().__init__(max_batch_size=None, params=params)
        self.task_function: TaskFunction | None = None
        self._configs: CellConfigs | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        # The launcher is made when the sweep's folder is known: submitit reads hydra.sweep.dir when it is made.
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config
        loader = hydra_context.config_loader
        self._configs = CellConfigs(partial(loader.load_sweep_config, config), loader.list_groups(""))

    def sweep(self, arguments: list[str]) -> None:
        """Run the grid. Raises PlanError, and SystemExit with the sweep's exit code where that is not 0."""
        from memexp.app import run_sweep

        code = run_sweep(map(self.compose, self.cells(arguments)), self._launch)
        if code:
            raise SystemExit(code)

    def cells(self, arguments: Sequence[str]) -> list[list[str]]:
        """The overrides of each cell of the grid: those of the sweep's file and those typed. Raises PlanError."""
        assert self.hydra_context is not None
        loader = self.hydra_context.config_loader
        with user_errors():
            groups = {group: loader.get_group_options(group) for group in loader.list_groups("")}
            parser = OverridesParser.create(config_loader=loader)
            typed = parser.parse_overrides(normalise([*_params(self.params), *arguments], groups))
            (cells,) = self.split_arguments(typed, None)
        return [list(cell) for cell in cells]

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        """The config of one cell. Raises PlanError."""
        assert self._configs is not None
        with user_errors():
            return self._configs.of(overrides)

    def _launch(self, folder: Path, plan_paths: Sequence[Path], at_once: int) -> None:
        assert self.hydra_context is not None and self.config is not None and self.task_function is not None
        if self.config.hydra.launcher._target_ == _BASIC_LAUNCHER:
            run_cells(plan_paths, at_once)
            return
        config = self.config.copy()
        with open_dict(config):
            config.hydra.sweep.dir = str(folder)
            if at_once > 1 and "n_jobs" in config.hydra.launcher:
                config.hydra.launcher.n_jobs = at_once
        context = HydraContext(config_loader=_PlannedCells(), callbacks=self.hydra_context.callbacks)
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=self.task_function, config=config
        )
        with lost_jobs_are_results(str(config.hydra.launcher["_target_"]), plan_paths):
            jobs = launcher.launch([[f"plan={path}"] for path in plan_paths], initial_job_idx=0)
        for path, job in zip(plan_paths, jobs, strict=True):
            if isinstance(job, Lost):
                record_of_a_lost_job(path, job.said)
            else:
                _ = job.return_value  # raises what a job raised


class _PlannedCells(ConfigLoaderImpl):
    """What launchers load configs with: that of a planned cell is Hydra's own part and the path of the plan."""

    def __init__(self) -> None:
        pass  # nothing is searched for: `load_sweep_config` is all that a launcher calls

    def load_sweep_config(self, master_config: DictConfig, sweep_overrides: list[str]) -> DictConfig:
        (override,) = sweep_overrides
        config = OmegaConf.masked_copy(master_config, ["hydra"])
        with open_dict(config):
            config.plan = override.removeprefix("plan=")
            config.hydra.overrides.task = [override]
        return config


def _params(params: dict[str, Any]) -> list[str]:
    """`hydra.sweeper.params` as overrides: YAML's own booleans, numbers, null and lists mean what they say."""
    return [f"{key}={_listed(value)}" for key, value in params.items()]


def _listed(value: Any) -> str:
    if isinstance(value, list | tuple) or OmegaConf.is_list(value):
        return ",".join(_listed(item) for item in value)
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
