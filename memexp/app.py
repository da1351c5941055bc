"""The Hydra job, and the whole story of a sweep on one page: plan, refuse, launch, watch, record, compare.

A single run is a sweep of one cell. Nothing in here imports torch: every cell trains in a process of its own.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from memexp.announce import announce, print_command, print_plans, said_if_long
from memexp.invocation import fail, resume_command, said_by_the_system
from memexp.plan.cells import plan_cells
from memexp.plan.machine import this_machine
from memexp.plan.plan import Plan, PlanError
from memexp.plan.values import rerun_choices, show
from memexp.results.record import BROKEN, Record
from memexp.results.report import report_page
from memexp.results.rows import Table
from memexp.results.store import Stored, read_records, write_record, write_records_jsonl
from memexp.results.sweep import Sweep, SweepFolder
from memexp.results.table import make_table, print_table, write_tables
from memexp.run.cells import cells_at_once, run_cells
from memexp.run.cluster import sigterm_ends_the_job
from memexp.run.environment import allocator_note, describe_code
from memexp.run.fail_fast import FailFast
from memexp.run.folder import check_baseline, in_running_order, open_folder
from memexp.run.launch import run_cell
from memexp.run.resume import changed_since, stands
from memexp.run.unmeasured import refused_record
from memexp.run.warm import warm_server
from memexp.run.watch import Watch
from memexp.stdout import lasting_stdout
from memexp.tracking.exporter import Exporter, Settings

# The sweep's folder, its plans, and how many to run at once.
Launch = Callable[[Path, Sequence[Path], int], None]
Finish = Callable[[Sweep, SweepFolder, Console, bool], int]


def job(cfg: DictConfig) -> None:
    """What Hydra runs: one planned cell under a sweep's launcher, or else a single run from its own config."""
    if "plan" in cfg:
        with sigterm_ends_the_job():
            run_cell(Path(cfg.plan))
        return
    listed = HydraConfig.get().sweeper.get("params")
    if listed:
        typed = ", ".join(f"{key}={value}" for key, value in listed.items())
        raise SystemExit(
            fail(PlanError(f"This file is a sweep over {typed}, and a single run takes one of each. Add -m."))
        )
    whole = OmegaConf.merge({"hydra": HydraConfig.get()}, cfg)
    assert isinstance(whole, DictConfig)
    try:
        code = run_sweep([whole], _run_here, single=True)
    except PlanError as error:
        code = fail(error)  # Hydra would put a line of its own before it
    if code:
        raise SystemExit(code)


def _run_here(folder: Path, plan_paths: Sequence[Path], at_once: int) -> None:
    run_cells(plan_paths, at_once)


def run_sweep(
    configs: Iterable[DictConfig],
    launch: Launch,
    single: bool = False,
    finish: Finish | None = None,
    more_follows: bool = False,
    announced: bool = False,
) -> int:
    """Run every cell that has no record yet, write the tables, and return the exit code of the design.

    `configs` are composed as they are asked for, and forgotten when they are planned. `finish` shows the results in
    another way than as the sweep's table, and returns the exit code. Where `more_follows`, W&B gets its runs later;
    where an earlier call has `announced` the sweep, it is not said again how many cells run.

    Raises PlanError before anything is started or written.
    """
    console = Console(file=lasting_stdout(), highlight=False, soft_wrap=not sys.stdout.isatty())
    planned = plan_cells(configs, this_machine())
    cfg, plans = planned.config, planned.plans
    if single and plans[0].refusal is not None and plans[0].refusal.kind == "not_found":
        raise PlanError(plans[0].refusal.reason)
    shell = allocator_note(os.environ)
    if shell is not None:
        console.print(shell, markup=False)
    if cfg.dry_run:
        check_baseline(cfg, plans)
        print_plans(planned, console)
        return 0
    with open_folder(cfg, plans) as (sweep, folder, unique):
        try:
            pending = _pending(cfg, sweep, folder, unique, console)
            if not announced:
                announce(planned, unique, pending, folder, console)
            with _exporting(cfg, folder, console, now=not more_follows) as exporter:
                _run(cfg, folder, unique, pending, launch, exporter, console)
                code = (finish or _finish)(sweep, folder, console, single)
                if not single:
                    exporter.sweep_done()
                return code
        except KeyboardInterrupt:
            left = more_follows or any(not folder.record(plan.id).exists() for plan in unique)
            rest = "To run the rest:" if left else "Every cell has its row. For what was not written of tables and W&B:"
            console.print(f"\nInterrupted. {rest}", markup=False)
            print_command(resume_command(sweep.name), console)
            return 130
        except OSError as error:
            return _cannot_write(error, sweep)


