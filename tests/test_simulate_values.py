"""Integers are real on the simulated GPU; what floats would decide is decided by rule and counted."""

import math
from collections.abc import Callable

import pytest
import torch

from memexp.simulate import SimulatedGPU, prepare

prepare()


def test_integers_keep_their_values_through_ops_and_views() -> None:
    with SimulatedGPU() as gpu:
        ids = torch.tensor([[5, 6, 0, 0], [7, 8, 9, 0]], device=gpu.device)
        mask = ids != 0
        assert mask.sum(-1).tolist() == [2, 3]
        assert (mask.cumsum(-1) - 1).clamp(min=0).tolist() == [[0, 1, 1, 1], [0, 1, 2, 2]]
        assert ids.t()[1].tolist() == [6, 8]
        assert torch.where(mask, ids, -100).flatten().tolist() == [5, 6, -100, -100, 7, 8, 9, -100]


def test_writes_through_a_view_are_seen_by_all() -> None:
    with SimulatedGPU() as gpu:
        labels = torch.zeros(2, 3, dtype=torch.int64, device=gpu.device)
        labels[:, 1] = 4
        labels[0].copy_(torch.tensor([1, 2, 3]))
        assert labels.tolist() == [[1, 2, 3], [0, 4, 0]]


def test_shapes_that_depend_on_values_are_right() -> None:
    with SimulatedGPU() as gpu:
        positions = torch.tensor([0, 1, 2, 0, 1, 0], device=gpu.device)
        starts = (positions == 0).nonzero()
        assert starts.flatten().tolist() == [0, 3, 5]
        hidden = torch.empty(6, 16, device=gpu.device)
        assert hidden[positions > 0].shape == (3, 16)
        assert positions[positions > 0].tolist() == [1, 2, 1]
        assert positions.masked_select(positions == 1).tolist() == [1, 1]
        assert positions.unique().tolist() == [0, 1, 2]
        assert positions.repeat_interleave(positions).tolist() == [1, 2, 2, 1]


def test_indexing_with_a_mask_has_a_gradient() -> None:
    with SimulatedGPU() as gpu:
        hidden = torch.empty(4, 8, device=gpu.device, requires_grad=True)
        hidden[torch.tensor([True, False, True, True], device=gpu.device)].sum().backward()
        assert hidden.grad is not None and hidden.grad.shape == (4, 8)


def test_a_float_is_nan_on_the_host() -> None:
    with SimulatedGPU(warn_of_floats=False) as gpu:
        loss = torch.ones(3, device=gpu.device).mean()
        assert math.isnan(loss.item())
        assert math.isnan(loss.cpu())
        assert gpu.coverage.float_reads == 2
        assert gpu.rule_branches == {}


READS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda loss: loss.item(),
    "float": float,
    "tolist": lambda loss: loss.tolist(),
    "print": repr,
    "format": lambda loss: f"{loss:.3f}",
    "cpu": lambda loss: loss.cpu(),
    "numpy": lambda loss: loss.cpu().numpy(),
}


@pytest.mark.parametrize("read", READS)
def test_the_first_float_that_is_read_is_warned_of_where_it_is_read(read: str) -> None:
    with SimulatedGPU() as gpu:
        loss = torch.ones(3, device=gpu.device).mean()
        with pytest.warns(UserWarning, match="floats have no values") as told:
            assert "nan" in str(READS[read](loss))
            READS[read](loss)
        assert [warning.filename for warning in told] == [__file__]


def test_what_is_no_read_of_a_float_is_not_warned_of() -> None:
    with SimulatedGPU() as gpu:
        x = torch.ones(3, device=gpu.device, requires_grad=True)
        torch.empty(3).copy_(x.detach(), non_blocking=True)  # as activations are offloaded
        assert torch.arange(3, device=gpu.device).tolist() == [0, 1, 2]
        scaler = torch.amp.GradScaler("cuda")
        scaler.scale(x.sum()).backward()
        scaler.step(torch.optim.SGD([x]))
        scaler.update()


def test_a_float_says_that_it_is_finite_and_the_branch_is_counted() -> None:
    with SimulatedGPU() as gpu:
        loss = torch.ones(3, device=gpu.device).sum()
        assert not torch.isnan(loss).any()
        assert torch.isfinite(loss).all()
        assert (loss == loss).all()
        assert not loss > 1
        assert gpu.rule_branches == {
            "isnan of a float is false": 3,
            "a comparison of floats is false": 1,
        }


def test_a_rejection_loop_on_floats_ends() -> None:
    with SimulatedGPU() as gpu:
        torch.nn.init.trunc_normal_(torch.empty(8, 8, device=gpu.device))


def test_sampled_tokens_are_ordinary_ones() -> None:
    with SimulatedGPU() as gpu:
        tokens = torch.empty(2, 50, device=gpu.device).argmax(-1)
        assert tokens.tolist() == [5, 5]
        assert (tokens == 1).tolist() == [False, False]


def test_what_unknown_floats_are_written_into_loses_its_values() -> None:
    with SimulatedGPU() as gpu:
        counts = torch.zeros(3, dtype=torch.int64, device=gpu.device)
        counts.copy_(torch.ones(3, device=gpu.device))
        assert counts[0].item() == 1
        assert gpu.rule_branches == {"an unknown integer is 1": 1}


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.int64])
def test_values_survive_the_way_to_the_card_and_back(dtype: torch.dtype) -> None:
    with SimulatedGPU() as gpu:
        there = torch.tensor([1, 0, 1], dtype=dtype).to(gpu.device)
        assert there.to(torch.int64).cpu().tolist() == [1, 0, 1]
