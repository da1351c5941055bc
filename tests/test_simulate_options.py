"""Options of a cell on the simulated GPU that are confirmed by what is there: fp16, FlashAttention 3, the allocator.

Also the two bounds of what is reserved, and what loading a pretrained model reserves.
"""

from typing import Any

import pytest
import torch
from sweeping import sweep, write_rows
from transformers import LlamaConfig, LlamaForCausalLM

from memexp.plan import load_sweep
from memexp.plan.machine import Machine
from memexp.plan.preflight import preflight
from memexp.simulate import SimulatedGPU, prepare
from memexp.simulate.allocator import AllocatorSettings
from memexp.simulate.late_streams import LateStreams
from memexp.simulate.loading import warm_up_allocator

pytestmark = pytest.mark.usefixtures("warm_cells")
prepare()
MIB = 1 << 20


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Two cells: fp16 with expandable segments, and FlashAttention 3."""
    folder = tmp_path_factory.mktemp("options")
    rows = write_rows(folder / "rows.jsonl", (64, 128, 96, 32))
    short = ("backend=simulate", "model=tiny", "data=jsonl", f"data.path={rows}", "max_length=128", "batch_size=2",
             "steps=1", "unmeasured_steps=0", "logger=none", "optimizer=adamw", "packing=bfd")  # fmt: skip
    found = []
    for more in (("precision=fp16", "allocator=expandable"), ("attention=flash_attention_3",)):
        found += sweep(folder, *short, *more).records
    return found


def test_each_option_is_confirmed_by_its_effect(records: list[dict[str, Any]]) -> None:
    assert [(record["status"], record["effective"]["fell_back"]) for record in records] == [("ok", [])] * 2
    fp16, flash = (record["effective"] for record in records)
    assert (fp16["autocast_dtype"], fp16["loss_is_scaled"], flash["loss_is_scaled"]) == ("float16", True, False)
    assert flash["attention"] == "flash_attention_3"
    assert (fp16["allocator"], flash["allocator"]) == ("expandable_segments:True", None)


def test_an_overflow_that_nobody_can_see_is_decided_by_a_stated_rule(records: list[dict[str, Any]]) -> None:
    """A step that is left out would make no optimizer state, and the peak would lack it."""
    assert records[0]["simulation"]["rule_branches"]["no gradient overflows in fp16"] >= 1
    assert records[0]["effective"]["optimizer_state_dtypes"] == ["float32"]


def test_flash_attention_3_is_modelled_in_full(records: list[dict[str, Any]]) -> None:
    assert records[1]["simulation"]["unknown_ops"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["attention=flash_attention_3", "gpu=a100_80gb"], "Type attention=flash_attention_2"),
        (["attention=flash_attention_3", "gpu=t4_16gb"], "Type attention=sdpa"),
        (["attention=flash_attention_3", "precision=fp32"], "Type precision=bf16 or precision=fp16"),
        (["precision=fp16", "backend=cpu"], "precision=fp16 needs a GPU"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_type(arguments: list[str], said: str) -> None:
    (plan,) = load_sweep("backend=simulate", "logger=none", "model=tiny", *arguments)
    refusal = preflight(plan, Machine()).refusal
    assert refusal is not None and said in refusal.reason


def test_an_attention_kernel_that_is_not_modelled_is_refused_by_name() -> None:
    from transformers.modeling_flash_attention_utils import lazy_import_flash_attention

    with SimulatedGPU("h100_80gb"), pytest.raises(NotImplementedError, match="flash_attention_4"):
        lazy_import_flash_attention("flash_attention_4")


def test_memory_that_a_late_stream_holds_is_reserved_anew() -> None:
    late = LateStreams(100 * MIB, AllocatorSettings())
    for address in (1, 2):
        late.malloc(address, 20 * MIB, 0)
        late.record_stream(address, 1)
        late.free(address)
    assert late.peak_reserved_bytes == 40 * MIB
    late.synchronize()
    late.malloc(3, 20 * MIB, 0)
    assert late.peak_reserved_bytes == 40 * MIB


def test_what_does_not_fit_with_late_streams_is_not_known() -> None:
    late = LateStreams(30 * MIB, AllocatorSettings())
    for address in (1, 2):
        late.malloc(address, 20 * MIB, 0)
    assert late.peak_reserved_bytes is None
    late.free(1)


@pytest.mark.parametrize(("bounds_reserved", "expected"), [(True, 40 * MIB), (False, None)])
def test_both_bounds_of_reserved_come_from_one_run(bounds_reserved: bool, expected: int | None) -> None:
    with SimulatedGPU("h100_80gb", bounds_reserved=bounds_reserved) as gpu:
        other = torch.get_device_module(gpu.device).Stream()
        for _ in range(2):
            tensor = torch.empty(20 * MIB, dtype=torch.uint8, device=gpu.device)
            tensor.record_stream(other)
            del tensor
        assert gpu.max_memory_reserved() == 20 * MIB
        assert gpu.late_reserved_bytes() == expected


def test_loading_reserves_one_segment_for_all_large_weights() -> None:
    """Weights of 2 MiB and more share it; norms are small and have a segment of 2 MiB of their own."""
    config = LlamaConfig(
        vocab_size=2048, hidden_size=1024, intermediate_size=2048, num_hidden_layers=2, num_attention_heads=8,
    )  # fmt: skip
    matrices = 2 * 2048 * 1024 + 2 * (4 * 1024 * 1024 + 3 * 1024 * 2048)
    with SimulatedGPU("h100_80gb") as gpu:
        with torch.device("meta"):
            skeleton = LlamaForCausalLM(config)
        warm_up_allocator(skeleton)
        segment = -(-(matrices + 5 * 1024) * 4 // (2 * MIB)) * 2 * MIB
        assert (gpu.memory_allocated(), gpu.memory_reserved()) == (0, segment)
        with torch.device(gpu.device):
            model = LlamaForCausalLM(config)
        assert gpu.memory_reserved() == segment + 2 * MIB
        del model
