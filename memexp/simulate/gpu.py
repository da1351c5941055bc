"""`SimulatedGPU`: one card to run code on, and what it says afterwards."""

import contextlib
import functools
import pickle
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from memexp.simulate import backend
from memexp.simulate.allocator import AllocatorSettings, CachingAllocator, EventLog, EventTiming
from memexp.simulate.autocast import register_autocast
from memexp.simulate.cards import Card, card_named
from memexp.simulate.clock import Clock
from memexp.simulate.costs import LAUNCH_SECONDS
from memexp.simulate.coverage import Coverage
from memexp.simulate.cuda_names import cuda_means_the_card
from memexp.simulate.kernels import register_kernels
from memexp.simulate.late_streams import LateStreams
from memexp.simulate.memory import CATEGORIES, DeviceMemory
from memexp.simulate.ops import OpStream
from memexp.simulate.patches import patched
from memexp.simulate.roles import watch_roles
from memexp.simulate.tensors import device


@functools.cache
def prepare() -> None:
    """Make the simulated device known to this process; `SimulatedGPU` does it, and it cannot be undone.

    Autograd starts its threads at the first backward pass of a process, for the devices known by then. So a process
    that trains on the CPU first has to call this before. Raises RuntimeError where it is too late.
    """
    backend.register()
    register_kernels()
    register_autocast()
    probe = SimulatedGPU()
    backend.set_active(probe)
    try:
        torch.ones((), device=device(), requires_grad=True).backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise RuntimeError(
            "a backward pass ran in this process before the simulated GPU was made known, and autograd has no thread "
            "for it: call memexp.simulate.prepare() at the start, or simulate in a new process"
        ) from error
    finally:
        backend.set_active(None)


