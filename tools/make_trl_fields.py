"""Write memexp/plan/trl_fields.json from the installed TRL: `python tools/make_trl_fields.py`.

Run it once for each new version of TRL; a test fails until the table agrees with the installed library.
"""

import dataclasses
import importlib
import json
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

    configs = {}
    for path in CONFIGS:
        module, _, name = path.rpartition(".")
        config_class = getattr(importlib.import_module(module), name)
        configs[path] = {field.name: _default(field) for field in dataclasses.fields(config_class) if field.init}
    return {"trl": trl.__version__, "configs": configs}


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return _plain(field.default_factory())
    return None if field.default is dataclasses.MISSING else _plain(field.default)


def _plain(value: Any) -> Any:
    value = getattr(value, "value", value)
    return value if isinstance(value, str | int | float | bool | list | dict | type(None)) else repr(value)


if __name__ == "__main__":
    TABLE.write_text(json.dumps(read_fields(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
