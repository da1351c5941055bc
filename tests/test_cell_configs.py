"""Configs that are copied for other values are those that Hydra composes."""

from collections.abc import Iterator
from typing import Any

import pytest
from hydra import compose
from omegaconf import DictConfig, OmegaConf

from memexp.plan import conf
from memexp.plan.cell_configs import CellConfigs
from memexp.plan.compose import _hydra

FIRST = ["packing=bfd", "peft=lora", "peft.r=4", "seed=0", "max_length=64", "budget.tokens=null", "model.path=a/b",
         "++trainer.args.weight_decay=0.1"]  # fmt: skip
# What is typed in the place of the first's, and whether a copy will do.
OTHERS = {
    "other numbers, null, text and a reference": (
        {
            2: "peft.r=8",
            3: "seed=1",
            4: "max_length=null",
            5: "budget.tokens=1e3",
            6: "model.path=${seed}",
            7: "++trainer.args.weight_decay=true",
        },
        True,
    ),
    "text that holds a comma": ({6: "model.path='a, b'"}, True),
    "another option of a group": ({0: "packing=wrapped"}, False),
    "a mapping": ({5: "budget={steps: 3}"}, False),
    "a list": ({3: "rerun=[ok]"}, False),
    "a value that goes": ({3: "~seed"}, False),
    "a value that is new": ({6: "+model.config.x=1"}, False),
    "another key": ({3: "steps=3"}, False),
}


@pytest.fixture
def composed() -> Iterator[list[list[str]]]:
    """What was composed whole."""
    with _hydra(conf.conf_dir()):
        yield []


def configs(composed: list[list[str]]) -> CellConfigs:
    def load(overrides: list[str]) -> DictConfig:
        composed.append(overrides)
        return by_hydra(overrides)

    return CellConfigs(load, conf.groups())


def by_hydra(overrides: list[str]) -> DictConfig:
    return compose("config", overrides=overrides, return_hydra_config=True)


def whole(config: DictConfig) -> Any:
    return OmegaConf.to_container(config, resolve=False)


@pytest.mark.parametrize(("others", "copied"), OTHERS.values(), ids=OTHERS)
def test_a_config_for_other_values_is_the_one_that_hydra_composes(
    others: dict[int, str], copied: bool, composed: list[list[str]]
) -> None:
    cells = configs(composed)
    cells.of(FIRST)
    typed = [others.get(place, override) for place, override in enumerate(FIRST)]
    found = cells.of(typed)
    assert (len(composed) == 1) == copied
    if copied:
        assert whole(found) == whole(by_hydra(typed))
        assert OmegaConf.is_struct(found)


def test_a_key_that_is_typed_twice_is_left_to_hydra(composed: list[list[str]]) -> None:
    cells = configs(composed)
    assert cells.of(["seed=1", "seed=2"]).seed == 2
    assert cells.of(["seed=3", "seed=2"]).seed == 2
    assert len(composed) == 2


def test_values_alone_are_composed_once_and_a_copy_is_the_callers_own(composed: list[list[str]]) -> None:
    cells = configs(composed)
    for seed in range(3):
        config = cells.of(["packing=bfd", f"seed={seed}"])
        assert (config.seed, config.steps) == (seed, 5)
        config.steps = 99
    assert len(composed) == 1
