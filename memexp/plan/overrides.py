"""The door that every override passes: booleans for groups become names, and a typo is caught in the user's words.

It works on Hydra's parsed overrides and not on text, so that `offload=true,false`, `offload=choice(true,false)` and
`offload=True` all mean the same, and a quoted value stays what it is.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import (
    ChoiceSweep,
    Glob,
    Override,
    OverrideType,
    Quote,
    QuotedString,
    RangeSweep,
    Sweep,
)
from hydra.errors import HydraException

from memexp.plan.conf import conf_dir, option, primary
from memexp.plan.plan import PlanError
from memexp.plan.suggest import did_you_mean
from memexp.plan.synonyms import instead_of
from memexp.plan.unknown_key import instead_of_root
from memexp.plan.values import show

_MOST_CELLS = 100_000
_PREFIX = {OverrideType.CHANGE: "", OverrideType.ADD: "+", OverrideType.FORCE_ADD: "++", OverrideType.DEL: "~"}
# Mappings that take any key, so that the user need not know Hydra's "+" for it.
_OPEN = ("trainer.args.", "data.columns.", "model.config.")
# How an option's file is made, which is not the user's to set.
_MADE = {
    *("about", "acts_on", "auto", "confirm", "env", "is_off", "needs", "same_loss", "trainers", "sets", "kind"),
    *("model_type", "config_class", "trainer_class"),
}
_MADE_KEYS = {
    *("trainer.name", "trainer.rows", "trainer.task", "trainer.always"),
    *("gpu.name", "peft.peft", "attention.model", "precision.model"),
}


def normalise(overrides: Sequence[str], groups: dict[str, list[str]]) -> list[str]:
    """The same overrides with booleans of groups quoted and `trainer.args.x=1` made an addition.

    Raises PlanError for an override that does not parse, a key that does not exist, and an option that a group lacks.
    """
    parsed = parse(overrides)
    cells = math.prod(_options_listed(override) for override in parsed)
    if cells > _MOST_CELLS:
        raise PlanError(
            f"That comes to {cells:,} cells, and {_MOST_CELLS:,} is the most of one sweep. Sweep over less."
        )
    chosen = {o.key_or_group: _elements(o._value) for o in parsed}
    return [_normalise(override, groups, chosen) for override in parsed]


def parse(overrides: Sequence[str]) -> list[Override]:
    """Hydra's parser, with its error turned into a PlanError."""
    parser = OverridesParser.create()
    parsed = []
    for before, text, after in zip(("", *overrides), overrides, (*overrides[1:], ""), strict=False):
        if not isinstance(text, str):
            raise PlanError(f"{text!r} is no text: an override is a string such as 'packing=bfd'.")
        try:
            parsed.append(parser.parse_override(_one_value(text)))
        except HydraException as error:
            raise PlanError(_unparsable(text, before, after)) from error
    return parsed


def require_single(overrides: Sequence[str], advice: str) -> None:
    """Raise PlanError where a value lists several: a single run takes one. `advice` says what to do instead."""
    for override in parse(overrides):
        if override.is_sweep_override():
            raise PlanError(f"{override.input_line} lists several values, and a single run takes one. {advice}")


def _normalise(override: Override, groups: dict[str, list[str]], chosen: dict[str, list[str]]) -> str:
    key = override.key_or_group
    line = override.input_line or ""
    if override.is_delete() and not key.startswith("hydra"):
        raise PlanError(f"{line}: nothing can be taken out. Type {key}=… with the value that turns it off.")
    if override.package is not None and not key.startswith("hydra"):
        raise PlanError(f"{line}: an option stands under its group's own name. Type {key}=OPTION.")
    if key == "trainer.args":
        raise PlanError(f"{line}: type one argument at a time, as in trainer.args.weight_decay=0.1.")
    if override.type is OverrideType.CHANGE and key.startswith(_OPEN):
        return f"++{line}"
    swept = {group: names for group, names in chosen.items() if len(names) > 1}
    if override.type is OverrideType.CHANGE and _is_field_of(key, swept):
        # Hydra holds it to the group's default, which may have no such field, and to options that read none of it.
        _check_key(override, groups, chosen)
        return f"++{line}"
    if key in groups and override.package is None and override.value_type is not None:
        _check_each_names_one(override, groups[key])
        if isinstance(override._value, Glob) and not override._value.filter(groups[key]):
            raise PlanError(f"{line}: {key} has no such option. Its options: {', '.join(groups[key])}.")
        value: Any = _named(override._value)
        _check_options(key, _elements(value), groups)
        # Only what holds a boolean is written anew: Hydra's own text of a glob, say, is not an override any more.
        return line if value == override._value else f"{_PREFIX[override.type]}{key}={_text(value)}"
    _check_key(override, groups, chosen)
    return line


