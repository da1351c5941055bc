"""The shipped table of TRL's arguments is what the installed TRL has."""

import warnings

from memexp.plan.fields import ALWAYS, OWNED, config_fields, trl_fields
from tools.make_trl_fields import read_fields


def test_the_table_is_that_of_the_installed_trl() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TRL's own: part of what is read is experimental
        assert read_fields() == trl_fields()


def test_what_memexp_sets_is_what_trl_has() -> None:
    assert {*ALWAYS, *OWNED} <= set(config_fields("trl.SFTConfig"))
