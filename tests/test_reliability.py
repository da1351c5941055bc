"""The README's table of faults: every row names the test that makes it happen, and that test is there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def named_tests() -> list[str]:
    """`tests/test_x.py::test_y` of each row of the section "Reliability"."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Reliability")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    found = [re.findall(r"`(test_\w+\.py::test_\w+)`", row) for row in rows]
    assert all(found), "a row names no test"
    return [name for names in found for name in names]


def test_every_test_that_the_table_of_faults_names_is_there() -> None:
    names = named_tests()
    assert len(names) > 20
    for name in names:
        file, _, test = name.partition("::")
        tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
        assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, name