def _pending(cfg: DictConfig, sweep: Sweep, folder: SweepFolder, plans: Sequence[Plan], console: Console) -> list[Plan]:
    """The cells to run; whatever record they have is gone, and the refused ones have theirs."""
    now, rerun = describe_code(), rerun_choices(cfg.rerun)
    standing = [record for record in read_records(folder, sweep).records if stands(record, rerun, now)]
    finished = {record.id for record in standing}
    for plan in plans:
        if plan.id not in finished:
            folder.record(plan.id).unlink(missing_ok=True)
            folder.progress(plan.id).unlink(missing_ok=True)  # of a run that was killed: nothing has begun yet
            if plan.refusal is not None:
                write_record(folder.record(plan.id), refused_record(plan, sweep.name))
    changed = changed_since(standing, now)
    if changed is not None:
        console.print(changed, markup=False)
    return in_running_order([plan for plan in plans if plan.id not in finished and plan.refusal is None])


@contextmanager
def _exporting(cfg: DictConfig, folder: SweepFolder, console: Console, now: bool) -> Iterator[Exporter]:
    """W&B writes what is left beside the tables, then the summary that reads them, and has the last word. Unless `now`
    it writes nothing: the sweep that ends with the same records hands over all of them.
    """
    logger: Any = OmegaConf.to_container(cfg.logger, resolve=True)
    mode = {} if now else {"mode": "disabled"}
    exporter = Exporter(Settings.from_dict({**logger, "folder": str(folder.path), **mode}))
    try:
        yield exporter
    finally:
        with said_if_long("Writing what is left of W&B's runs …", console):
            lines = exporter.close()
        for line in lines:
            console.print(line, markup=False, soft_wrap=True)


def _run(
    cfg: DictConfig,
    folder: SweepFolder,
    plans: Sequence[Plan],
    pending: Sequence[Plan],
    launch: Launch,
    exporter: Exporter,
    console: Console,
) -> None:
    fail_fast = FailFast(folder.path)
    fail_fast.begin(show(cfg.fail_fast))
    at_once = cells_at_once(cfg.jobs, pending, this_machine())
    with warm_server(pending), Watch(folder, plans, console, exporter.cell_done):
        launch(folder.path, [folder.plan(plan.id) for plan in pending], at_once)
    reason, left = fail_fast.reason_to_stop(), [p for p in pending if not folder.record(p.id).exists()]
    if reason is not None and left:
        again = f"{resume_command(folder.path.name)} rerun={','.join(BROKEN)}"
        console.print(f"\nStopped (fail_fast={show(cfg.fail_fast)}): {reason}.", markup=False)
        console.print("fail_fast=false goes on all the same. Once that is put right:", markup=False)
        print_command(again, console)
        console.print()


def _cannot_write(error: OSError, sweep: Sweep) -> int:
    """A full disk, a folder that is gone, a limit of the system: what has finished is kept, and its record is whole."""
    fail(PlanError(f"{said_by_the_system(error)}. Once that is put right: {resume_command(sweep.name)}"))
    return 1


def _finish(sweep: Sweep, folder: SweepFolder, console: Console, single: bool) -> int:
    stored, table = write_results(sweep, folder)
    print_table(table, console)
    page = [] if single else report_page(folder, sweep, stored, table, console)
    console.print(
        "  ".join([f"\n{folder.path}/table.md", "table.csv", "records.jsonl", *page]), markup=False, soft_wrap=True
    )
    return exit_code(stored.records, single)


def write_results(sweep: Sweep, folder: SweepFolder) -> tuple[Stored, Table]:
    """Write what a sweep's folder shows of its records, and return them with their table."""
    stored = read_records(folder, sweep)
    write_records_jsonl(folder, stored.records)
    table = make_table(sweep, stored.records, stored.missing, stored.damaged)
    write_tables(folder, table)
    return stored, table


def exit_code(records: Sequence[Record], single: bool) -> int:
    """0 where every cell is ok, oom or refused, 1 where one is not; 2 for a single run of what is not there."""
    if single and any(record.reason_kind == "not_found" for record in records):
        return 2
    return int(any(record.status in BROKEN for record in records))
