"""One replacement in a library, as data."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memexp.simulate.gpu import SimulatedGPU


@dataclass(frozen=True)
class Patch:
    """`build(gpu, original)` gives what stands in `module` under `name` (dotted for an attribute of a class).

    `is_branch`: the library asks there whether the device is "cuda", and the answer is made that of a GPU. A patch that
    `creates` adds a name that this build of the library lacks.
    """

    module: str
    name: str
    build: Callable[["SimulatedGPU", Any], Any]
    reason: str
    read_against: str
    is_branch: bool = False
    creates: bool = False
