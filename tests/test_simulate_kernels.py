"""Workspaces, optimizers and autocast: each size by hand. What single kernels take has a file of its own."""

import pytest
import torch
import torch.nn.functional as F

from memexp.simulate import SimulatedGPU, prepare

prepare()
MIB = 1 << 20
BF16 = torch.bfloat16


@pytest.mark.parametrize(("card", "workspace"), [("h100_80gb", 32 * MIB), ("a100_80gb", 8_519_680)])
def test_cublas_takes_a_workspace_for_forward_and_one_for_backward(card: str, workspace: int) -> None:
    with SimulatedGPU(card) as gpu:
        weight = torch.empty(8, 8, device=gpu.device, requires_grad=True)
        out = weight @ weight
        assert gpu.memory_allocated() == workspace + 2 * 512
        out.sum().backward()
        del out, weight
        assert gpu.memory_allocated() == 2 * workspace


def test_each_stream_has_a_workspace_of_its_own() -> None:
    with SimulatedGPU("h100_80gb") as gpu:
        device = torch.get_device_module(gpu.device)
        a = torch.empty(8, 8, device=gpu.device)
        for _ in range(2):
            a @ a
        with device.stream(device.Stream()):
            a @ a
        del a
        assert gpu.memory_allocated() == 2 * 32 * MIB


def test_each_workspace_can_be_switched_off(scratch_switches: dict[str, bool]) -> None:
    scratch_switches["cublas_workspaces"] = False
    with SimulatedGPU() as gpu:
        torch.empty(8, 8, device=gpu.device) @ torch.empty(8, 8, device=gpu.device)
        assert gpu.memory_allocated() == 0


def test_foreach_adam_takes_full_size_temporaries_and_fused_adam_none() -> None:
    peaks = {}
    for kind in ("foreach", "fused"):
        with SimulatedGPU() as gpu:
            parameters = [torch.nn.Parameter(torch.empty(MIB, device=gpu.device)) for _ in range(4)]
            optimizer = torch.optim.AdamW(parameters, **{kind: True})
            for parameter in parameters:
                parameter.grad = torch.empty_like(parameter)
            optimizer.step()
            before = gpu.memory_allocated()
            gpu.reset_peak_memory_stats()
            optimizer.step()
            peaks[kind] = gpu.max_memory_allocated() - before
    assert peaks["fused"] == 0
    assert peaks["foreach"] == 4 * 4 * MIB


def test_autocast_casts_each_weight_once_and_keeps_it_to_the_end(scratch_switches: dict[str, bool]) -> None:
    with SimulatedGPU() as gpu:
        scratch_switches["cublas_workspaces"] = False
        weight = torch.nn.Parameter(torch.empty(1024, 1024, device=gpu.device))
        x = torch.empty(1, 1024, device=gpu.device, dtype=BF16)
        before = gpu.memory_allocated()
        with torch.autocast(gpu.device.type, dtype=BF16), torch.no_grad():
            first = F.linear(x, weight)
        assert first.dtype == BF16
        del first
        assert gpu.memory_allocated() == before
        with torch.autocast(gpu.device.type, dtype=BF16):
            F.linear(x, weight)
            F.linear(x, weight)
            assert gpu.memory_allocated() - before == 2 * MIB
        assert gpu.memory_allocated() == before


def test_autocast_follows_cudas_lists() -> None:
    with SimulatedGPU() as gpu, torch.autocast(gpu.device.type, dtype=BF16):
        half = torch.empty(8, 8, device=gpu.device, dtype=BF16)
        full = torch.empty(8, 8, device=gpu.device)
        assert (full @ full).dtype == BF16
        assert half.softmax(-1).dtype == torch.float32
        assert half.pow(2).dtype == torch.float32
        assert torch.cat([half, full]).dtype == torch.float32
        assert (half * 2).dtype == BF16
        assert F.cross_entropy(half, torch.zeros(8, dtype=torch.int64, device=gpu.device)).dtype == torch.float32


def test_an_op_of_another_library_is_named_as_not_known() -> None:
    @torch.library.custom_op("memexp_test::twice", mutates_args=(), device_types="cuda")
    def twice(x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    twice.register_fake(torch.empty_like)
    with SimulatedGPU() as gpu:
        twice(torch.ones(2, device=gpu.device))
    assert gpu.unknown_ops == {"memexp_test::twice": 1}
    assert gpu.coverage.known_fraction == 0.5  # the other op is the one that fills with ones
