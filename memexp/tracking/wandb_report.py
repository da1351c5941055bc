"""A W&B Report of a sweep's group: published where there is a key and a network, else its spec as a file.

Only `memexp report DIR --wandb-report` comes here. It never asks for a key.
"""

import importlib
import json
import netrc
import os
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from memexp.results.format import one_line
from memexp.results.markdown import markdown
from memexp.results.rows import Table
from memexp.results.store import write_atomically
from memexp.results.sweep import SweepFolder
from memexp.secrets import secrets_in, without_secrets
from memexp.tracking.exporter import Settings
from memexp.tracking.time_limit import time_limit

SPEC = "wandb-report.json"
# wandb 0.31 has another host by default, and reads a key that was stored for this one too.
_OLD_HOST = "api.wandb.ai"
_MEMORY, _SPEED = "memory.peak_allocated_bytes", "speed.real_tokens_per_second"


def wandb_report(folder: SweepFolder, table: Table) -> list[str]:
    """Publish the report or write its spec, and return lines that say where it is. Raises OSError that names the file.

    The project, the entity and the group are those that the sweep's runs were exported with.
    """
    settings = _settings(folder)
    reason = _why_offline(settings)
    if reason is None:
        try:
            with time_limit(settings.timeout_seconds):
                return [f"W&B: the report is at {_publish(table, settings)}"]
        except Exception as error:
            reason = one_line(f"{type(error).__name__}: {error}").rstrip(".")
    return [*_write_spec(folder, table, settings), f"W&B: it was not published, because {reason}.", _how_to(folder)]


def report_spec(table: Table, settings: Settings) -> dict[str, Any]:
    """What W&B stores of a report, as JSON, made without a network: its run set is bound to no project."""
    report = _report(table, settings, bound=False)
    model = report._to_model()  # the package has no public way to see a report that was not saved
    return {
        "displayName": model.display_name,
        "description": model.description,
        "entityName": settings.entity,
        "projectName": settings.project,
        "spec": json.loads(model.spec.model_dump_json(by_alias=True, exclude_none=True)),
    }


def _write_spec(folder: SweepFolder, table: Table, settings: Settings) -> list[str]:
    spec = without_secrets(report_spec(table, settings), secrets_in(os.environ))
    write_atomically(folder.path / SPEC, json.dumps(spec, indent=1, ensure_ascii=False) + "\n")
    return [f"W&B: the report's spec is {folder.path / SPEC}"]


def _publish(table: Table, settings: Settings) -> str:
    report = _report(table, settings, bound=True)
    report.save()
    return str(report.url)


def _report(table: Table, settings: Settings, bound: bool) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pydantic's, while the package is imported
        # By name: the package's own types export nothing.
        wr: Any = importlib.import_module("wandb_workspaces.reports.v2")

    where = {"entity": settings.entity or _default_entity(), "project": settings.project} if bound else {}
    # A string and not the package's own expressions: those do not escape a quote in a name.
    filters = f"Metric('Group') == {settings.group!r} and Metric('JobType') == 'cell'"
    runs = wr.Runset(name=f"cells of {table.name}", filters=filters, **where)
    panels = [
        wr.ScatterPlot(
            title="Speed against memory", x=wr.SummaryMetric(_MEMORY), y=wr.SummaryMetric(_SPEED),
            layout=wr.Layout(w=12, h=8),
        ),
        wr.BarPlot(
            title="Peak allocated, bytes", metrics=[wr.SummaryMetric(_MEMORY)], layout=wr.Layout(x=12, w=12, h=8),
        ),
        wr.LinePlot(
            title="Peak allocated by step, bytes", x="train/step", y=["train/peak_allocated_bytes"],
            layout=wr.Layout(y=8, w=24, h=8),
        ),
    ]  # fmt: skip
    said = markdown(table)
    blocks = [wr.MarkdownBlock(said), wr.PanelGrid(runsets=[runs], panels=panels)]
    about = f"memexp sweep {table.name}"
    return wr.Report(
        project=settings.project, entity=where.get("entity", settings.entity or ""),
        title=about, description="\n".join(table.heading), blocks=blocks, width="fluid",
    )  # fmt: skip


def _default_entity() -> str:
    import wandb

    return str(wandb.Api().default_entity)


def _settings(folder: SweepFolder) -> Settings:
    """Those of the sweep's own export, or the defaults where it was run with `logger=none`."""
    try:
        return Settings.read(folder.path / "wandb" / "export.json")
    except (OSError, ValueError, TypeError):
        return Settings(folder=str(folder.path), group=folder.path.name)


def _why_offline(settings: Settings) -> str | None:
    if os.environ.get("WANDB_MODE") in ("offline", "dryrun", "disabled"):
        return f"WANDB_MODE is {os.environ['WANDB_MODE']}"
    if os.environ.get("WANDB_API_KEY") or _has_key_in_netrc():
        return None
    return "there is no key of W&B here"


def _has_key_in_netrc() -> bool:
    import wandb

    hosts = {urlparse(str(wandb.Settings().base_url)).netloc, _OLD_HOST}
    try:
        known = netrc.netrc(os.environ.get("NETRC") or Path.home() / ".netrc")
    except (OSError, netrc.NetrcParseError):
        return False
    return any(known.authenticators(host) is not None for host in hosts)


def _how_to(folder: SweepFolder) -> str:
    return (
        f"W&B: to publish it, type `wandb login`, then `wandb sync {folder.path}/wandb/*run-*`, "
        f"then `memexp report {folder.path} --wandb-report`"
    )
