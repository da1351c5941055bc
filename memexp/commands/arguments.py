"""argparse with memexp's manners: a mistake is one line that says what was typed and what to type, with exit code 2."""

import argparse
from typing import NoReturn

from memexp.plan.plan import PlanError


class Parser(argparse.ArgumentParser):
    """A parser for `memexp NAME …`. Its errors are PlanErrors; `--help` prints and exits with 0, as argparse does."""

    def __init__(self, name: str, about: str) -> None:
        super().__init__(prog=f"memexp {name}", description=about, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise PlanError(f"{self.prog.removeprefix('memexp ')}: {message}. Type {self.prog} --help for what it takes.")
