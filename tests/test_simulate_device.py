"""The simulated GPU as a device for plain PyTorch code. Sizes are found by hand: 512-byte blocks, 4-byte floats."""

import ast
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import memexp.simulate
from memexp.simulate import CARDS, SimulatedGPU, UnsupportedOperationError, prepare
from memexp.simulate.patches import PATCHES

prepare()
MIB = 1 << 20
A100_WORKSPACE = 8 * MIB + 128 * 1024  # cuBLAS: two of 4,096 KiB and eight of 16 KiB


def test_a_tensor_takes_its_block_and_gives_it_back() -> None:
    with SimulatedGPU() as gpu:
        tensor = torch.empty(256, 1024, device=gpu.device)
        small = torch.empty(1, device=gpu.device)
        assert gpu.memory_allocated() == MIB + 512
        assert gpu.memory_reserved() == 2 * MIB
        del tensor, small
        assert gpu.memory_allocated() == 0
        assert gpu.max_memory_allocated() == MIB + 512


def test_views_share_the_storage_and_its_address() -> None:
    with SimulatedGPU() as gpu:
        base = torch.zeros(4, 6, device=gpu.device)
        view = base[1:, ::2].t()
        assert gpu.memory_allocated() == 512
        assert (view.shape, view.stride(), view.storage_offset()) == ((3, 3), (2, 6), 6)
        assert view.data_ptr() == base.data_ptr() + 24
        del base
        assert gpu.memory_allocated() == 512


def test_a_training_step_holds_what_is_computed_by_hand() -> None:
    """Weights 64 x 64 and a bias: 16,384 + 512 bytes. Adam's two states are as large; its step counts take 512 each."""
    with SimulatedGPU("a100_80gb") as gpu:
        model = torch.nn.Linear(64, 64).to(gpu.device)
        weights = 64 * 64 * 4 + 512
        assert gpu.memory_allocated() == weights
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        loss = model(torch.empty(32, 64, device=gpu.device)).sum()
        loss.backward()
        optimizer.step()
        del loss
        steps = 2 * 512
        assert gpu.memory_allocated() == 4 * weights + steps + 2 * A100_WORKSPACE
        categories = gpu.peak_categories
        assert categories["weights"] == categories["gradients"] == weights
        assert categories["optimizer"] == 2 * weights + steps
        assert sum(categories.values()) == gpu.max_memory_allocated()


def test_logits_are_a_category_of_their_own() -> None:
    with SimulatedGPU() as gpu:
        embedding = torch.nn.Embedding(5000, 8, device=gpu.device)
        hidden = embedding(torch.zeros(100, dtype=torch.int64, device=gpu.device))
        logits = hidden @ embedding.weight.t()
        assert gpu.peak_categories["logits"] == 2_000_384  # 100 x 5,000 floats, in blocks
        del logits


def test_a_full_card_raises_torchs_own_error_and_recovers() -> None:
    card = replace(CARDS["t4_16gb"], memory_bytes=1024 * MIB, context_bytes=24 * MIB)
    with SimulatedGPU(card) as gpu:
        held = torch.empty(600 * MIB, dtype=torch.uint8, device=gpu.device)
        with pytest.raises(
            torch.OutOfMemoryError, match=r"CUDA out of memory\. Tried to allocate 500\.00 MiB"
        ) as raised:
            torch.empty(500 * MIB, dtype=torch.uint8, device=gpu.device)
        assert vars(raised.value) == {"requested_bytes": 500 * MIB, "free_bytes": 400 * MIB}
        del held
        torch.empty(900 * MIB, dtype=torch.uint8, device=gpu.device)  # the cache is given back for it
        assert gpu.alloc_retries == 2


def test_moving_a_model_keeps_its_parameters_and_their_ties() -> None:
    with SimulatedGPU() as gpu:
        embedding, head = torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8, bias=False)
        head.weight = embedding.weight
        before = embedding.weight
        model = torch.nn.ModuleList([embedding, head]).to(gpu.device)
        assert before is model[0].weight is model[1].weight
        assert before.device == gpu.device
        assert gpu.memory_allocated() == 512


def test_devices_do_not_mix() -> None:
    with SimulatedGPU() as gpu, pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.ones(2, device=gpu.device) + torch.ones(2)


def test_wrong_shapes_are_refused_as_by_torch() -> None:
    with SimulatedGPU() as gpu, pytest.raises(RuntimeError, match="reduction dim"):
        torch.ones(2, 3, device=gpu.device) @ torch.ones(2, 3, device=gpu.device)


def test_an_op_without_a_shape_function_is_named() -> None:
    library = torch.library.Library("memexp_test", "FRAGMENT")
    library.define("opaque(Tensor x) -> Tensor")
    with SimulatedGPU() as gpu, pytest.raises(UnsupportedOperationError, match="memexp_test::opaque"):
        torch.ops.memexp_test.opaque(torch.ones(2, device=gpu.device))


