"""The configs of a sweep's cells: Hydra composes one for each choice of options, and it is copied for other values.

Hydra finds, parses and merges the options' files, and then sets the values that were typed, one after another. The last
part is all that differs between the cells of `seed=0,1,2` or `max_length=512,1024`, and takes a tenth of the time.
"""

import functools
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence

from hydra._internal.config_loader_impl import get_overrides_dirname
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

_MOST_KEPT = 32  # choices of options, so that the memory of a large sweep stays flat


class CellConfigs:
    """`load` composes one list of overrides as Hydra does; `groups` are the keys that choose a file."""

    def __init__(self, load: Callable[[list[str]], DictConfig], groups: Collection[str]) -> None:
        self._load, self._groups = load, groups
        self._composed: OrderedDict[tuple[str, ...], tuple[list[str], DictConfig]] = OrderedDict()

    def of(self, overrides: Sequence[str]) -> DictConfig:
        """What `load` would give, to be changed by the caller. Raises what `load` raises."""
        lines = list(overrides)
        parsed = [_parsed(line) for line in lines]
        choice = tuple(_name(each) if self._is_value(each) else str(each.input_line) for each in parsed)
        kept = self._composed.get(choice)
        if kept is None:
            config = self._load(lines)
            self._composed[choice] = (lines, config.copy())
            if len(self._composed) > _MOST_KEPT:
                self._composed.popitem(last=False)
            return config
        self._composed.move_to_end(choice)
        copied = self._with_values(kept[1].copy(), kept[0], parsed)
        return self._load(lines) if copied is None else copied

    def _is_value(self, override: Override) -> bool:
        """Whether it sets one plain value, which chooses no file and is nothing to merge."""
        key = override.key_or_group
        return (
            not (override.is_delete() or override.is_add() or override.is_sweep_override())
            and override.package is None
            and not (self._chooses(override) or override.is_hydra_override() or "_target_" in key)
            and isinstance(override.value(), str | int | float | bool | None)
        )

    def _chooses(self, override: Override) -> bool:
        return override.key_or_group in self._groups or "/" in override.key_or_group

    def _with_values(self, config: DictConfig, before: Sequence[str], parsed: Sequence[Override]) -> DictConfig | None:
        """The config with the values that are others than `before`; None where their order matters, or one is wrong."""
        keys = [override.key_or_group for override in parsed if not self._chooses(override)]
        for line, override in zip(before, parsed, strict=True):
            key = override.key_or_group
            if line == override.input_line:
                continue
            if sum(_overlap(key, other) for other in keys) > 1:  # it is one of them itself
                return None
            try:
                OmegaConf.update(config, key, override.value(), merge=True, force_add=override.is_force_add())
            except OmegaConfBaseException:
                return None  # Hydra's own message names the override
        _say_what_was_typed(config, [override for override in parsed if not override.is_hydra_override()])
        return config


def _say_what_was_typed(config: DictConfig, typed: Sequence[Override]) -> None:
    config.hydra.overrides.task = [override.input_line for override in typed]
    names = config.hydra.job.config.override_dirname
    config.hydra.job.override_dirname = get_overrides_dirname(
        overrides=list(typed), kv_sep=names.kv_sep, item_sep=names.item_sep, exclude_keys=names.exclude_keys
    )


def _name(override: Override) -> str:
    return f"{'++' if override.is_force_add() else ''}{override.key_or_group}"


def _overlap(key: str, other: str) -> bool:
    """Whether one sets what the other does, or a part of it: `budget` and `budget.steps`."""
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


@functools.lru_cache(4096)
def _parsed(line: str) -> Override:
    return OverridesParser.create().parse_override(line)
