"""report.html: a whole sweep in one file that opens offline, with its table, its charts and how to run it again.

Nothing in it can become markup or be fetched. Sentences go through Jinja's escaping, rows and charts are JSON that the
page's own script turns into text nodes, and a policy in the page lets only this script run, and load nothing.
"""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from memexp.results import charts
from memexp.results.compare import compare
from memexp.results.figures import Figure, figures
from memexp.results.grid import Grid
from memexp.results.page import Page, make_page
from memexp.results.rows import Row, Table
from memexp.results.store import Stored, write_atomically
from memexp.results.sweep import Sweep, SweepFolder
from memexp.results.theme import theme
from memexp.results.vega import vega_bundle

_ASSETS = Path(__file__).parents[1] / "assets" / "report"


def write_report(folder: SweepFolder, sweep: Sweep, stored: Stored, table: Table) -> None:
    """Replace report.html. Raises OSError that names the file. Takes about half a second beside Vega's first bundle."""
    grid = Grid(sweep, stored.records)
    found = figures(grid, compare(grid), folder.path)
    write_atomically(folder.report_html, html(make_page(grid, table, found), table))


def html(page: Page, table: Table) -> str:
    """The whole file as text."""
    css, script = ((_ASSETS / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    vega = vega_bundle(charts.VEGA_LITE) if page.figures else ""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_ASSETS), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    raw = {name: Markup(text) for name, text in _raw(page, table, css, vega, script).items()}
    return environment.get_template("report.html").render(page=page, **raw) + "\n"


def _raw(page: Page, table: Table, css: str, vega: str, script: str) -> dict[str, str]:
    """What stands in the file as it is. A browser runs a script only if its text has the hash that the policy names."""
    sources = " ".join(f"'sha256-{_hash(text)}'" for text in (vega, script))
    data = {
        "table": {
            "axes": table.axes,
            "columns": [column.heading for column in table.columns],
            "rows": [_row(row, page) for row in table.rows],
        },
        "figures": {figure.key: _figure(figure) for figure in page.figures},
        "themes": {scheme: theme(scheme) for scheme in ("light", "dark")},
    }
    return {"css": css, "vega": vega, "script": script, "script_sources": sources, "data": _json(data)}


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(data: Any) -> str:
    """JSON that no HTML parser takes for the end of its element, or for a comment."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").encode("utf-8", "backslashreplace").decode()


def _row(row: Row, page: Page) -> list[Any]:
    """[status, options, numbers, tags, outcome, command] as report.js reads it, lists to keep 10,000 of them small."""
    numbers = [[number.raw, number.text, number.change, number.better] for number in row.numbers]
    tags = [["front", f"front {page.places[row.id]}"]] if row.id in page.places else []
    tags += [["baseline", "baseline"]] if row.is_baseline else []
    if row.is_ok:
        tags += [["note", word] for word in row.remark.split(", ") if word and word != "baseline"]
    # Its status is a tag of its own.
    outcome = "" if row.is_ok else row.remark.removesuffix(" (baseline)").removeprefix(row.status).lstrip(": ")
    return [row.status, row.options, numbers, tags, outcome, page.commands.get(row.id, "")]


def _figure(figure: Figure) -> dict[str, Any]:
    return {"spec": charts.vega_lite(figure), "fields": list(figure.fields.values()), "rows": figure.rows}
