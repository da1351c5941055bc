"""`memexp report FOLDER`: a sweep's tables once more, and each cell's peak taken apart, from JSON files alone."""

from pathlib import Path

from rich.console import Console
from rich.text import Text

from memexp.results.grid import Grid
from memexp.results.open import open_sweep
from memexp.results.peak import peak_lines
from memexp.results.store import read_records, write_records_jsonl
from memexp.results.table import make_table, print_table, write_tables


def report(path: Path, console: Console) -> int:
    """Print the table of the sweep in `path` and rebuild records.jsonl, table.md and table.csv.

    Returns 0. Raises PlanError where `path` is no sweep, and OSError that names the file where the folder cannot be
    read or written; the table is printed before anything is written.
    """
    folder, sweep = open_sweep(path)
    stored = read_records(folder, sweep)
    table = make_table(sweep, stored.records, stored.missing, stored.damaged)
    print_table(table, console)
    for line in peak_lines(Grid(sweep, stored.records)):
        console.print(Text(line), soft_wrap=True)
    write_records_jsonl(folder, stored.records)
    write_tables(folder, table)
    return 0
