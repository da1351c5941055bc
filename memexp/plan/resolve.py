"""A composed config as plain data: each `auto` replaced by the option it stands for, each interpolation by its value.

OmegaConf could do all of this and takes 25 ms a cell for it, on copies of copies; a sweep has hundreds of cells. So the
plain `${key}` is looked up here, and OmegaConf is asked for anything more than that (a resolver, text around it).
"""

import re
from typing import Any

from omegaconf import DictConfig, OmegaConf

from memexp.plan import conf
from memexp.plan.compose import user_errors
from memexp.plan.machine import Machine
from memexp.plan.plan import PlanError
from memexp.plan.values import select, show

_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")


def resolve(cfg: DictConfig, options: dict[str, Any], machine: Machine) -> dict[str, Any]:
    """The config without its hydra node. `options` (group to option) is updated where `auto` stood for another.

    Raises PlanError for a value that is missing or refers to nothing.
    """
    with user_errors():
        job = {str(key): _plain(value) for key, value in cfg.items_ex(resolve=False) if key != "hydra"}
    for group in conf.group_defaults():
        # Hydra merges the files of a list, and leaves such a group out of its choices.
        if group not in options and isinstance(job.get(group), dict):
            raise PlanError(
                f"{group}: a list under defaults names several of its options, and a cell takes one; for several: "
                f"-m {group}=OPTION,OPTION."
            )
    for group, name in options.items():
        # An experiment stands for keys of the other groups, and has none of its own.
        if name is not None and group != "experiment" and not isinstance(job.get(group), dict):
            raise PlanError(_in_place_of_an_option(group, job.get(group)))
    if options["backend"] == "auto":
        _stand_in(job, options, "backend", machine.backend)
    for group in [group for group, name in options.items() if name == "auto"]:
        _stand_in(job, options, group, job[group]["auto"][options["backend"]])
    resolved: dict[str, Any] = _resolved(job, job, "")
    return resolved


def _in_place_of_an_option(group: str, value: Any) -> str:
    """A config file that says `packing: bfd` among its values, where Hydra reads options in its defaults alone."""
    if isinstance(value, list):
        listed = ",".join(map(show, value))
        return (
            f"{group}: {show(value)} in a config file chooses no option. For several, write {group}: {listed} under "
            "hydra: sweeper: params:, and run the file with -m."
        )
    written = f'"{show(value)}"' if isinstance(value, bool | int | None) else value
    return (
        f"{group}: {show(value)} in a config file chooses no option. Under defaults, behind - config, write "
        f"- override /{group}: {written}."
    )


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value, resolve=False) if OmegaConf.is_config(value) else value


def _stand_in(job: dict[str, Any], options: dict[str, Any], group: str, name: str) -> None:
    given = {key: value for key, value in job[group].items() if key != "auto" and value is not None}
    job[group] = {**conf.option(group, name), **given}
    options[group] = name


def _resolved(value: Any, job: dict[str, Any], path: str) -> Any:
    if isinstance(value, dict):
        return {key: _resolved(item, job, f"{path}.{key}" if path else str(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, job, path) for item in value]
    if value == "???":
        raise PlanError(f"{path} has no value. Type {path}=…")
    if not isinstance(value, str) or "${" not in value:
        return value
    reference = _REFERENCE.fullmatch(value)
    found, target = select(job, reference[1]) if reference else (False, None)
    if found and target != value:
        return _resolved(target, job, path)
    with user_errors():
        return OmegaConf.to_container(OmegaConf.create({**job, "_": value}), resolve=True, throw_on_missing=False)["_"]  # type: ignore[index, call-overload]
