"""Whoever writes "cuda" while a simulation runs means its card.

`torch.device("cuda")` itself stays what it is, a plain value of C++: it is read as the card where a tensor is made or
moved. What C++ makes on "cuda" comes to the few ops below, whose CUDA kernels are replaced for so long; the rest is in
`patches.of_cuda`. Tensors that are there say "simgpu" of themselves, and `is_cuda` is false.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from memexp.simulate.shapes import UnsupportedOperationError
from memexp.simulate.tensors import DEVICE_TYPE
from memexp.simulate.tensors import device as card_device

# All that makes memory on a device without a tensor of that device: every other factory is composed of these.
_FACTORIES = ("empty.memory_format", "empty_strided", "tril_indices", "triu_indices")


def on_the_card(named: Any) -> Any:
    """The simulated device where `named` is "cuda", "cuda:0" or such a device, else `named` as it is.

    Raises UnsupportedOperationError for another card than the first, under either name.
    """
    if isinstance(named, str):
        if named.partition(":")[0] != "cuda":
            return named
        named = torch.device(named)
    if not isinstance(named, torch.device) or named.type not in ("cuda", DEVICE_TYPE):
        return named
    if named.index not in (None, 0):
        raise UnsupportedOperationError(f'"{named}" cannot be simulated: there is one card, "cuda:0"')
    return card_device()


@contextlib.contextmanager
def cuda_means_the_card() -> Iterator[None]:
    """Inside, torch's own factories of "cuda" make simulated tensors."""
    scoped: Any = torch.library._scoped_library
    with scoped("aten", "IMPL", "CUDA") as library:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a build that has CUDA says that its kernels are replaced
            for name in _FACTORIES:
                packet, _, overload = name.partition(".")
                library.impl(name, _redirected(getattr(getattr(torch.ops.aten, packet), overload or "default")))
        yield


def _redirected(factory: Any) -> Callable[..., torch.Tensor]:
    def make(*args: Any, device: torch.device, **kwargs: Any) -> torch.Tensor:
        made: torch.Tensor = factory(*args, device=on_the_card(device), **kwargs)
        return made

    return make
