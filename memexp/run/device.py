"""What a backend brings to the worker: where models are built, its counter, its clock, and its words in the record."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import torch

from memexp.measure.counters import Counter, CudaCounter
from memexp.measure.device import DeviceSampler, foreign_processes, gpu_facts
from memexp.measure.live_bytes import LiveBytes
from memexp.measure.speed import StepClock
from memexp.plan.plan import Plan
from memexp.results.record import Simulation

METERED_STEPS = "steps on the CPU take longer under the memory meter, the more ops the longer"
# What a simulated GPU says and nobody measured: dotted names of the record's fields.
PREDICTED = (
    "memory.load_peak_allocated_bytes",
    "memory.peak_allocated_bytes",
    "memory.peak_reserved_bytes",
    "memory.peak_phase",
    "memory.phases",
    "memory.peak_categories",
    "memory.worst_case_peak_allocated_bytes",
    "memory.alloc_retries",
    "memory.per_step",
    "memory.oom",
    "speed.step_seconds",
    "speed.median_step_seconds",
    "speed.real_tokens_per_second",
    "speed.loss_tokens_per_second",
    "speed.slot_tokens_per_second",
    "speed.samples_per_second",
    "speed.phases",
    "data.hours_per_epoch",
)


@dataclass
class Device:
    """A context manager around the whole job. Create it after the environment is set and before a model is built."""

    counter: Counter
    clock: StepClock
    build_on: str | None = None
    around: tuple[AbstractContextManager[Any], ...] = ()
    sampler: DeviceSampler | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    notes: Callable[[], tuple[str, ...]] = tuple
    predicted: tuple[str, ...] = ()
    simulation: Callable[[], Simulation | None] = lambda: None
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """The device of a plan's backend."""
        backends = {"cuda": cls._cuda, "simulate": cls._simulated, "cpu": cls._cpu}
        return backends[plan.work.backend](plan)

    @classmethod
    def _cpu(cls, plan: Plan) -> Self:
        torch.set_num_threads(plan.work.threads)
        live = LiveBytes()
        return cls(
            live, StepClock(live.synchronize), around=(live,), facts={"gpu": None}, notes=lambda: (METERED_STEPS,)
        )

    @classmethod
    def _cuda(cls, plan: Plan) -> Self:
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
        # Before CUDA is in use here: in a container this process would look foreign to itself afterwards.
        foreign = foreign_processes(uuid)
        counter = CudaCounter(0)
        facts = gpu_facts(uuid) or {}
        gpu, driver = facts.get("name", torch.cuda.get_device_name(0)), facts.get("driver")
        sampler = DeviceSampler(uuid)
        return cls(
            counter,
            StepClock(counter.synchronize, lambda: torch.cuda.Event(enable_timing=True)),  # type: ignore[no-untyped-call]
            build_on="cuda",
            around=(sampler,),
            sampler=sampler,
            facts={"gpu": gpu, "driver": driver, "foreign_processes": foreign},
        )

    @classmethod
    def _simulated(cls, plan: Plan) -> Self:
        from memexp.measure.simulated import SimulatedCounter
        from memexp.simulate.gpu import SimulatedGPU

        assert plan.work.gpu is not None
        conf = plan.work.env.get("PYTORCH_ALLOC_CONF") or ""
        gpu = SimulatedGPU(plan.work.gpu, alloc_conf=conf, log_events=False)
        counter = SimulatedCounter(gpu)

        def simulation() -> Simulation:
            coverage = gpu.coverage
            return Simulation(coverage.known_fraction, tuple(sorted(gpu.unknown_ops)), gpu.rule_branches)

        def notes() -> tuple[str, ...]:
            unknown = [name.removeprefix("aten::_") for name in gpu.unknown_ops]
            return (f"approximate: the scratch memory of {' and '.join(unknown)} is not known",) if unknown else ()

        return cls(
            counter,
            StepClock(counter.synchronize, now=lambda: gpu.elapsed_seconds),
            build_on=str(gpu.device),
            around=(gpu,),
            facts={"gpu": f"simulated {gpu.card.name}"},
            notes=notes,
            predicted=PREDICTED,
            simulation=simulation,
        )

    def building(self) -> AbstractContextManager[Any]:
        """Where tensors are made while a model is built; its trainer would move it there anyway, by way of the host."""
        return torch.device(self.build_on) if self.build_on is not None else contextlib.nullcontext()

    def training_begins(self) -> None:
        """What was on the card so far, building the model, is not what `peak_categories` is about."""
        forget = getattr(self.counter, "forget", None)
        if forget is not None:
            forget()

    def peak_categories(self) -> dict[str, int]:
        """What was on the card at the peak of training, empty where that is not known."""
        categories = getattr(self.counter, "peak_categories", None)
        return categories() if categories is not None else {}

    def __enter__(self) -> Self:
        for part in self.around:
            self._stack.enter_context(part)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
