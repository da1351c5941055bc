"""`memexp report FOLDER`: the tables of a sweep once more, from its files alone."""

from pathlib import Path

from rich.console import Console

from memexp.commands import COMMANDS
from memexp.commands.arguments import Parser
from memexp.results.report import report


def main(arguments: list[str]) -> int:
    parser = Parser("report", COMMANDS["report"])
    parser.add_argument("folder", type=Path, help="results/NAME, the folder of one sweep")
    return report(parser.parse_args(arguments).folder, Console())
