"""The summary run of a sweep: its table, its effects and its page with the charts, beside the runs of its cells."""

from pathlib import Path
from typing import Any

from memexp.results.compare import METRICS, compare
from memexp.results.effects import Effects, effects
from memexp.results.grid import Grid
from memexp.results.record import STATUSES
from memexp.results.rows import Table
from memexp.results.store import Stored, read_records, read_sweep
from memexp.results.sweep import Sweep, SweepFolder
from memexp.results.table import make_table
from memexp.secrets import without_secrets
from memexp.tracking.exporter import Settings
from memexp.tracking.marks import Mark, is_summarised, read_summary_mark, run_id, sweep_fingerprint, write_summary_mark
from memexp.tracking.runs import start_run

_EFFECT = ("job", "axis", "option", "reference", "metric", "pairs", "mean", "least", "most")
_PERCENT = ("mean_percent", "least_percent", "most_percent")


def export_summary(settings: Settings, secrets: tuple[str, ...] = ()) -> None:
    """Write the run, in place of an older one; nothing where no record has changed since. Raises what W&B raises."""
    import wandb

    folder = SweepFolder(Path(settings.folder))
    if is_summarised(folder.path, settings.mode):
        return
    written_from = sweep_fingerprint(folder.path)
    sweep = read_sweep(folder)
    stored = read_records(folder, sweep)
    grid = Grid(sweep, stored.records)
    table = make_table(sweep, stored.records, stored.missing, stored.damaged)
    mark = read_summary_mark(folder.path)
    identity = mark.id if mark else run_id(folder.path / "wandb", "summary")
    run = start_run(
        settings,
        identity,
        job_type="summary",
        name=f"{sweep.name} summary",
        tags=settings.tags,
        config=without_secrets(_config(sweep), secrets),
    )
    try:
        tables = {"cells": cells_table(table), "effects": effects_table(effects(grid, compare(grid)))}
        logged: dict[str, Any] = {
            name: wandb.Table(columns=columns, data=without_secrets(rows, secrets), allow_mixed_types=True)
            for name, (columns, rows) in tables.items()
            if rows
        }
        if folder.report_html.exists():
            page = without_secrets(folder.report_html.read_text(encoding="utf-8"), secrets)
            logged["report"] = wandb.Html(page, inject=False)
        run.log(logged)
        run.summary.update(without_secrets(_summary(stored, table), secrets))
        url = run.url if settings.mode == "online" else None
    finally:
        run.finish(exit_code=0)
    write_summary_mark(folder.path, Mark(identity, settings.mode, written_from, url))


def cells_table(table: Table) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of table.csv with numbers as numbers, and None where one is unknown."""
    header, *rows = table.csv
    numbers = {n for n, name in enumerate(header) if name.removesuffix("_vs_baseline") in METRICS}
    return list(header), [
        [(float(text) if text else None) if n in numbers else text for n, text in enumerate(row)] for row in rows
    ]


def effects_table(found: Effects) -> tuple[list[str], list[list[Any]]]:
    """One row an option and metric, absolute figures in the metric's own unit."""
    rows = []
    for effect in found.effects:
        for change in effect.changes:
            job = " ".join(f"{axis}={text}" for axis, text in effect.group.items())
            both = {"job": job, **effect.to_dict(), **change.to_dict()}
            rows.append([both[name] for name in (*_EFFECT, *_PERCENT)])
    return [*_EFFECT, *_PERCENT], rows


def _config(sweep: Sweep) -> dict[str, Any]:
    axes = {axis.name: list(axis.options) for axis in sweep.axes}
    return {"axes": axes, "fixed": sweep.fixed, "command": sweep.command}


def _summary(stored: Stored, table: Table) -> dict[str, Any]:
    counts = {status: sum(record.status == status for record in stored.records) for status in STATUSES}
    said = {"remarks": list(table.remarks), "effects": list(table.effects)}
    return {"cells": len(stored.records), "status": counts, **said}