def test_everything_replaced_is_put_back() -> None:
    names = ("empty", "clear_autocast_cache")
    before = (
        [getattr(torch, name) for name in names],
        torch.Tensor.record_stream,
        torch.nn.Module._apply,
        sys.meta_path[:],
    )
    with SimulatedGPU():
        assert torch.empty is not before[0][0]
    after = (
        [getattr(torch, name) for name in names],
        torch.Tensor.record_stream,
        torch.nn.Module._apply,
        sys.meta_path[:],
    )
    assert after == before
    assert torch.empty(2, pin_memory=False).is_cpu


def test_the_hosts_own_work_is_real() -> None:
    with SimulatedGPU() as gpu:
        assert (torch.arange(4.0) @ torch.arange(4.0)).item() == 14
        assert gpu.coverage.ops == 0


def test_one_simulation_at_a_time_and_each_once() -> None:
    gpu = SimulatedGPU()
    with gpu, pytest.raises(RuntimeError, match="one at a time"), SimulatedGPU():
        pass
    with pytest.raises(RuntimeError, match="used once"), gpu:
        pass


def test_an_unknown_card_names_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"gpu=h100 is not a card.*h100_80gb"):
        SimulatedGPU("h100")


def test_the_snapshot_holds_the_blocks_in_the_viewers_layout(tmp_path: Path) -> None:
    with SimulatedGPU() as gpu:
        tensor = torch.empty(MIB, dtype=torch.uint8, device=gpu.device)
        gpu.dump_snapshot(tmp_path / "snapshot.pickle")
        snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
        assert snapshot["segments"][0]["blocks"][0]["address"] == tensor.data_ptr()
    assert [event["action"] for event in snapshot["device_traces"][0]] == ["segment_alloc", "alloc"]


def test_random_numbers_and_inference_mode_work() -> None:
    with SimulatedGPU() as gpu, torch.inference_mode():
        generator_free = torch.randn(8, 8, device=gpu.device).softmax(-1)
        assert torch.nn.functional.dropout(generator_free, 0.5).shape == (8, 8)


def test_every_patch_says_why_and_for_which_version() -> None:
    for patch in PATCHES:
        assert patch.reason, patch
        assert any(digit in patch.read_against for digit in "123456789"), patch


def run_alone(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_module_is_imported_without_torch() -> None:
    assert run_alone("import sys, memexp.simulate; print('torch' in sys.modules)") == "False"


def test_the_simulation_needs_nothing_else_of_memexp() -> None:
    imported = {
        name
        for path in Path(memexp.simulate.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [each.name for each in names_of(node)])
        if name is not None
    }
    assert "memexp.simulate.allocator.keys" in imported
    assert {name for name in imported if name.split(".")[0] in ("memexp", "hydra", "omegaconf")} == {
        name for name in imported if name.startswith("memexp.simulate")
    }


def names_of(node: ast.AST) -> list[ast.alias]:
    return node.names if isinstance(node, ast.Import) else []


def test_a_simulation_after_a_backward_pass_says_what_to_do() -> None:
    code = """
import torch, memexp.simulate
torch.ones((), requires_grad=True).backward()
try:
    memexp.simulate.SimulatedGPU().__enter__()
except RuntimeError as error:
    print(error)
"""
    assert "call memexp.simulate.prepare() at the start" in run_alone(code)


RECOMPUTES_ON_A_SMALL_CARD = """
from dataclasses import replace
import torch

import memexp.simulate
from torch.utils.checkpoint import checkpoint
from memexp.simulate import SimulatedGPU
from memexp.simulate.cards import CARDS

CARDS["small"] = replace(CARDS["t4_16gb"], memory_bytes=CARDS["t4_16gb"].context_bytes + 900 * 2**20)

def chain(x):
    for _ in range(8):
        x = x.sin()
    return x

with SimulatedGPU("small") as gpu:
    # 100 MiB each: without gradients two live at a time, and recomputed for backward all eight.
    x = torch.ones(25 * 2**20, device=gpu.device, requires_grad=True)
    loss = checkpoint(chain, x, use_reentrant=False).sum()
    try:
        loss.backward()
    except torch.OutOfMemoryError as error:
        print("short", error.requested_bytes, gpu.max_memory_allocated() <= 900 * 2**20)
    small = torch.ones(5, device=gpu.device) + 1
    print("goes on")
"""


def test_running_out_of_memory_in_a_recomputed_layer_is_an_error_and_no_abort() -> None:
    # In a process of its own: C++ ends it where an error meets the engine's stream guard.
    done = subprocess.run(
        [sys.executable, "-c", RECOMPUTES_ON_A_SMALL_CARD], capture_output=True, text=True, check=False
    )
    assert done.stdout.split("\n")[:2] == [f"short {100 * 2**20} True", "goes on"], done.stderr
