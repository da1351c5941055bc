"""Whole TRL jobs of memexp's worker on the CPU and on the simulated GPU: the peak of each phase agrees.

The two count different things, so each is asked for what both know: bytes that tensors asked for, in the same code. On
the simulated side that is the allocator's requested bytes, without the scratch that only a GPU's kernels take, on the
branches that TRL takes off CUDA; those that it takes on CUDA have a test with their own formula below. LiveBytes, the
CPU's counter, is held against torch's profiler in its own tests.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from memexp.measure.memory import MemoryMeter
from memexp.measure.simulated import SimulatedCounter
from memexp.plan import load_sweep
from memexp.plan.plan import Plan
from memexp.run.meters import Meters
from memexp.run.worker import Job
from memexp.simulate import SimulatedGPU, patches, prepare

# TRL and PEFT still call it by its old name.
pytestmark = [
    pytest.mark.usefixtures("jobs_in_this_process", "without_scratch"),
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning"),
]
prepare()

VOCABULARY, WIDTH, BATCH, LENGTH = 4096, 64, 2, 128
SHORT = (
    "logger=none",
    "model=tiny",
    "data=lengths",
    "data.distribution=[90,128,40,150,128,128,60,20,300,75]",
    f"max_length={LENGTH}",
    f"batch_size={BATCH}",
    "steps=1",
    "unmeasured_steps=0",
    "attention=eager",
    "precision=fp32",
)
PHASES = {"load", "measured", "worst_case", "forward", "backward", "optimizer"}
CELLS = (
    "packing=none",
    "packing=bfd",
    "packing=bfd_split",
    "packing=wrapped",
    "padding_free=true max_length=null",
    "gradient_accumulation=2",
    "checkpointing=full",
    "precision=bf16",
    "precision=bf16_weights",
    # Eager attention has nothing that selective checkpointing keeps.
    "precision=bf16 attention=sdpa checkpointing=selective",
    "precision=bf16_weights attention=sdpa checkpointing=full packing=bfd",
    "peft=lora",
    "peft=lora precision=bf16 checkpointing=full packing=wrapped",
    "optimizer=adafactor",
)
SAMPLED = "max_length=null trainer.max_completion_length=8"
OTHER_TRAINERS = (
    "trainer=dpo",
    "trainer=reward",
    f"trainer=grpo trainer.num_generations=2 {SAMPLED}",
    f"trainer=rloo {SAMPLED}",
    "trainer=online_dpo trainer.max_completion_length=8",
)


class RequestedCounter(SimulatedCounter):
    """Bytes that tensors asked for, without what the allocator rounds up."""

    def allocated_bytes(self) -> int:
        return self._gpu.memory_stats()["requested_bytes.all.current"]

    def peak_allocated_bytes(self) -> int:
        return self._gpu.memory_stats()["requested_bytes.all.peak"]


@dataclass(frozen=True)
class Ran:
    """Peaks by phase, and what the formulas below need of the job."""

    peaks: dict[str, int]
    reserved_bytes: int
    parameters: int
    slots: int


class RequestedJob(Job):
    """A cell of the worker whose meters read requested bytes."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        super().__init__(plan, folder, "fresh")
        for part in self.device.around:
            if isinstance(part, SimulatedGPU):
                self.meters = Meters(MemoryMeter(RequestedCounter(part)), self.device.clock, self._on_step)


def ran(folder: Path, plan: Plan) -> Ran:
    cell = folder / "cells" / plan.id
    cell.mkdir(parents=True)
    job = RequestedJob(plan, cell)
    record = job.run()
    assert record.status == "ok", record.reason
    phases = {name: peaks["peak_allocated_bytes"] for name, peaks in record.memory.phases.items()}
    slots = max(count.slots for counts in job.meters.counts for count in counts)
    assert record.memory.peak_reserved_bytes is not None
    return Ran(phases, record.memory.peak_reserved_bytes, record.effective["parameters"], slots)


@pytest.fixture
def off_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL's fused loss as it is off CUDA, folded in torch: the same code on both sides."""
    kept = tuple(patch for patch in patches.PATCHES if not patch.module.startswith("trl."))
    monkeypatch.setattr(patches, "PATCHES", kept)


@pytest.fixture
def on_both(tmp_path: Path) -> Any:
    def run(*arguments: str) -> tuple[Ran, Ran]:
        cpu, simulate = load_sweep(*SHORT, "gpu=a100_80gb", "backend=cpu,simulate", *arguments)
        return ran(tmp_path, cpu), ran(tmp_path, simulate)

    return run


def batches_bytes(slots: int) -> int:
    """Ids, labels and positions of two batches: on the CPU the loader's batch is the trainer's, and lives as long."""
    return 2 * 3 * 8 * slots


