"""The Hydra job, and the whole story of a sweep on one page: plan, refuse, launch, watch, record, compare.

A single run is a sweep of one cell. Nothing in here imports torch: every cell trains in a process of its own.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from memexp.invocation import as_typed, fail, resume_command
from memexp.plan.machine import this_machine
from memexp.plan.make import make_plan
from memexp.plan.plan import Plan, PlanError
from memexp.plan.preflight import preflight
from memexp.results.record import Record
from memexp.results.store import read_records, write_record, write_records_jsonl
from memexp.results.sweep import Sweep, SweepFolder
from memexp.results.table import make_table, print_table, write_tables
from memexp.run.environment import allocator_note
from memexp.run.folder import only_run, open_folder
from memexp.run.launch import refused_record, run_cell
from memexp.run.warm import warm_server
from memexp.run.watch import Watch
from memexp.tracking.exporter import Exporter, Settings

Launch = Callable[[Path, Sequence[Path]], None]


def job(cfg: DictConfig) -> None:
    """What Hydra runs: one planned cell under a sweep's launcher, or else a single run from its own config."""
    if "plan" in cfg:
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


def _run_here(folder: Path, plan_paths: Sequence[Path]) -> None:
    for path in plan_paths:
        run_cell(path)


def run_sweep(configs: Sequence[DictConfig], launch: Launch, single: bool = False, composing_seconds: float = 0) -> int:
    """Run every cell that has no record yet, write the tables, and return the exit code of the design.

    Raises PlanError before anything is started or written.
    """
    console = Console(stderr=False, highlight=False, soft_wrap=not sys.stdout.isatty())
    started = time.perf_counter()
    machine = this_machine()
    plans = [preflight(make_plan(cfg, machine), machine) for cfg in configs]
    planning_seconds = time.perf_counter() - started
    if single and plans[0].refusal is not None and plans[0].refusal.kind == "not_found":
        raise PlanError(plans[0].refusal.reason)
    shell = allocator_note(os.environ)
    if shell is not None:
        console.print(shell, markup=False)
    if configs[0].dry_run:
        _print_plans(plans, console, composing_seconds, planning_seconds)
        return 0
    sweep, folder, unique = open_folder(configs[0], plans)
    finished = {record.id for record in read_records(folder, sweep).records if _stands(record)}
    pending = [plan for plan in unique if plan.id not in finished and plan.refusal is None]
    for plan in pending:
        folder.record(plan.id).unlink(missing_ok=True)
    _write_refused(unique, sweep, folder, finished)
    _announce(plans, unique, pending, folder, console)
    logger: Any = OmegaConf.to_container(configs[0].logger, resolve=True)
    exporter = Exporter(Settings.from_dict({**logger, "folder": str(folder.path)}))
    try:
        with only_run(folder), warm_server(pending), Watch(folder, unique, console, exporter.cell_done):
            launch(folder.path, [folder.plan(plan.id) for plan in pending])
    except KeyboardInterrupt:
        console.print(f"\nInterrupted. To run the rest: {resume_command(sweep.name)}", markup=False)
        return 130
    finally:
        for line in exporter.close():
            console.print(line, markup=False)
    return _finish(sweep, folder, console, single)


def _stands(record: Record) -> bool:
    """Whether a record is final. What was missing may be there by now; rows that were no data are still none."""
    return record.status != "refused" or record.reason_kind == "invalid_data"


def _write_refused(plans: Sequence[Plan], sweep: Sweep, folder: SweepFolder, finished: set[str]) -> None:
    for plan in plans:
        if plan.refusal is not None and plan.id not in finished:
            write_record(folder.record(plan.id), refused_record(plan, sweep.name))


def _finish(sweep: Sweep, folder: SweepFolder, console: Console, single: bool) -> int:
    stored = read_records(folder, sweep)
    write_records_jsonl(folder, stored.records)
    table = make_table(sweep, stored.records, stored.missing, stored.damaged)
    write_tables(folder, table)
    print_table(table, console)
    console.print(f"\n{folder.path}/table.md  table.csv  records.jsonl", markup=False)
    return exit_code(stored.records, single)


def exit_code(records: Sequence[Record], single: bool) -> int:
    """0 where every cell is ok, oom or refused, 1 where one is not; 2 for a single run of what is not there."""
    if single and any(record.reason_kind == "not_found" for record in records):
        return 2
    return int(any(record.status in ("failed", "timeout", "killed") for record in records))


def _announce(
    plans: Sequence[Plan], unique: Sequence[Plan], pending: Sequence[Plan], folder: SweepFolder, console: Console
) -> None:
    refused = sum(plan.refusal is not None for plan in unique)
    finished = len(unique) - len(pending) - refused
    parts = [
        f"{len(pending)} to run",
        f"{refused} refused" if refused else "",
        f"{finished} finished before" if finished else "",
    ]
    cells = f"{len(unique)} cell{'s' if len(unique) != 1 else ''}"
    console.print(f"{cells}: {', '.join(part for part in parts if part)}. Results in {folder.path}", markup=False)
    _name_twins(plans, console)


def _name_twins(plans: Sequence[Plan], console: Console) -> None:
    for plan_id in dict.fromkeys(plan.id for plan in plans):
        twins = [plan for plan in plans if plan.id == plan_id]
        if len(twins) > 1:
            names = " and ".join(" ".join(as_typed(twin.overrides)) or "(defaults)" for twin in twins)
            console.print(f"One cell, since they run the same: {names}", markup=False)


def _print_plans(plans: Sequence[Plan], console: Console, composing_seconds: float, planning_seconds: float) -> None:
    for plan in {plan.id: plan for plan in plans}.values():
        console.print(f"{plan.id}  {' '.join(as_typed(plan.overrides)) or '(defaults)'}", markup=False)
        if plan.refusal is not None:
            console.print(f"    refused ({plan.refusal.kind}): {plan.refusal.reason}", markup=False)
    _name_twins(plans, console)
    unique = {plan.id: plan for plan in plans}.values()
    refused = sum(plan.refusal is not None for plan in unique)
    cells = "1 cell" if len(unique) == 1 else f"{len(unique)} cells"
    composed = f"Hydra composed in {composing_seconds:.2f} s, " if composing_seconds else ""
    console.print(
        f"{cells}, {refused} refused, nothing started. {composed}memexp planned in {planning_seconds:.2f} s.",
        markup=False,
    )
