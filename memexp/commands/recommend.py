"""`memexp recommend FOLDER --memory 24GiB`: the fastest configuration that fits, and the code that trains it."""

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

import memexp
from memexp.commands import COMMANDS
from memexp.commands.arguments import Parser
from memexp.plan.plan import Plan, PlanError
from memexp.plan.trusted import check_class, check_environment
from memexp.results.grid import Grid, option
from memexp.results.heading import job_lines
from memexp.results.open import open_sweep
from memexp.results.recommend import HEADROOM, Card, Recommendation, jobs, matching, recommend
from memexp.results.recommend_text import about, fits_lines, fits_table, headline, left_out_lines, rows_left
from memexp.results.record import Record
from memexp.results.store import read_records, write_atomically
from memexp.results.strict import read_strictly
from memexp.results.sweep import SweepFolder
from memexp.results.terminal import has_a_width, print_lines
from memexp.script.training import training_script
from memexp.simulate.cards import CARDS

_UNITS = {"GIB": 2**30, "MIB": 2**20, "GB": 10**9, "MB": 10**6}
_WIDE = 200
_SIZE = re.compile(r"(\d+(?:\.\d+)?) *(GiB|MiB|GB|MB)", re.IGNORECASE)


def main(arguments: list[str]) -> int:
    """0 also where nothing fits: that is an answer. Raises PlanError for what cannot be asked."""
    parser = Parser("recommend", COMMANDS["recommend"])
    parser.add_argument("folder", type=Path, help="results/NAME, the folder of one sweep")
    card = parser.add_mutually_exclusive_group(required=True)
    card.add_argument("--memory", metavar="SIZE", help="the card's memory, as nvidia-smi shows it: 24GiB, 24564MiB")
    card.add_argument("--gpu", metavar="NAME", help=f"a card by name: {', '.join(CARDS)}")
    parser.add_argument("--headroom", default=f"{HEADROOM:.0%}", help="what is to stay free: 8%% or 0.08")
    parser.add_argument(
        "--where", action="append", default=[], metavar="KEY=VALUE", help="only cells with it; a key twice: with either"
    )
    parser.add_argument("--script", type=Path, metavar="FILE", help="write the code there and do not print it")
    given = parser.parse_args(arguments)
    headroom = _headroom(given.headroom)
    target = _named(given.gpu, headroom) if given.gpu else _sized(given.memory, headroom)
    folder, sweep = open_sweep(given.folder, "recommend")
    chosen = _chosen(Grid(sweep, read_records(folder, sweep).records), given.where, given.gpu)
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    if not has_a_width(console):
        console.width = _WIDE
    found = recommend(Grid(sweep, chosen), target)
    print_lines(_what_ran(Grid(sweep, chosen)), console)
    _print(found, _other_cards(chosen, given.gpu), console)
    if found.best is not None:
        (record,) = (record for record in chosen if record.id == found.best.id)
        _code(found, record, folder, given.script, console)
    return 0


def parse_size(text: str) -> int:
    """Bytes. 24GiB is 24 * 2**30, 24GB is 24 * 10**9, and both are said by people who mean the same card.

    Raises PlanError for anything else.
    """
    found = _SIZE.fullmatch(text.strip())
    size = round(float(found[1]) * _UNITS[found[2].upper()]) if found else 0
    if not size:
        example = f"{text.strip()}GiB" if re.fullmatch(r"[1-9]\d*", text.strip()) else "24GiB"
        raise PlanError(
            f"--memory {text}: this is no size of a card. Type a number with GiB, GB or MiB: --memory {example}"
        )
    return size


def _headroom(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text.strip())
    share = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not 0 <= share < 1:
        raise PlanError(
            f"--headroom {text}: this is no share of the card's memory. Type --headroom 8% or --headroom 0.08"
        )
    return share


def _sized(text: str, headroom: float) -> Card:
    # Which card it is, nobody said: the largest context of those that are known.
    return Card(text, parse_size(text), max(card.context_bytes for card in CARDS.values()), headroom)


def _named(name: str, headroom: float) -> Card:
    if name not in CARDS:
        raise PlanError(f"--gpu {name}: there is no such card. Type one of {', '.join(CARDS)}, or --memory 24GiB.")
    card = CARDS[name]
    return Card(name, card.memory_bytes, card.context_bytes, headroom)


