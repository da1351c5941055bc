"""A model's deep copy, and ops that Python gives a number where their schema has a tensor."""

import copy

import torch

from memexp.simulate import SimulatedGPU


def test_a_deep_copy_is_memory_of_its_own_and_keeps_its_values() -> None:
    with SimulatedGPU("h100_80gb") as gpu:
        module = torch.nn.Linear(256, 256, bias=False).to(gpu.device)
        module.register_buffer("positions", torch.arange(512).to(gpu.device))
        before = gpu.memory_allocated()
        copied = copy.deepcopy(module)
        # 256 x 256 in fp32 and 512 positions of 8 bytes, both whole blocks of 512 bytes.
        assert gpu.memory_allocated() - before == 256 * 256 * 4 + 512 * 8
        copied.positions.add_(1)
        assert copied.positions.tolist() == list(range(1, 513))
        assert module.positions.tolist() == list(range(512))
        assert copied.weight.requires_grad


def test_tied_tensors_are_tied_in_the_copy() -> None:
    with SimulatedGPU("h100_80gb") as gpu:
        shared = torch.arange(4).to(gpu.device)
        first, second = copy.deepcopy([shared, shared])
        assert first is second


def test_a_number_in_place_of_a_tensor_gives_what_it_gives_on_a_cpu() -> None:
    with SimulatedGPU("h100_80gb") as gpu:
        on_host = torch.tensor([[-3, 5], [1, -1]])
        on_card = on_host.to(gpu.device)
        assert (on_card % 4).tolist() == (on_host % 4).tolist()
        values = torch.zeros(2, 8, device=gpu.device)
        assert torch.take_along_dim(values, on_card.clamp(min=0), dim=1).shape == (2, 2)
