"""`memexp report FOLDER`: a sweep's tables once more, and each cell's peak taken apart, from JSON files alone."""

from pathlib import Path

from rich.console import Console
from rich.text import Text

from memexp.results.format import one_line
from memexp.results.grid import Grid
from memexp.results.open import open_sweep
from memexp.results.peak import peak_lines
from memexp.results.rows import Table
from memexp.results.since import read_earlier, since, since_lines
from memexp.results.store import Stored, read_records, write_records_jsonl
from memexp.results.sweep import Sweep, SweepFolder
from memexp.results.table import make_table, print_table, write_tables
from memexp.results.terminal import print_lines


def report(path: Path, console: Console, earlier: Path | None = None, fail: bool = False) -> int:
    """Print the table of the sweep in `path` and rebuild records.jsonl, table.md, table.csv and report.html.

    With `earlier`, an older sweep or its records.jsonl, say what moved since. Returns 0, or 1 where something did and
    `fail` is set. Raises PlanError where `path` is no sweep, and OSError that names the file where the folder cannot be
    read or written; the table is printed before anything is written.
    """
    before = read_earlier(earlier) if earlier is not None else ()
    folder, sweep = open_sweep(path)
    stored = read_records(folder, sweep)
    table = make_table(sweep, stored.records, stored.missing, stored.damaged)
    print_table(table, console, whole=True)
    print_lines(peak_lines(Grid(sweep, stored.records)), console)
    found = since(before, stored.records) if earlier is not None else None
    if found is not None:
        console.print(Text("\nAgainst the earlier sweep", style="bold"))
        print_lines(since_lines(found, str(earlier)), console)
    write_records_jsonl(folder, stored.records)
    write_tables(folder, table)
    page = report_page(folder, sweep, stored, table, console)
    console.print(
        "  ".join([f"\n{folder.path}/table.md", "table.csv", "records.jsonl", *page]), markup=False, soft_wrap=True
    )
    return int(fail and found is not None and not found.agrees)


def report_page(folder: SweepFolder, sweep: Sweep, stored: Stored, table: Table, console: Console) -> list[str]:
    """Write report.html and return its name. A page that cannot be made is a line, since every number is elsewhere too.

    Raises OSError that names the file.
    """
    # Altair is imported only here, when the table has been printed already.
    from memexp.results.html import write_report

    try:
        write_report(folder, sweep, stored, table)
    except OSError:
        raise
    except Exception as error:
        console.print(f"report.html was not written: {one_line(f'{type(error).__name__}: {error}')}", markup=False)
        return []
    return [folder.report_html.name]