@pytest.mark.usefixtures("off_cuda")
@pytest.mark.parametrize("cell", CELLS)
def test_every_phase_peaks_where_it_does_in_real_training(cell: str, on_both: Any) -> None:
    cpu, simulated = on_both(*cell.split())
    assert simulated.peaks.keys() == cpu.peaks.keys() >= PHASES
    for phase, peak in cpu.peaks.items():
        allowed = max(0.001 * peak, batches_bytes(cpu.slots))
        assert simulated.peaks[phase] == pytest.approx(peak, abs=min(allowed, 0.01 * peak)), phase
    # The CPU's is predicted from its own op stream: equal to one small segment of the allocator.
    assert simulated.reserved_bytes == pytest.approx(cpu.reserved_bytes, abs=2 << 20)


@pytest.mark.usefixtures("off_cuda")
@pytest.mark.parametrize("cell", OTHER_TRAINERS)
def test_the_other_trainers_peak_where_they_do_in_real_training(cell: str, on_both: Any) -> None:
    cpu, simulated = on_both(*cell.split())
    assert simulated.peaks.keys() == cpu.peaks.keys() >= PHASES
    assert ("generation" in cpu.peaks) == ("max_completion_length" in cell)
    for phase, peak in cpu.peaks.items():
        allowed = max(0.001 * peak, batches_bytes(cpu.slots))
        assert simulated.peaks[phase] == pytest.approx(peak, abs=min(allowed, 0.01 * peak)), phase


def test_the_cache_of_keys_and_values_grows_with_each_sampled_token(tmp_path: Path) -> None:
    # Prompts of three tokens, so that the last token and not the prompt sets the peak.
    cell = ("trainer=grpo", "max_length=null", "trainer.num_generations=2", "data.distribution=[6]")
    lengths = [f"trainer.max_completion_length={length}" for length in (8, 24)]
    peaks = [
        ran(tmp_path, load_sweep(*SHORT, "backend=simulate", *cell, length)[0]).peaks["generation"]
        for length in lengths
    ]
    # Two layers, keys and values, two heads of 16 in fp32, for two completions; while one layer's is made longer, its
    # old keys are there as well.
    growth = (24 - 8) * 2 * 2 * 2 * 2 * 16 * 4
    assert growth <= peaks[1] - peaks[0] <= 1.5 * growth


@pytest.mark.usefixtures("off_cuda")
@pytest.mark.parametrize(("precision", "itemsize"), [("fp32", 4), ("bf16_weights", 2)])
def test_adamw_takes_all_weights_at_once_on_a_gpu_and_one_by_one_on_a_cpu(
    precision: str, itemsize: int, on_both: Any
) -> None:
    """torch's AdamW chooses foreach where all is on a GPU: its square roots are one list as large as the weights. On
    the CPU it goes through them, and the largest, the embedding, sets the peak with two temporaries."""
    cpu, simulated = on_both("optimizer=adamw", f"precision={precision}")
    weights = cpu.parameters * itemsize
    assert simulated.peaks["optimizer"] == pytest.approx((4 + 1) * weights, rel=0.01)
    assert cpu.peaks["optimizer"] == pytest.approx(4 * weights + 2 * VOCABULARY * WIDTH * itemsize, rel=0.01)
    for phase in PHASES - {"optimizer"}:
        assert simulated.peaks[phase] == pytest.approx(cpu.peaks[phase], rel=0.001), phase


def test_the_fused_loss_saves_what_the_cpu_folds_in_torch(on_both: Any) -> None:
    """`_forward_tile` and `_backward_tile` of trl/kernels/chunked_logprob.py against the Triton kernels, in fp32.

    Both sides have the tile of logits. Forward, folding adds three of its size at once (`z`, `z - max`, its
    exponential) and a mask of bytes; backward seven (`y`, `z`, `log_p`, `p`, `grad`, a difference, its product) and a
    mask. The step's peak is at that tile on either side.
    """
    cpu, simulated = on_both("packing=wrapped")
    tile = BATCH * (LENGTH - 1) * VOCABULARY * 4
    forward, backward = (cpu.peaks[phase] - simulated.peaks[phase] for phase in ("forward", "backward"))
    assert forward == pytest.approx(3.25 * tile, rel=0.01)
    assert backward == pytest.approx(7.25 * tile, rel=0.01)


def test_sdpa_of_grouped_heads_in_fp32_keeps_the_scores_on_a_gpu(tmp_path: Path) -> None:
    """Neither flash (halves only) nor the memory-efficient kernel (no groups) takes them, so that torch composes the
    math kernel; the CPU has a flash kernel for fp32. Padded rows bring a mask, and with it repeated keys."""
    plans = load_sweep(*SHORT, "gpu=a100_80gb", "backend=simulate", "packing=wrapped", "attention=sdpa,eager")
    sdpa, eager = (ran(tmp_path, plan) for plan in plans)
    assert sdpa.peaks["forward"] == pytest.approx(eager.peaks["forward"], rel=0.002)
