"""The shipped table of TRL's arguments is what the installed TRL has."""

import dataclasses
import importlib
import typing
import warnings

from memexp.plan.fields import ALWAYS, NULL_TOO, OWNED, config_fields, trl_fields
from tools.make_trl_fields import CONFIGS, read_fields


def test_the_table_is_that_of_the_installed_trl() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TRL's own: part of what is read is experimental
        assert read_fields() == trl_fields()


def test_null_is_taken_where_trl_says_so_beside_its_default() -> None:
    said = set()
    for path in CONFIGS:
        module, _, name = path.rpartition(".")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = getattr(importlib.import_module(module), name)
        hints = typing.get_type_hints(config)
        fields = [field for field in dataclasses.fields(config) if isinstance(field.default, int | float)]
        said |= {field.name for field in fields if type(None) in typing.get_args(hints[field.name])}
    assert said == NULL_TOO


def test_what_memexp_sets_is_what_trl_has() -> None:
    assert set(ALWAYS) <= set(config_fields("trl.SFTConfig"))
    assert set(OWNED) <= {name for path in CONFIGS for name in config_fields(path)}
