"""Where Hydra looks for a sweeper: it takes only classes of this namespace. What it does is in memexp.frontier."""

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from memexp.frontier.sweeper import Frontier


class MemexpFrontier(Frontier):
    """The sweeper of `hydra/sweeper: memexp_frontier`."""


@dataclass
class MemexpFrontierConf:
    """`headroom` is the fraction of the card that stays free; `step` null is 1 for batch_size and 64 for max_length."""

    _target_: str = "hydra_plugins.memexp_frontier_sweeper.MemexpFrontier"
    axis: str = MISSING
    low: int = MISSING
    high: int = MISSING
    step: int | None = None
    headroom: float = 0.08
    params: dict[str, Any] = field(default_factory=dict)


ConfigStore.instance().store(group="hydra/sweeper", name="memexp_frontier", node=MemexpFrontierConf, provider="memexp")
