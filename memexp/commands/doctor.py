"""`memexp doctor`: what this machine can run. Always exit code 0: a machine without a GPU is no fault."""

import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from memexp import __version__
from memexp.commands import COMMANDS
from memexp.commands.arguments import Parser
from memexp.doctor import look
from memexp.plan.machine import this_machine

_ROOM = 26  # characters that a value has at least, however narrow the terminal


def main(arguments: list[str]) -> int:
    """0 whatever is missing: it says what is here, and not whether that is enough."""
    parser = Parser("doctor", COMMANDS["doctor"])
    parser.add_argument("--hub", action="store_true", help="also ask whether the hub can be reached")
    parser.add_argument("--results-dir", type=Path, default=Path("results"), help="the folder that is looked at")
    typed = parser.parse_args(arguments)
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    machine = this_machine()
    console.print(f"memexp {__version__}, Python {platform.python_version()}", markup=False)
    _section(console, "Machine", look.hardware(machine))
    _section(console, "Backends", look.backends(machine))
    _section(console, "Packages", look.packages(machine))
    _options(console, look.options(machine), "cuda" if machine.gpus else "cpu")
    _section(console, "What is missing", look.remedies(machine))
    _section(console, "Around it", look.surroundings(typed.results_dir, typed.hub))
    return 0


def _section(console: Console, title: str, findings: Sequence[look.Finding]) -> None:
    if not findings:
        return
    console.print(f"\n{title}", style="bold")
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark = "  " if finding.is_well else "- "
        _line(console, f"{mark}{finding.name:{width}}  ", finding.value)


def _options(console: Console, rows: Sequence[look.Options], backend: str) -> None:
    console.print("\nOptions", style="bold")
    width = max(len(row.names) for row in rows)
    console.print(f"  {'':{width}}  {backend:4}  simulate  needs", markup=False)
    for row in rows:
        here, there = ("no" if missing else "yes" for missing in (row.here, row.simulated))
        mark = "  " if here == "yes" else "- "
        needs = row.here or row.simulated or ""
        console.print(f"{mark}{row.names:{width}}  {here:4}  {there:8}  {needs}".rstrip(), markup=False)


def _line(console: Console, head: str, text: str) -> None:
    """`text` wrapped at the console's width, its lines under each other."""
    room = max(console.width - len(head), _ROOM)
    lines, line = [], ""
    for word in text.split(" "):
        if line and len(line) + 1 + len(word) > room:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    for number, part in enumerate([*lines, line]):
        console.print((head if number == 0 else " " * len(head)) + part, markup=False)
