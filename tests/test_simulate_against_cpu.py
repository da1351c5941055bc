"""The same training on the CPU, where LiveBytes counts real tensors, and on the simulated GPU: the peaks agree.

Compared are the bytes that tensors asked for, because the CPU has no blocks; what only kernels of a GPU take is
switched off. LiveBytes itself is held against torch's profiler in its own tests.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from memexp.measure.live_bytes import LiveBytes
from memexp.simulate import SimulatedGPU, prepare

prepare()

VOCABULARY, WIDTH, HEADS, LENGTH, BATCH = 256, 64, 4, 32, 2


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.up = torch.nn.Linear(WIDTH, 4 * WIDTH)
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2) / WIDTH**0.5).softmax(-1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(x.shape))
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


class Model(torch.nn.Module):
    def __init__(self, checkpointing: bool) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(2))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointing else layer(x)
        return self.head(x)  # type: ignore[no-any-return]


def train(
    device: Any, make_optimizer: Callable[..., Any], dtype: torch.dtype, checkpointing: bool, steps: int = 3
) -> None:
    with torch.device(device):
        model = Model(checkpointing).to(dtype)
        ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    optimizer = make_optimizer(model.parameters())
    for _ in range(steps):
        logits = model(ids)
        torch.nn.functional.cross_entropy(logits.view(-1, VOCABULARY), ids.view(-1)).backward()
        optimizer.step()
        optimizer.zero_grad()


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, foreach=False),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, foreach=False),
    "adamw_foreach": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
    "adamw_fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
}


@pytest.mark.usefixtures("without_scratch")
@pytest.mark.parametrize("checkpointing", [False, True], ids=["none", "checkpointed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_peak_is_that_of_real_training(optimizer: str, dtype: torch.dtype, checkpointing: bool) -> None:
    counter = LiveBytes()
    with counter:
        train("cpu", OPTIMIZERS[optimizer], dtype, checkpointing)
    with SimulatedGPU("h100_80gb") as gpu:
        train(gpu.device, OPTIMIZERS[optimizer], dtype, checkpointing)
    simulated = gpu.memory_stats()["requested_bytes.all.peak"]
    assert simulated == pytest.approx(counter.peak_allocated_bytes(), rel=0.002)
