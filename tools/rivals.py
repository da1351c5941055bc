"""`make rivals`: what other tools say of the same jobs, run here, beside this one's prediction and what was measured.

Rivals: accelerate's `estimate-memory` (its Python functions on the same configuration), and torch's `MemTracker` under
fake tensors, which needs neither weights nor a GPU. FakeGPU is in no package index, so that it is not among them. What
each leaves out stands below the table. No figure is written down here but the published ones.
"""

import json
import tempfile
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate.commands.estimate import estimate_training_usage
from accelerate.utils import calculate_maximum_sizes
from peft import LoraConfig, get_peft_model
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.profiler import ProfilerActivity, profile

from memexp.measure.live_bytes import LiveBytes
from memexp.plan import load
from memexp.simulate import SimulatedGPU, prepare
from tools.rebuilt import LENGTH, MISTRAL_7B, loss_of_transformers_4_48

GIB, MIB = 1 << 30, 1 << 20
LEFT_OUT = """
- accelerate estimate-memory: activations, logits, batch and length; LoRA; the optimizer's dtype and temporaries. Its
  figure is the largest of weights, gradients and optimizer states, not their sum.
- MemTracker: the allocator (no reserved; blocks are not rounded off a GPU), workspaces and scratch of kernels; kernels
  are those of the fake device, a CPU, so that attention is another; autograd adds out of place under any dispatch mode.
- memexp: what `simulation.unknown_ops` names, and the CUDA context, which is no allocator's.""".strip()


@dataclass(frozen=True)
class Job:
    """One training step of plain torch; `build` makes the model on the default device, in `dtype`."""

    name: str
    config: Any
    dtype: torch.dtype
    batch: int
    length: int
    checkpointed: bool = False
    lora: bool = False
    measured_bytes: int | None = None
    on_cpu: bool = False
    card: str = "a100_80gb"

    def build(self) -> Any:
        model = transformers.AutoModelForCausalLM.from_config(self.config, dtype=self.dtype)
        model.config.use_cache = False
        if self.checkpointed:
            model.activation_checkpointing_enable()
        if self.lora:
            model.enable_input_require_grads()
            projections = ["q_proj", "k_proj", "v_proj", "o_proj"]
            lora = LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=16, lora_dropout=0.1, target_modules=projections)
            get_peft_model(model, lora)  # puts the adapters into the model itself
        return model.train()


def main() -> None:
    prepare()
    print("| job | measured | memexp | torch's MemTracker | accelerate estimate-memory |\n|---|--:|--:|--:|--:|")
    for job in _jobs():
        measured = profiled(job) if job.on_cpu else job.measured_bytes
        figures = [_text(figure, measured) for figure in (measured, ours(job))]
        try:
            figures.append(_text(tracked(job), measured))
        except RuntimeError as error:
            figures.append(f"fails: {error}")
        figures.append(_text(estimated(job), measured))
        print(f"| {job.name} | {' | '.join(figures)} |", flush=True)
    print(f"\n{LEFT_OUT}")


def _jobs() -> list[Job]:
    """Published bytes: scripts/benchmarks/refs/a100_80gb.csv of fms-acceleration."""
    qwen = _config("qwen2_5_0_5b")
    full, lora = 72_434_837_504, 26_704_571_904
    bf16, fp32 = torch.bfloat16, torch.float32
    return [
        Job("Mistral-7B, all weights, batch 4 of 4,096", MISTRAL_7B, bf16, 4, LENGTH, True, False, full),
        Job("Mistral-7B, LoRA r16, batch 4 of 4,096", MISTRAL_7B, bf16, 4, LENGTH, True, True, lora),
        Job("Qwen2.5-0.5B, all weights, batch 4 of 1,024", qwen, fp32, 4, 1024),
        Job("tiny, all weights, batch 4 of 128, measured on the CPU", _config("tiny"), fp32, 4, 128, on_cpu=True),
    ]


def ours(job: Job) -> int:
    """The peak of allocated bytes on the simulated card; of a job on the CPU, as `backend=cpu` counts it."""
    if job.on_cpu:
        with LiveBytes() as counter:
            _train(job.build(), job, torch.device("cpu"))
        return counter.peak_allocated_bytes()
    with SimulatedGPU(job.card) as gpu:
        with torch.device(gpu.device):
            model = job.build()
        _train(model, job, gpu.device)
        return gpu.max_memory_allocated()


def tracked(job: Job) -> int:
    """MemTracker's total, over two steps of fake tensors on the CPU."""
    with torch.device("meta"):
        model = job.build()
    with FakeTensorMode():
        _replace_by_empty(model)
        tracker = MemTracker()
        with tracker:
            _train(model, job, torch.device("cpu"), tracker)
        (of_kinds,) = tracker.get_tracker_snapshot("peak").values()
    return int(of_kinds["Total"])


def estimated(job: Job) -> int:
    """As `accelerate estimate-memory` computes its column of training with Adam, from the model on no device."""
    with torch.device("meta"):
        whole = replace(job, lora=False, dtype=torch.float32).build()
    nbytes, _ = calculate_maximum_sizes(whole)
    return int(max(estimate_training_usage(nbytes, str(job.dtype).removeprefix("torch.")).values()))


def profiled(job: Job) -> int:
    """The truth on the CPU: the running sum of the allocations and frees that torch's profiler saw."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        _train(job.build(), job, torch.device("cpu"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = json.loads(path.read_text())["traceEvents"]
    events = sorted((event["ts"], event["args"]["Bytes"]) for event in trace if event.get("name") == "[memory]")
    held: list[int] = list(accumulate(nbytes for _, nbytes in events))
    return max(held)


def _train(model: Any, job: Job, device: torch.device, tracker: MemTracker | None = None) -> None:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], foreach=True)
    ids = torch.zeros(job.batch, job.length, dtype=torch.int64, device=device)
    if tracker is not None:
        tracker.track_external(model, optimizer)
    for step in range(2):
        loss = loss_of_transformers_4_48(model, ids)
        loss.backward()  # type: ignore[no-untyped-call]
        del loss
        optimizer.step()
        optimizer.zero_grad()
        if tracker is not None and step == 0:
            tracker.reset_mod_stats()  # it takes no second step without


def _replace_by_empty(model: torch.nn.Module) -> None:
    """Put fake parameters on the CPU in place of those on no device; `module.to` cannot swap fake ones."""
    new: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, old in module._parameters.items():
            if old is not None:
                empty = torch.empty(old.shape, dtype=old.dtype)
                module._parameters[name] = new.setdefault(id(old), torch.nn.Parameter(empty, old.requires_grad))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


def _config(model: str) -> Any:
    found = load(f"model={model}", "backend=simulate").work.model
    return transformers.AutoConfig.for_model(found.model_type, **found.config)


def _text(nbytes: int | None, measured: int | None) -> str:
    if nbytes is None:
        return "-"
    unit, name = (GIB, "GiB") if nbytes >= GIB else (MIB, "MiB")
    miss = "" if measured is None or nbytes == measured else f" ({nbytes / measured - 1:+.1%})"
    return f"{nbytes / unit:,.2f} {name}{miss}"


if __name__ == "__main__":
    main()
