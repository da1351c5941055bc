"""A key that does not exist where it was typed, and the place where it does: a field of an option, an argument of TRL.

Only exact names are found here; typos are for `memexp.plan.suggest`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from memexp.plan.conf import conf_dir, filling_keys, group_defaults, groups, option
from memexp.plan.fields import ALWAYS, OWNED, has_no_effect, trl_fields


def instead_of_root(key: str, chosen: Mapping[str, Sequence[str]], hidden: set[str]) -> str | None:
    """What to type for `key` without a group in front, `trainer.num_generations=…`; None where nothing has it.

    `chosen` are the options typed for each group, the others have their default; `hidden` are fields nobody sets. Where
    only other options have the key, they are said: `peft.r=… with peft=dora, lora or rslora`.
    """
    for group, default in group_defaults().items():
        for name in chosen.get(group) or [str(default)]:
            if typed := _instead(key, group, name, hidden):
                return typed
    for group in group_defaults():
        having = {name: typed for name in groups().get(group, ()) if (typed := _instead(key, group, name, hidden))}
        if having:
            typed = next(iter(having.values()))
            *others, last = (name for name, said in having.items() if said == typed)
            names = f"{', '.join(others)} or {last}" if others else last
            return f"{typed} with {group}={names}"
    return None


def _instead(key: str, group: str, name: str, hidden: set[str]) -> str | None:
    fields = option(group, name) if (conf_dir() / group / f"{name}.yaml").is_file() else {}
    if key in fields and key not in hidden and f"{group}.{key}" not in hidden:
        return f"{group}.{key}=…"
    return instead_of_trainer(key, fields) if group == "trainer" else None


def instead_of_trainer(key: str, trainer: Mapping[str, Any]) -> str | None:
    """What to type for an argument of a trainer's TRL config, `trainer` being the fields of its option in conf/.

    None where the config has no such argument, and where memexp alone sets it.
    """
    arguments = trl_fields()["configs"].get(trainer.get("config_class"), {})
    if key in OWNED:
        return OWNED[key] if key in arguments else None
    own = filling_keys(trainer.get("sets") or {}).get(key)
    if own is not None:
        return f"{own}=…"
    is_fixed = key in ALWAYS or key in (trainer.get("always") or {}) or has_no_effect(key)
    return f"trainer.args.{key}=…" if key in arguments and not is_fixed else None
