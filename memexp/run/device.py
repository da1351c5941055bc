"""What a backend brings to the worker: its counter, its clock, and what the record says of the device."""

import contextlib
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import torch

from memexp.measure.counters import Counter, CudaCounter
from memexp.measure.device import DeviceSampler, foreign_processes, gpu_facts
from memexp.measure.live_bytes import LiveBytes
from memexp.measure.speed import StepClock
from memexp.plan.plan import Plan

METERED_STEPS = "steps on the CPU take longer under the memory meter, the more ops the longer"


@dataclass
class Device:
    """A context manager around the whole job. Create it after the environment is set and before a model is built."""

    counter: Counter
    clock: StepClock
    sampler: DeviceSampler | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """The device of a plan's backend."""
        return cls._cuda() if plan.work.backend == "cuda" else cls._cpu(plan.work.threads)

    @classmethod
    def _cpu(cls, threads: int) -> Self:
        torch.set_num_threads(threads)
        live = LiveBytes()
        return cls(live, StepClock(live.synchronize), facts={"gpu": None, "driver": None}, notes=(METERED_STEPS,))

    @classmethod
    def _cuda(cls) -> Self:
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        # Before CUDA is in use here: in a container this process would look foreign to itself afterwards.
        foreign = foreign_processes(uuid)
        counter = CudaCounter(0)
        facts = gpu_facts(uuid) or {}
        return cls(
            counter,
            StepClock(counter.synchronize, lambda: torch.cuda.Event(enable_timing=True)),  # type: ignore[no-untyped-call]
            DeviceSampler(uuid),
            {
                "gpu": facts.get("name", torch.cuda.get_device_name(0)),
                "driver": facts.get("driver"),
                "foreign_processes": foreign,
            },
        )

    def __enter__(self) -> Self:
        for part in (self.sampler, self.counter):
            if isinstance(part, contextlib.AbstractContextManager):
                self._stack.enter_context(part)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
