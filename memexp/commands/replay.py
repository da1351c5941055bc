"""`memexp run --replay PATH/plan.json`: train that cell again, in a new folder, and say whether it came out alike."""

import re
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from memexp.app import write_results
from memexp.commands.arguments import Parser
from memexp.invocation import command_line
from memexp.plan.machine import this_machine
from memexp.plan.plan import Plan, PlanError
from memexp.plan.preflight import preflight
from memexp.results.outcome import outcome
from memexp.results.record import BROKEN, Record
from memexp.results.replayed import replayed, replayed_lines
from memexp.results.store import write_plan, write_sweep
from memexp.results.strict import read_strictly
from memexp.results.sweep import Sweep, SweepFolder
from memexp.results.table import print_table
from memexp.run.elsewhere import plan_from_elsewhere
from memexp.run.folder import new_folder, only_run
from memexp.run.launch import run_cell
from memexp.run.warm import warm_server

_ABOUT = "run one cell again from its plan.json, in a new folder, and say whether it matches the record beside it"


def main(arguments: list[str]) -> int:
    """0 where it matches, or where there is no record to match; 1 where it does not, or failed. Raises PlanError."""
    parser = Parser("run", _ABOUT)
    parser.add_argument("--replay", type=Path, required=True, metavar="PLAN", help="results/NAME/cells/ID/plan.json")
    parser.add_argument(
        "results_dir", nargs="?", default="results_dir=results", help="results_dir=DIR, for the new one"
    )
    given = parser.parse_args(arguments)
    found = re.fullmatch(r"results_dir=(.+)", given.results_dir)
    if found is None:
        raise PlanError(f"{given.results_dir}: a replay takes its plan as it is, and results_dir=DIR beside it.")
    path = given.replay / "plan.json" if given.replay.is_dir() else given.replay
    written = plan_from_elsewhere(path)
    # The same work under the id that this version gives it.
    plan = preflight(replace(written, id=written.work.id(), refusal=None), this_machine())
    if plan.refusal is not None:
        raise PlanError(f"--replay {path}: refused here: {plan.refusal.reason}")
    before = _record_beside(path, written)
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    folder, sweep = _folder(Path(found[1]), plan, path)
    console.print(Text(f"Replaying {plan.id} in {folder.path}"), soft_wrap=True)
    with only_run(folder), warm_server([plan]):
        after = run_cell(folder.plan(plan.id))
    _, table = write_results(sweep, folder)
    print_table(table, console)
    console.print()
    return _verdict(before, after, path, console)


def _verdict(before: Record | None, after: Record | None, path: Path, console: Console) -> int:
    if after is None or after.status in BROKEN:
        console.print(Text(f"Does not match: {outcome(after) if after else 'it did not run'}"), soft_wrap=True)
        return 1
    if before is None:
        console.print(Text(f"Nothing to match: no record lies beside {path}."), soft_wrap=True)
        return 0
    found = replayed(before, after)
    for line in replayed_lines(found):
        console.print(Text(line), soft_wrap=True)
    return int(not found.matches)


def _folder(results: Path, plan: Plan, path: Path) -> tuple[SweepFolder, Sweep]:
    folder = SweepFolder(new_folder(results.resolve()))
    command = command_line(["run", "--replay", str(path.resolve()), f"results_dir={results}"])
    sweep = Sweep(name=folder.path.name, cells=(plan.id,), fixed=plan.choices, command=command)
    write_sweep(folder, sweep)
    folder.cell(plan.id).mkdir(parents=True)
    write_plan(folder, plan)
    return folder, sweep


def _record_beside(path: Path, plan: Plan) -> Record | None:
    """The record of the cell that is run again; None where there is none that can be read."""
    beside = path.with_name("record.json")
    try:
        record = read_strictly(Record, beside)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise PlanError(
            f"{beside} is damaged, so there is nothing to match. Move it away to replay all the same."
        ) from error
    if record.id != plan.id:
        raise PlanError(
            f"{beside} is the record of another cell ({record.id[:40]!r}). Move it away to replay all the same."
        )
    return record