class SimulatedGPU:
    """A card by name (see `CARDS`), or a `Card` of your own. Use it as a context, once; read it inside or afterwards.

    Inside, models and batches are put on `gpu.device`, or on "cuda", which is the same; transformers, accelerate, TRL
    and PEFT choose it by themselves. `torch.cuda.is_available()` stays false where there is no other card, so that
    `"cuda" if torch.cuda.is_available() else "cpu"` trains on the host: a warning at the end says so. Tensors on the
    card say `device.type == "simgpu"`, and `is_cuda` is false.

    `alloc_conf` is what PYTORCH_ALLOC_CONF would say. `event_timing` bounds what `record_stream` costs: see
    `CachingAllocator`; with `bounds_reserved` the pessimistic one is followed beside it, see `late_reserved_bytes`.
    `log_events` keeps every allocation for the timeline of `dump_snapshot`. A float that the host reads is nan; the
    first is warned of, unless `warn_of_floats` is false.

    Training stops with `torch.OutOfMemoryError` where the card is full, and with `UnsupportedOperationError` at an op
    whose shapes nothing tells, and at what is not simulated: sparse and nested tensors, several cards. While it is
    active the process is not fit for other work: parts of torch and of the libraries are replaced (`patches`), and put
    back at the end. Figures are predictions; `coverage` says what they rest on.
    """

    def __init__(
        self,
        card: str | Card = "h100_80gb",
        *,
        alloc_conf: str = "",
        event_timing: EventTiming = "optimistic",
        bounds_reserved: bool = False,
        log_events: bool = True,
        warn_of_floats: bool = True,
    ) -> None:
        self.card = card if isinstance(card, Card) else card_named(card)
        self.capacity_bytes = self.card.memory_bytes - self.card.context_bytes
        self.clock = Clock(LAUNCH_SECONDS)
        self.coverage = Coverage(warn_of_floats)
        self._log = EventLog(clock=lambda: int(self.clock.elapsed_seconds * 1e6)) if log_events else None
        settings = AllocatorSettings.parse(alloc_conf)
        self.allocator = CachingAllocator(self.capacity_bytes, settings, event_timing=event_timing, log=self._log)
        late = LateStreams(self.capacity_bytes, settings) if bounds_reserved else None
        self.memory = DeviceMemory(self.allocator, late)
        self.ops = OpStream(self.card, self.memory, self.clock, self.coverage)
        self._stack = contextlib.ExitStack()
        self._used = False

    def __enter__(self) -> Self:
        if self._used:
            raise RuntimeError("a SimulatedGPU is used once; make a new one")
        prepare()
        backend.set_active(self)
        self._used = True
        self._stack.callback(backend.set_active, None)
        self._stack.callback(self.memory.close)
        self._stack.enter_context(cuda_means_the_card())
        self._stack.enter_context(patched(self))
        self._roles = self._stack.enter_context(watch_roles(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
        if kind is None and self._roles.has_seen_modules and not self.memory.has_been_used:
            warnings.warn(
                "a model ran on the host and nothing on the simulated GPU, whose figures are of no work: put the model "
                'and its batches on gpu.device or "cuda" (torch.cuda.is_available() is false in a simulation)',
                stacklevel=2,
            )

    @property
    def is_active(self) -> bool:
        """Whether its `with` is under way."""
        return backend.is_active(self)

    @property
    def device(self) -> torch.device:
        """The device of its tensors. It exists from the first `with` on."""
        backend.register()
        return device()

    def memory_allocated(self) -> int:
        """Bytes of blocks in use now, unsplit tails included, as `torch.cuda.memory_allocated()`."""
        return self.allocator.statistics.allocated_bytes.current

    def memory_reserved(self) -> int:
        """Bytes of segments that the allocator holds now, as `torch.cuda.memory_reserved()`."""
        return self.allocator.statistics.reserved_bytes.current

    def max_memory_allocated(self) -> int:
        """The highest `memory_allocated()` since the last reset."""
        return self.allocator.statistics.allocated_bytes.peak

    def max_memory_reserved(self) -> int:
        """The highest `memory_reserved()` since the last reset."""
        return self.allocator.statistics.reserved_bytes.peak

    def late_reserved_bytes(self) -> int | None:
        """`max_memory_reserved()` were each stream done as late as can be.

        None without `bounds_reserved`, and where memory would then not have been enough.
        """
        return None if self.memory.late is None else self.memory.late.peak_reserved_bytes

    def reset_peak_memory_stats(self) -> None:
        """Start every peak, and `peak_categories`, at what is there now."""
        self.memory.reset_peak()

    def memory_stats(self) -> dict[str, int]:
        """The counters that training code reads, under torch's names."""
        statistics = self.allocator.statistics
        gauges = {
            "allocated_bytes": statistics.allocated_bytes,
            "reserved_bytes": statistics.reserved_bytes,
            "active_bytes": statistics.active_bytes,
            "requested_bytes": statistics.requested_bytes,
        }
        stats = {f"{name}.all.current": gauge.current for name, gauge in gauges.items()}
        stats |= {f"{name}.all.peak": gauge.peak for name, gauge in gauges.items()}
        return stats | {"num_alloc_retries": statistics.num_alloc_retries, "num_ooms": statistics.num_ooms}

    @property
    def alloc_retries(self) -> int:
        """How often the whole cache had to be emptied to make room: each is a pause on a real card."""
        return self.allocator.statistics.num_alloc_retries

    @property
    def peak_categories(self) -> dict[str, int]:
        """What was on the card at the peak of allocated memory, in bytes: they add up to `max_memory_allocated()`."""
        return dict(zip(CATEGORIES, self.memory.at_peak, strict=True))

    @property
    def elapsed_seconds(self) -> float:
        """Virtual time until all that was issued so far is done."""
        return self.clock.elapsed_seconds

    @property
    def unknown_ops(self) -> dict[str, int]:
        """Ops whose memory is not modelled in full, and how often they ran."""
        return dict(self.coverage.unknown_ops)

    @property
    def rule_branches(self) -> dict[str, int]:
        """Branches that no value decided but a rule, and how often."""
        return dict(self.coverage.rule_branches)

    def synchronize(self) -> None:
        """Wait, in virtual time, for all streams."""
        self.clock.synchronize()
        self.allocator.synchronize()
        if self.memory.late is not None:
            self.memory.late.synchronize()

    def empty_cache(self) -> None:
        """As `torch.cuda.empty_cache()`."""
        self.clock.synchronize()
        self.allocator.empty_cache()
        if self.memory.late is not None:
            self.memory.late.empty_cache()

    def dump_snapshot(self, path: str | Path) -> None:
        """Write what PyTorch's memory viewer (pytorch.org/memory_viz) reads. Pickled, as torch's own snapshots are."""
        Path(path).write_bytes(pickle.dumps(self.snapshot()))

    def snapshot(self) -> dict[str, Any]:
        """As `torch.cuda.memory._snapshot()`, without stack frames."""
        return {
            "segments": self.allocator.segments(),
            "device_traces": [[] if self._log is None else self._log.device_trace()],
            "allocator_settings": {"expandable_segments": self.allocator.settings.expandable_segments},
        }