def _chosen(grid: Grid, where: Sequence[str], gpu: str | None) -> list[Record]:
    """The records of one job. Raises PlanError where several are left, or none."""
    if not grid.records:
        raise PlanError(f"{grid.sweep.name}: no cell of this sweep has run yet. Run it first.")
    wanted: dict[str, list[str]] = {}
    for key, value in (_pair(text, grid) for text in where):
        wanted.setdefault(key, []).append(value)
    records = matching(grid.records, wanted)
    if gpu is not None and "gpu" in grid.axes:
        records = matching(records, {"gpu": [gpu]}) or records
    if not records:
        raise PlanError(f"--where {' '.join(where)}: no cell of this sweep is there. Its axes: {_axes(grid)}.")
    several = jobs(Grid(grid.sweep, records))
    if several:
        typed = " ".join(f"--where {axis}={texts[0]}" for axis, texts in several.items())
        listed = " and ".join(f"{axis}={','.join(texts)}" for axis, texts in several.items())
        raise PlanError(f"{listed} are different jobs, and a recommendation is for one. Type for example {typed}")
    return records


def _pair(text: str, grid: Grid) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or key not in grid.records[0].choices:
        raise PlanError(f"--where {text}: type KEY=VALUE, with a key of this sweep: {_axes(grid)}.")
    return key, value


def _axes(grid: Grid) -> str:
    return ", ".join(
        f"{a.name}={','.join(dict.fromkeys(option(r, a.name) for r in grid.records))}" for a in grid.sweep.axes
    )


def _what_ran(grid: Grid) -> Iterator[str]:
    """Whose numbers these are: of another model, batch or length they would be others."""
    open_axes = tuple(a for a in grid.sweep.axes if len({option(record, a.name) for record in grid.records}) > 1)
    job, *settings = job_lines(Grid(replace(grid.sweep, axes=open_axes), grid.records)) or ("",)
    is_predicted = any(record.is_predicted("memory.peak_allocated_bytes") for record in grid.records)
    yield f"{'Predicted for' if is_predicted else 'Measured with'} {job}"
    yield from (f"  {line}" for line in settings)
    yield "  Another model, data, batch_size or max_length needs another amount: run it to know."
    yield ""


def _other_cards(records: Sequence[Record], gpu: str | None) -> str | None:
    """Memory moves from card to card, speed does not."""
    cards = sorted({str(card) for record in records if (card := record.environment.get("gpu"))})
    if gpu is not None and any(gpu in card for card in cards):
        return None
    ran = " and ".join(cards) or "the CPU"
    return f"Speed is that of {ran}, where the cells ran; on another card the order may differ."


def _print(found: Recommendation, note: str | None, console: Console) -> None:
    print_lines(headline(found), console)
    if found.candidates:
        console.print()
        console.print("Which card sizes each fits, in GiB:")
        table = fits_table(found, console.width)
        if table is not None:
            console.print(table)
        else:
            print_lines(fits_lines(found), console)
        print_lines((line for line in (rows_left(found), note) if line is not None), console)
    if found.left_out:
        console.print("\nLeft out:")
    print_lines((f"- {line}" for line in left_out_lines(found.left_out)), console)


def _code(found: Recommendation, best: Record, folder: SweepFolder, path: Path | None, console: Console) -> None:
    plan, said = _plan(folder, best.id), f"{about(found, folder.path.name)} Made by memexp {memexp.__version__}."
    try:
        script = training_script(plan, said, best.notes)
    except (ValueError, KeyError) as error:
        raise PlanError(
            f"{folder.plan(plan.id)} was changed by hand ({error}), so there is no code to show."
        ) from error
    if path is None:
        console.print()
        console.print(Text(script), soft_wrap=True, end="")
        return
    try:
        write_atomically(path, script)
    except OSError as error:
        raise PlanError(f"--script {path}: it cannot be written ({error.strerror}). Type another file.") from error
    console.print(Text(f"\nWrote {path}. To train with it: {_start(plan, path)}"), soft_wrap=True)


def _start(plan: Plan, path: Path) -> str:
    processes = plan.work.processes
    starter = ["torchrun", f"--nproc-per-node={processes}"] if processes > 1 else ["python"]
    return shlex.join([*starter, str(path)])


def _plan(folder: SweepFolder, plan_id: str) -> Plan:
    path = folder.plan(plan_id)
    try:
        plan = read_strictly(Plan, path)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise PlanError(f"{path} is damaged ({error}), so there is no code to show. Run the cell again.") from error
    check_class(plan.work.trainer.config_class)
    check_class(plan.work.trainer.trainer_class)
    check_environment(plan.work.env)
    return plan
