"""Write memexp/plan/trl_fields.json from the installed TRL: `python tools/make_trl_fields.py`.

Run it once for each new version of TRL; a test fails until the table agrees with the installed library.
"""

import dataclasses
import importlib
import json
import typing
from pathlib import Path
from typing import Any

CONFIGS = (
    "trl.SFTConfig",
    "trl.DPOConfig",
    "trl.RewardConfig",
    "trl.GRPOConfig",
    "trl.RLOOConfig",
    "trl.experimental.online_dpo.OnlineDPOConfig",
)
TABLE = Path(__file__).parents[1] / "memexp" / "plan" / "trl_fields.json"


def read_fields() -> dict[str, Any]:
    """The table as the installed TRL would have it. Defaults that JSON cannot hold are written as their repr."""
    import trl

    configs: dict[str, Any] = {}
    null_types: dict[str, str | None] = {}
    for path in CONFIGS:
        module, _, name = path.rpartition(".")
        config_class = getattr(importlib.import_module(module), name)
        fields = [field for field in dataclasses.fields(config_class) if field.init]
        configs[path] = {field.name: _default(field) for field in fields}
        hints = typing.get_type_hints(config_class)
        null_types |= {field.name: _beside_null(hints[field.name]) for field in fields if field.default is None}
    plain = {name: kind for name, kind in null_types.items() if kind is not None}
    return {"trl": trl.__version__, "configs": configs, "null_types": plain}


def _beside_null(hint: Any) -> str | None:
    """`float` of `float | None`; None where there are several types, or one that is not plain."""
    types = [kind for kind in typing.get_args(hint) if kind is not type(None)]
    names = {bool: "bool", int: "int", float: "float", list[float]: "list[float]"}
    return names.get(types[0]) if len(types) == 1 else None


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return _plain(field.default_factory())
    return None if field.default is dataclasses.MISSING else _plain(field.default)


def _plain(value: Any) -> Any:
    value = getattr(value, "value", value)
    return value if isinstance(value, str | int | float | bool | list | dict | type(None)) else repr(value)


if __name__ == "__main__":
    TABLE.write_text(json.dumps(read_fields(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
