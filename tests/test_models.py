"""Models are built from their published figures: the number of parameters is that of the published model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from memexp.plan import PlanError, conf, load

# Counted by the hub from each model's own safetensors files; Qwen2.5-0.5B, Qwen3-1.7B and Llama-3.2-3B share their
# embedding with the output head, which counts once.
PUBLISHED = {
    "qwen2_5_0_5b": 494_032_768,
    "qwen3_1_7b": 1_720_574_976,
    "llama3_2_3b": 3_212_749_824,
    "mistral_7b": 7_248_023_552,
    "qwen2_5_7b": 7_615_616_512,
    "llama3_1_8b": 8_030_261_248,
}
# One stands for another, one is the user's.
NO_FIGURES = {"auto", "own"}


@pytest.fixture(scope="module")
def counted() -> dict[str, int]:
    """Parameters of every model on the meta device, counted in a process of its own: no test here needs torch."""
    code = """
import json, sys, torch, transformers
def count(model):
    config = transformers.AutoConfig.for_model(model["model_type"], **model["config"])
    with torch.device("meta"):
        return sum(p.numel() for p in transformers.AutoModelForCausalLM.from_config(config).parameters())
print(json.dumps({name: count(model) for name, model in json.load(sys.stdin).items()}))
"""
    models = {name: conf.option("model", name) for name in conf.groups()["model"] if name not in NO_FIGURES}
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(models), capture_output=True, text=True, check=True
    )
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_every_model_but_the_tiny_one_has_a_published_count() -> None:
    assert set(conf.groups()["model"]) - {*NO_FIGURES, "tiny"} == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_has_as_many_parameters_as_the_published_one(counted: dict[str, int], name: str) -> None:
    assert counted[name] == PUBLISHED[name]


def test_the_tiny_model_is_tiny(counted: dict[str, int]) -> None:
    assert counted["tiny"] < 1_000_000


def test_a_model_of_ones_own_is_named_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"model\.path=FOLDER"):
        load("backend=simulate", "model=own")
    plan = load("backend=simulate", "model=own", f"model.path={tmp_path}")
    assert (plan.work.model.weights, plan.work.model.path) == ("pretrained", str(tmp_path))
