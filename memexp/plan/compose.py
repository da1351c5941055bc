"""Compose conf/ with overrides into DictConfigs, and turn Hydra's errors into one line of the user's words."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from memexp.plan.conf import conf_dir, groups, option
from memexp.plan.plan import PlanError
from memexp.plan.suggest import did_you_mean
from memexp.plan.unknown_key import instead_of_trainer

BARE_BOOLEAN = 'A defaults list names an option by a bare true or false. Quote it: - override offload: "true".'


def compose_cells(grid: Sequence[Sequence[str]]) -> list[DictConfig]:
    """One config a list of overrides, the hydra node included. Raises PlanError."""
    with _hydra(conf_dir()), user_errors():
        return [compose("config", overrides=list(overrides), return_hydra_config=True) for overrides in grid]


def grid(overrides: Sequence[str]) -> list[list[str]]:
    """Every combination of the values listed, in the order that Hydra's own sweeper takes them (last axis fastest)."""
    with _hydra(conf_dir()), user_errors():
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        batches = BasicSweeper.split_arguments(parser.parse_overrides(list(overrides)), None)
    return [list(cell) for batch in batches for cell in batch]


@contextmanager
def _hydra(folder: Path) -> Iterator[None]:
    # A caller may have Hydra initialised for something else: leave that as it was.
    before = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(config_dir=str(folder), version_base="1.3", job_name="memexp"):
            yield
    finally:
        GlobalHydra.instance().hydra = before


@contextmanager
def user_errors() -> Iterator[None]:
    """Turn what Hydra and OmegaConf raise into a PlanError of one line."""
    try:
        yield
    except PlanError:
        raise
    except (HydraException, OmegaConfBaseException) as error:
        raise PlanError(explain(error)) from error
    except ValueError as error:
        # hydra 1.3, config_repository: a plain ValueError for `- override offload: true`, and for a list that is none.
        if "Unsupported item value in defaults" in str(error):
            raise PlanError(BARE_BOOLEAN) from error
        if "Invalid defaults list" not in str(error):
            raise
        raise PlanError(f"{error}.") from error
    except RecursionError as error:
        raise PlanError("A config holds itself, or is nested deeper than can be read.") from error
    except yaml.reader.ReaderError as error:
        raise PlanError(f"{error.name} is no text, and so no YAML: {error.reason}.") from error
    except yaml.MarkedYAMLError as error:
        where = (
            f"{error.problem_mark.name}, line {error.problem_mark.line + 1}" if error.problem_mark else "A config file"
        )
        raise PlanError(f"{where} is no YAML: {error.problem}.") from error


def explain(error: BaseException) -> str:
    """One line for an error of Hydra's or OmegaConf's: what it says, without its layout and its search path."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    text = str(cause) or str(error)
    full_key = getattr(cause, "full_key", None)
    if isinstance(cause, MissingMandatoryValue) and full_key:
        return f"{full_key} has no value. Type {full_key}=…"
    unknown = re.search(r"Key '([^']+)' is not in struct\s+full_key: (\S+)", text)
    if unknown:
        return _unknown_key(unknown[2], unknown[1], cause)
    if "Config group override must be a string or a list" in text:
        return BARE_BOOLEAN
    if "Cannot merge DictConfig with ListConfig" in text:
        where = text.partition(":")[0].replace("In ", "")
        return (
            f"{where}: a list stands there for a group, as in packing: [none, bfd]. For several options, write "
            "packing: none,bfd under hydra: sweeper: params:, and run the file with -m."
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    noise = r"(Config search path|Search path|provider=|full_key|object_type)"
    kept = [line for line in lines if not re.match(noise, line)]
    return " ".join(kept[:3]).removesuffix(".") + "."


def _unknown_key(full_key: str, key: str, cause: BaseException) -> str:
    parent = getattr(cause, "parent_node", None)
    names = [str(name) for name in parent] if isinstance(parent, DictConfig) else []
    path = full_key.rpartition(".")[0]
    if path == "trainer" and isinstance(parent, DictConfig):
        fields = OmegaConf.to_container(parent, resolve=False)
        assert isinstance(fields, dict)
        instead = instead_of_trainer(key, {str(name): value for name, value in fields.items()})
        if instead:
            return f"{full_key}: {key} is an argument of TRL's. Type {instead}."
    if meant := did_you_mean(key, names, before=f"{path}." if path else ""):
        return f"{full_key}: there is no {key} here. {meant}"
    group = path.partition(".")[0]
    having = [f"{group}={name}" for name in groups().get(group, []) if key in option(group, name)]
    advice = f" {' and '.join(having)} {'have' if len(having) > 1 else 'has'} it." if having and path == group else ""
    return f"{full_key}: the option chosen has no {key}.{advice}"
