"""`memexp report FOLDER`: a sweep's tables once more, and each cell's peak taken apart, from JSON files alone."""

from pathlib import Path

from rich.console import Console
from rich.text import Text

from memexp.results.grid import Grid
from memexp.results.peak import peak_lines
from memexp.results.store import read_records, read_sweep, write_records_jsonl
from memexp.results.sweep import SweepFolder
from memexp.results.table import make_table, print_table, write_tables


def report(path: Path, console: Console) -> int:
    """Print the table of the sweep in `path` and rebuild records.jsonl, table.md and table.csv.

    Returns 0, or 2 with one line where `path` is no sweep. Raises OSError that names the file where the folder cannot
    be read or written; the table is printed before anything is written.
    """
    folder = SweepFolder(path)
    try:
        sweep = read_sweep(folder)
    except (FileNotFoundError, NotADirectoryError):
        return _say(console, _no_sweep(path))
    except (ValueError, TypeError, RecursionError) as error:
        return _say(console, f"{folder.sweep_json} is damaged ({error}): run the sweep again in a new folder.")
    stored = read_records(folder, sweep)
    table = make_table(sweep, stored.records, stored.missing, stored.damaged)
    print_table(table, console)
    for line in peak_lines(Grid(sweep, stored.records)):
        console.print(Text(line), soft_wrap=True)
    write_records_jsonl(folder, stored.records)
    write_tables(folder, table)
    return 0


def _no_sweep(path: Path) -> str:
    """What was given, why it is no sweep, and what to type."""
    above = next((parent for parent in path.absolute().parents if SweepFolder(parent).sweep_json.is_file()), None)
    if above is not None:
        return f"{path} is part of a sweep, not its folder. Type: memexp report {above}"
    if not path.exists():
        return f"{path} does not exist. Type: memexp report results/NAME, with the name of a sweep."
    below = sorted(path.glob("*/sweep.json"), key=lambda file: file.stat().st_mtime)
    if below:
        count = f"{len(below):,} {'sweep' if len(below) == 1 else 'sweeps'}"
        return f"{path} is no sweep itself but holds {count}. Type, for the newest: memexp report {below[-1].parent}"
    return f"{path} is no sweep: it has no sweep.json. Type: memexp report results/NAME, with the name of a sweep."


def _say(console: Console, line: str) -> int:
    console.print(Text(line), soft_wrap=True)
    return 2
