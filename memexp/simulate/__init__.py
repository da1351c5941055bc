"""A GPU that is not there: any PyTorch training code runs on it, and it tells the memory and the time it would take.

    with memexp.simulate.SimulatedGPU("h100_80gb") as gpu:
        ...
    gpu.max_memory_allocated(), gpu.max_memory_reserved(), gpu.elapsed_seconds, gpu.dump_snapshot("snapshot.pickle")

Needs torch (2.13 is what it was written against; any build, no compiler) and not the rest of memexp. The allocator
alone, `memexp.simulate.allocator`, needs not even torch, which is why nothing is imported before it is asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memexp.simulate.cards import CARDS, Card
    from memexp.simulate.gpu import SimulatedGPU, prepare
    from memexp.simulate.shapes import UnsupportedOperationError

__all__ = ["CARDS", "Card", "SimulatedGPU", "UnsupportedOperationError", "prepare"]


_MODULES = {
    "CARDS": "cards",
    "Card": "cards",
    "SimulatedGPU": "gpu",
    "UnsupportedOperationError": "shapes",
    "prepare": "gpu",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
