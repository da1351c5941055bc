"""The Plan: plain frozen data, all that enters a worker. No torch, no Hydra.

`Plan.work` is what will run, and `Plan.id` is a hash of it alone: where the results land, how the sweep is named and
how the process is started do not change the id, so that the same job is the same cell wherever it is met.
"""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from memexp.frozen import Frozen


class PlanError(ValueError):
    """What was typed cannot be planned at all. One line that says what, why not, and what to type instead."""


@dataclass(frozen=True)
class Refusal(Frozen):
    """Why a combination cannot run. `kind` is one of `memexp.results.record.REASON_KINDS`.

    Where something is missing, `missing` names it, `a GPU` or a package, and `remedy` says how to get that package.
    """

    kind: str
    reason: str
    missing: str | None = None
    remedy: str | None = None


@dataclass(frozen=True)
class Technique(Frozen):
    """One option of a technique's group, as its file in conf/ describes it.

    `confirm` is compared with what the built trainer really uses; a difference means that TRL fell back.
    """

    group: str
    option: str
    is_off: bool = False
    trainers: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    confirm: dict[str, Any] = field(default_factory=dict)
    same_loss: bool = False


@dataclass(frozen=True)
class Trainer(Frozen):
    """`args` are keyword arguments of `config_class`, complete but for the output folder and the step count.

    `rows` is what it trains on: documents, pairs (prompt, chosen, rejected) or prompts. `task` is PEFT's name for what
    the model is for, CAUSAL_LM or SEQ_CLS. `reward` is the dotted name of a function, for a trainer that samples.
    """

    name: str
    config_class: str
    trainer_class: str
    args: dict[str, Any]
    rows: str = "documents"
    task: str = "CAUSAL_LM"
    reward: str | None = None


@dataclass(frozen=True)
class Model(Frozen):
    """`weights` is random (built from `model_type` and `config`) or pretrained (loaded from `path`)."""

    weights: str
    path: str | None
    revision: str | None
    trust_remote_code: bool
    model_type: str
    config: dict[str, Any]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Budget(Frozen):
    """How long to train. At most one of tokens, epochs and steps is set, and it counts unmeasured steps too."""

    measured_steps: int
    unmeasured_steps: int
    tokens: int | None = None
    epochs: float | None = None
    steps: int | None = None


@dataclass(frozen=True)
class Work(Frozen):
    """What will run. A field added here changes every id, so nothing that does not change the run belongs here."""

    backend: str
    gpu: str | None
    processes: int
    threads: int
    seed: int
    trainer: Trainer
    model: Model
    data: dict[str, Any]
    peft: dict[str, Any] | None
    env: dict[str, str | None]
    budget: Budget

    @property
    def needs_hub(self) -> bool:
        """Whether a cell may ask the hub for something: a name that is no local path, or a kernel."""
        # A local path is absolute by now (memexp.plan.make).
        model = self.model.weights == "pretrained" and not str(self.model.path).startswith("/")
        return model or self.data["kind"] == "hub" or "/" in str(self.model.kwargs.get("attn_implementation", ""))

    def id(self) -> str:
        """16 hexadecimal digits of SHA-256, the same on every machine and in every process."""
        return work_id(self.to_dict())


def work_id(work: dict[str, Any]) -> str:
    """`Work.id` of work as it is written, of whatever version: fields that came or went since do not change it."""
    canonical = json.dumps(work, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Plan(Frozen):
    """One cell of a sweep. `choices` holds every axis as resolved; `flags` (a config file) and `overrides` are what to
    type to run it again.

    `name` is what a person calls the cell, its swept axes: `packing=bfd offload=false`.
    """

    id: str
    work: Work
    choices: dict[str, Any]
    techniques: tuple[Technique, ...] = ()
    overrides: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    name: str = ""
    isolation: str = "fresh"
    timeout_seconds: float | None = None
    refusal: Refusal | None = None
    notes: tuple[str, ...] = ()
    schema_version: int = 1
