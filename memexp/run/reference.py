"""The reference model of DPO, GRPO and RLOO where there is nothing to load it from.

TRL loads it by the name of the policy. Random weights have no name, and a simulated GPU loads nothing: there it is
built as the policy was, from the same seed, which gives the same weights.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from memexp.plan.plan import Plan

_LOADER = "create_model_from_path"  # trl 1.16, a name in the module of each trainer that loads a reference


@contextmanager
def reference_built_alike(plan: Plan, trainer: Any, build: Callable[[], Any]) -> Iterator[None]:
    """While `trainer`, TRL's class, makes its reference: let it call `build` where it would load one."""
    module: Any = sys.modules[trainer.__module__]
    loader = getattr(module, _LOADER, None)
    if loader is None or (plan.work.model.weights == "pretrained" and plan.work.backend != "simulate"):
        yield
        return
    setattr(module, _LOADER, lambda *_, **__: build())
    try:
        yield
    finally:
        setattr(module, _LOADER, loader)