def _options_listed(override: Override) -> int:
    """How many cells a value makes of one. Raises PlanError for a range without end."""
    value = override._value
    if isinstance(value, RangeSweep):
        start, stop, step = (value.start or 0, value.stop, value.step)
        if not step or stop is None or not all(map(math.isfinite, (start, stop, step))):
            raise PlanError(f"{override.input_line}: a range has an end and a step. Type range(START,STOP,STEP).")
        return max(0, math.ceil((stop - start) / step))
    return len(value.list) if isinstance(value, ChoiceSweep) else 1


def _named(value: Any) -> Any:
    if isinstance(value, bool):
        return QuotedString(text=show(value), quote=Quote.single)
    if isinstance(value, ChoiceSweep):
        elements = [_named(element) for element in value.list]
        return ChoiceSweep(value.tags, elements, value.simple_form, value.shuffle)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, ChoiceSweep):
        return Override._get_value_element_as_str(value)
    listed = ",".join(Override._get_value_element_as_str(element) for element in value.list)
    if value.simple_form:
        return listed
    return f"shuffle({listed})" if value.shuffle else f"choice({listed})"


def _elements(value: Any) -> list[str]:
    """The options that a value names, empty where only Hydra can tell (ranges, globs, lists, null)."""
    values: Iterable[Any] = value.list if isinstance(value, ChoiceSweep) else [value]
    texts = [element.text if isinstance(element, QuotedString) else element for element in values]
    return [str(text) for text in texts if isinstance(text, str | int | float)]


def _check_each_names_one(override: Override, options: list[str]) -> None:
    key, value = override.key_or_group, override._value
    elements = value.list if isinstance(value, ChoiceSweep) else [value]
    if any(isinstance(element, list) for element in elements):
        # Hydra would merge the files of a list, and the cell would be a mixture that has no name.
        names = ",".join(dict.fromkeys(re.findall(r"[^\[\], '\"]+", _value_text(override))))
        raise PlanError(f"{override.input_line}: {key} takes one option; for several: -m {key}={names}.")
    if any(element is None or isinstance(element, dict) for element in elements):
        raise PlanError(f"{override.input_line}: {key} is one of its options: {', '.join(options)}.")


def _check_options(group: str, names: list[str], groups: Mapping[str, list[str]]) -> None:
    options = groups[group]
    for name in names:
        if options and name not in options and "${" not in name:
            instead = instead_of(group, name, groups)
            meant = f"Did you mean {instead}?" if instead else did_you_mean(name, options, before=f"{group}=")
            said = f"{group}={name}: {group} has no option {name}. {meant}".rstrip()
            raise PlanError(f"{said} Its options: {', '.join(options)}.")


