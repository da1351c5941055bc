"""`memexp frontier batch_size=1:64 …`: a sweep with memexp's frontier sweeper, its axis and bounds typed in front."""

import re

from memexp.hydra_options import MULTIRUN
from memexp.plan.plan import PlanError

_AXIS = re.compile(r"(?P<axis>[a-z_]+)=(?P<low>\d+):(?P<high>\d+)(?::(?P<step>\d+))?")
USAGE = """usage: memexp frontier AXIS=LOW:HIGH[:STEP] [headroom=0.08] KEY=VALUE KEY=VALUE,VALUE …

For each combination, the largest batch_size or max_length that fits the card, by bisection:

  python -m memexp frontier batch_size=1:64 model=mistral_7b peft=lora gpu=rtx4090_24gb offload=true,false

Every probe is a cell of the sweep: sweep=NAME goes on with what is there. headroom is the fraction of the card that
stays free. Probes take steps=1 unmeasured_steps=2 unless you type others."""


def main(arguments: list[str]) -> int:
    """The exit code of the sweep. Raises PlanError for an axis or bounds that cannot be."""
    from memexp.cli import run

    if not arguments or {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0 if arguments else 2
    found = _AXIS.fullmatch(arguments[0])
    if not found:
        raise PlanError(
            f"frontier {arguments[0]}: first comes the axis with its bounds. Type memexp frontier batch_size=1:64 …"
        )
    bounds = [f"hydra.sweeper.{name}={value}" for name, value in found.groupdict().items() if value]
    rest = [argument for argument in arguments[1:] if argument not in MULTIRUN]
    return run(["-m", "hydra/sweeper=memexp_frontier", *bounds, *_short(rest)], typed=["frontier", *arguments])


def _short(arguments: list[str]) -> list[str]:
    """Few steps where none were asked for: from the third on, a step peaks where the one before did."""
    named = any(re.match(r"(unmeasured_)?steps=|budget\.", argument) for argument in arguments)
    renamed = [re.sub(r"^(--)?headroom=", "hydra.sweeper.headroom=", argument) for argument in arguments]
    return renamed if named else [*renamed, "steps=1", "unmeasured_steps=2"]
