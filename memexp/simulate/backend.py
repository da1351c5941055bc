"""The device type `simgpu` as torch knows it: PrivateUse1 with Python guards, and `torch.simgpu`, its device module.

Registering cannot be undone, so it is done once for a process, by the first simulation; `torch.simgpu` then answers for
whichever simulation is active. Read against torch 2.13 (`torch.utils.backend_registration`).
"""

import contextlib
import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _DummyPrivateUse1Hook,
    _setup_privateuseone_for_python_backend,
)

from memexp.simulate import clock as clocks
from memexp.simulate.tensors import DEVICE_TYPE

if TYPE_CHECKING:
    from memexp.simulate.gpu import SimulatedGPU

_active: "SimulatedGPU | None" = None


def active_gpu() -> "SimulatedGPU":
    """The simulation that runs now. Raises RuntimeError outside of one."""
    if _active is None:
        raise RuntimeError(
            "no simulated GPU is active: what is on its device can be used inside `with SimulatedGPU(…)` alone; "
            "its figures can be read afterwards"
        )
    return _active


def is_active(gpu: "SimulatedGPU") -> bool:
    return _active is gpu


def set_active(gpu: "SimulatedGPU | None") -> None:
    global _active
    if gpu is not None and _active is not None:
        raise RuntimeError(
            f"a simulated GPU ({_active.card.name}) is active already: there can be one at a time in a process, so "
            "leave its `with` first"
        )
    _active = gpu


@functools.cache
def register() -> None:
    """Make the device known to torch, for the rest of the process."""
    _setup_privateuseone_for_python_backend(DEVICE_TYPE, backend_module=_DeviceModule(), hook=_Hook())


class _Hook(_DummyPrivateUse1Hook):
    def is_available(self) -> bool:
        return _active is not None


class _Stream(clocks.Stream):
    """On the clock of the active simulation."""

    def __init__(self, device: Any = None, priority: int = 0, *, stream_id: int | None = None, **_: Any) -> None:
        super().__init__(device, priority, clock=active_gpu().clock, stream_id=stream_id)


class _Event(clocks.Event):
    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__(clock=active_gpu().clock)


class _DeviceModule(_DummyBackendModule):
    """What `torch.cuda` offers that training code asks for."""

    Stream = _Stream
    Event = _Event

    def is_available(self) -> bool:
        return _active is not None

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return including_emulation or active_gpu().card.capability >= (8, 0)

    def set_device(self, *_: Any) -> None: ...

    def device(self, *_: Any) -> Any:
        return contextlib.nullcontext()

    def current_stream(self, *_: Any) -> clocks.Stream:
        return _Stream(stream_id=active_gpu().clock.current)

    def default_stream(self, *_: Any) -> clocks.Stream:
        return _Stream(stream_id=0)

    def set_stream(self, stream: clocks.Stream) -> None:
        active_gpu().clock.current = stream.stream_id

    @contextlib.contextmanager
    def stream(self, stream: clocks.Stream | None) -> Iterator[None]:
        clock = active_gpu().clock
        before = clock.current
        clock.current = before if stream is None else stream.stream_id
        try:
            yield
        finally:
            clock.current = before

    def synchronize(self, *_: Any) -> None:
        active_gpu().synchronize()

    def empty_cache(self) -> None:
        active_gpu().empty_cache()

    def empty_host_cache(self) -> None: ...

    def ipc_collect(self) -> None: ...

    def memory_allocated(self, *_: Any) -> int:
        return active_gpu().memory_allocated()

    def memory_reserved(self, *_: Any) -> int:
        return active_gpu().memory_reserved()

    def max_memory_allocated(self, *_: Any) -> int:
        return active_gpu().max_memory_allocated()

    def max_memory_reserved(self, *_: Any) -> int:
        return active_gpu().max_memory_reserved()

    def reset_peak_memory_stats(self, *_: Any) -> None:
        active_gpu().reset_peak_memory_stats()

    def reset_accumulated_memory_stats(self, *_: Any) -> None: ...

    def memory_stats(self, *_: Any) -> dict[str, int]:
        return active_gpu().memory_stats()

    def memory_summary(self, *_: Any, **__: Any) -> str:
        return "\n".join(f"{name:<30}{value:>20,}" for name, value in self.memory_stats().items())

    def memory_snapshot(self) -> list[dict[str, Any]]:
        return active_gpu().allocator.segments()

    def mem_get_info(self, *_: Any) -> tuple[int, int]:
        gpu = active_gpu()
        return gpu.capacity_bytes - gpu.memory_reserved(), gpu.card.memory_bytes

    get_memory_info = mem_get_info

    def get_device_name(self, *_: Any) -> str:
        return active_gpu().card.name

    def get_device_capability(self, *_: Any) -> tuple[int, int]:
        return active_gpu().card.capability

    def get_device_properties(self, *_: Any) -> SimpleNamespace:
        card = active_gpu().card
        return SimpleNamespace(
            name=card.name,
            major=card.capability[0],
            minor=card.capability[1],
            total_memory=card.memory_bytes,
            multi_processor_count=card.multiprocessors,
        )

    def get_rng_state(self, *_: Any) -> torch.Tensor:
        return torch.zeros(
            16, dtype=torch.uint8
        )  # a seed and an offset, as CUDA has it; no random number is ever drawn

    def set_rng_state(self, *_: Any) -> None: ...

    def get_rng_state_all(self) -> list[torch.Tensor]:
        return [self.get_rng_state()]

    def set_rng_state_all(self, *_: Any) -> None: ...

    def manual_seed(self, seed: int) -> None: ...

    def initial_seed(self) -> int:
        return 0