def _check_key(override: Override, groups: dict[str, list[str]], chosen: dict[str, list[str]]) -> None:
    key = override.key_or_group
    root, _, leaf = key.split("@")[0].partition(".")
    field = leaf.partition(".")[0]
    made = field in _MADE or f"{root}.{field}" in _MADE_KEYS or (field == "args" and root != "trainer")
    if root in groups and leaf and made:
        raise PlanError(
            f"{override.input_line}: {root}.{field} belongs to the option itself. Type {root}=OPTION instead."
        )
    values = [name for name in primary() if name not in ("defaults", "hydra")]
    known = [*groups, *values]
    if root.split("/")[0] == "hydra":
        return
    if root in known:
        adds = override.type in (OverrideType.ADD, OverrideType.FORCE_ADD)
        # One cell of such a sweep, typed by itself: peft=none ++peft.r=4.
        is_field = override.type is OverrideType.FORCE_ADD and root in chosen and _is_field_of(key, groups)
        if adds and leaf and root in groups and not key.startswith(_OPEN) and not is_field:
            raise PlanError(
                f"{override.input_line}: {root} reads no field but its own. Type {root}.{leaf}=… without the +."
            )
        if root in values and isinstance(override._value, Sweep | str | int | float | bool | None.__class__):
            _check_leaf(key, root, override)
        return
    instead = instead_of_root(key, chosen, _MADE | _MADE_KEYS) or instead_of(key, _value_text(override), groups)
    meant = did_you_mean(root, known, "python -m memexp --help lists what there is.")
    hint = f"Type {instead}." if instead else meant
    raise PlanError(f"{override.input_line}: there is no {root}. {hint}")


def _is_field_of(key: str, options: Mapping[str, Sequence[str]]) -> bool:
    """Whether `key`, as `peft.r`, is a field of one of these options of its group: swept `peft=none,lora` has it."""
    group, _, field = key.partition(".")
    names = [name for name in options.get(group, ()) if (conf_dir() / group / f"{name}.yaml").is_file()]
    return bool(field) and any(field in option(group, name) for name in names)


def _check_leaf(key: str, root: str, override: Override) -> None:
    default = primary()[root]
    if isinstance(default, dict) and "." not in key:
        raise PlanError(
            f"{override.input_line}: {root} is a set of values. Type {root}.{next(iter(default))}=… instead."
        )
    leaf = key.partition(".")[2]
    if isinstance(default, dict) and leaf not in default:
        hint = did_you_mean(leaf, default, f"It has {', '.join(default)}.", before=f"{root}.")
        raise PlanError(f"{override.input_line}: {root} has no {leaf}. {hint}")


def _one_value(text: str) -> str:
    """The two keys whose commas are no list of options: neither is ever an axis."""
    key, _, value = text.partition("=")
    if key == "rerun" and value[:1] != "[":
        return f"{key}=[{value}]"
    # The shell eats the quotes of baseline='packing=none,offload=false'.
    return f"{key}='{value}'" if key == "baseline" and value[:1] not in ("'", '"', "") and value != "null" else text


def typed_twice(overrides: Sequence[str]) -> list[str]:
    """A line for each key that has several values, of which Hydra takes the last: a script's `"$@"` relies on that."""
    typed: dict[str, dict[str, None]] = {}
    for line in overrides:
        typed.setdefault(line.partition("=")[0].lstrip("+"), {})[line] = None
    several = {key: " ".join(lines) for key, lines in typed.items() if len(lines) > 1}
    return [f"{lines}: {key} is typed twice, and the last counts." for key, lines in several.items()]


def _value_text(override: Override) -> str:
    return (override.input_line or "").partition("=")[2]


def _unparsable(text: str, before: object, after: object) -> str:
    """`before` and `after` are its neighbours, empty where it has none: a shell takes words apart at their spaces."""
    if text.endswith(",") and "=" in text and after and "=" not in str(after):
        return f"{text} {after}: no space stands after a comma. Type {text}{after}."
    if "=" not in text and "=" in str(before):
        return f'{text!r} is no KEY=VALUE. Where it belongs to the value before it, quote the whole: "{before} {text}".'
    if "=" not in text:
        return f"{text!r} is no KEY=VALUE. Type for example packing=bfd, or python -m memexp --help."
    key, _, value = text.partition("=")
    return (
        f"{text!r} cannot be read. Quote a value that has spaces, commas, colons, brackets or equal signs: "
        f"\"{key}='{value}'\"."
    )
