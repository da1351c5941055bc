"""The shipped table of TRL's arguments is what the installed TRL has."""

import json
import subprocess
import sys
from pathlib import Path

from memexp.plan.fields import ALWAYS, OWNED, config_fields, trl_fields

ROOT = Path(__file__).parents[1]


def test_the_table_is_that_of_the_installed_trl() -> None:
    code = "import json; from tools.make_trl_fields import read_fields; print(json.dumps(read_fields()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == trl_fields()


def test_what_memexp_sets_is_what_trl_has() -> None:
    assert {*ALWAYS, *OWNED} <= set(config_fields("trl.SFTConfig"))
