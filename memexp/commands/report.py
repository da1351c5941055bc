"""`memexp report FOLDER`: the tables of a sweep once more, from its files alone."""

from pathlib import Path

from rich.console import Console

from memexp.commands import COMMANDS
from memexp.commands.arguments import Parser
from memexp.results.compare import compare
from memexp.results.figures import figures
from memexp.results.grid import Grid
from memexp.results.open import open_sweep
from memexp.results.report import report
from memexp.results.store import read_records
from memexp.results.table import make_table


def main(arguments: list[str]) -> int:
    """0; with --fail 1 where something moved or nothing is the same cell. Raises PlanError for what is no sweep."""
    parser = Parser("report", COMMANDS["report"])
    parser.add_argument("folder", type=Path, help="results/NAME, the folder of one sweep")
    parser.add_argument("--since", type=Path, metavar="OTHER", help="an earlier sweep, or its records.jsonl")
    parser.add_argument(
        "--fail", action="store_true", help="exit with 1 where something moved since OTHER, or nothing is the same cell"
    )
    parser.add_argument(
        "--charts", action="store_true", help="write the charts of report.html as PNG files, into charts/"
    )
    parser.add_argument(
        "--wandb-report", action="store_true", help="publish a W&B Report of the sweep, or write its spec without a key"
    )
    given = parser.parse_args(arguments)
    console = Console()
    code = report(given.folder, console, given.since, given.fail)
    if given.charts:
        _say(console, _charts(given.folder))
    if given.wandb_report:
        _say(console, _wandb_report(given.folder))
    return code


def _charts(path: Path) -> list[str]:
    from memexp.results.charts import write_pngs

    folder, sweep = open_sweep(path)
    grid = Grid(sweep, read_records(folder, sweep).records)
    written = write_pngs(figures(grid, compare(grid), folder.path), folder.path / "charts")
    return (
        ["  ".join([f"{folder.path}/charts/{written[0]}", *written[1:]])] if written else ["There is nothing to chart."]
    )


def _wandb_report(path: Path) -> list[str]:
    from memexp.tracking.wandb_report import wandb_report

    folder, sweep = open_sweep(path)
    stored = read_records(folder, sweep)
    return wandb_report(folder, make_table(sweep, stored.records, stored.missing, stored.damaged))


def _say(console: Console, lines: list[str]) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
