"""Where Hydra looks for a sweeper: it takes only classes of this namespace. What it does is in memexp.sweeper."""

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore

from memexp.sweeper import PlanningSweeper


class MemexpSweeper(PlanningSweeper):
    """The sweeper of `hydra/sweeper: memexp`."""


@dataclass
class MemexpSweeperConf:
    """`params` maps keys to what is swept, as in Hydra's own: {packing: "bfd,wrapped", offload: [true, false]}."""

    _target_: str = "hydra_plugins.memexp_sweeper.MemexpSweeper"
    params: dict[str, Any] = field(default_factory=dict)


ConfigStore.instance().store(group="hydra/sweeper", name="memexp", node=MemexpSweeperConf, provider="memexp")
