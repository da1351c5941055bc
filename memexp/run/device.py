"""What a backend brings to the worker: where models are built, its counter, its clock, and its words in the record."""

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from memexp.measure.counters import Counter, CudaCounter, PeakContents
from memexp.measure.device import DeviceSampler, foreign_processes, gpu_facts
from memexp.measure.live_bytes import LiveBytes
from memexp.measure.speed import StepClock
from memexp.measure.trace import cuda_trace, kept_trace, traces_folder
from memexp.plan.plan import Plan
from memexp.results.format import bytes_text
from memexp.results.record import Simulation
from memexp.run.distributed import this_rank

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

# On the CPU: what a GPU's allocator would reserve for the tensors that are counted.
PREDICTED_ON_CPU = ("memory.peak_reserved_bytes",)


@dataclass
class Device:
    """A context manager around the whole job. Create it after the environment is set and before a model is built."""

    counter: Counter
    clock: StepClock
    build_on: str | None = None
    contents: PeakContents | None = None
    around: tuple[AbstractContextManager[Any], ...] = ()
    sampler: DeviceSampler | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    notes: Callable[[], tuple[str, ...]] = tuple
    predicted: tuple[str, ...] = ()
    simulation: Callable[[], Simulation | None] = lambda: None
    trace: Callable[[Path], AbstractContextManager[None]] | None = None
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """The device of a plan's backend."""
        backends = {"cuda": cls._cuda, "simulate": cls._simulated, "cpu": cls._cpu}
        device = backends[plan.work.backend](plan)
        if (folder := traces_folder()) is not None and device.trace is not None:
            device.around = (*device.around, device.trace(folder / f"{plan.id}.json.gz"))
        return device

    @classmethod
    def _cpu(cls, plan: Plan) -> Self:
        torch.set_num_threads(plan.work.threads)
        live = LiveBytes(alloc_conf=plan.work.env.get("PYTORCH_ALLOC_CONF") or "")
        return cls(
            live,
            StepClock(live.synchronize),
            around=(live,),
            facts={"gpu": None},
            notes=lambda: (METERED_STEPS,),
            predicted=PREDICTED_ON_CPU,
        )

    @classmethod
    def _cuda(cls, plan: Plan) -> Self:
        index = this_rank()
        torch.cuda.set_device(index)
        uuid = f"GPU-{torch.cuda.get_device_properties(index).uuid}"
        # Before CUDA is in use here: in a container this process would look foreign to itself afterwards.
        foreign = foreign_processes(uuid)
        counter = CudaCounter(index)
        facts = gpu_facts(uuid) or {}
        gpu, driver = facts.get("name", torch.cuda.get_device_name(index)), facts.get("driver")
        sampler = DeviceSampler(uuid)
        return cls(
            counter,
            StepClock(counter.synchronize, lambda: torch.cuda.Event(enable_timing=True)),  # type: ignore[no-untyped-call]
            build_on=f"cuda:{index}",
            around=(sampler,),
            sampler=sampler,
            facts={"gpu": gpu, "driver": driver, "foreign_processes": foreign},
            trace=cuda_trace,
        )

    @classmethod
    def _simulated(cls, plan: Plan) -> Self:
        from memexp.measure.simulated import SimulatedCounter
        from memexp.simulate.gpu import SimulatedGPU

        assert plan.work.gpu is not None
        torch.set_num_threads(plan.work.threads)  # small integers are all that is computed; more would be in the way
        conf = plan.work.env.get("PYTORCH_ALLOC_CONF") or ""
        offloads, traced = bool(plan.work.trainer.args.get("activation_offloading")), traces_folder() is not None
        gpu = SimulatedGPU(
            plan.work.gpu, alloc_conf=conf, bounds_reserved=offloads, log_events=traced, warn_of_floats=False
        )
        counter = SimulatedCounter(gpu)

        def simulation() -> Simulation:
            coverage = gpu.coverage
            at_most = counter.late_reserved_bytes
            return Simulation(coverage.known_fraction, tuple(sorted(gpu.unknown_ops)), gpu.rule_branches, at_most)

        def notes() -> tuple[str, ...]:
            unknown = [name.removeprefix("aten::_") for name in gpu.unknown_ops]
            said = (
                [f"approximate: the scratch memory of {' and '.join(unknown)} is not known in full"] if unknown else []
            )
            if counter.streams_matter:
                at_most = bytes_text(counter.late_reserved_bytes or 0)
                said.append(f"up to {at_most} reserved where copies to the host end late")
            return tuple(said)

        return cls(
            counter,
            StepClock(counter.synchronize, now=lambda: gpu.elapsed_seconds),
            build_on=str(gpu.device),
            contents=counter,
            around=(gpu,),
            facts={"gpu": f"simulated {gpu.card.name}"},
            notes=notes,
            predicted=PREDICTED,
            simulation=simulation,
            trace=lambda path: kept_trace(path, gpu.snapshot),
        )

    def building(self) -> AbstractContextManager[Any]:
        """Where tensors are made while a model is built; its trainer would move it there anyway, by way of the host."""
        return torch.device(self.build_on) if self.build_on is not None else contextlib.nullcontext()

    def training_begins(self) -> None:
        """What was on the card so far, building the model, is not what `peak_categories` is about."""
        if self.contents is not None:
            self.contents.forget()

    def peak_categories(self) -> dict[str, int]:
        """What was on the card at the peak of training, empty where that is not known."""
        return {} if self.contents is None else self.contents.peak_categories()

    def __enter__(self) -> Self:
        for part in self.around:
            self._stack.enter_context(part)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
