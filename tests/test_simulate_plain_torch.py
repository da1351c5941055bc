"""Training code of the usual kinds, without memexp or TRL: it runs, and what it leaves is what torch leaves on the CPU.

What is not simulated is refused by name, and what is not modelled in full is named.
"""

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from memexp.simulate import SimulatedGPU, UnsupportedOperationError, prepare

prepare()
CPU = torch.device("cpu")


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, nn.Module):
        for parameter in value.parameters():
            yield from (parameter, parameter.grad) if parameter.grad is not None else (parameter,)
        yield from value.buffers()
    elif isinstance(value, torch.optim.Optimizer):
        yield from tensors_of([list(state.values()) for state in value.state.values()])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)


def layouts(value: Any) -> list[Any]:
    return [(tuple(t.shape), t.stride(), t.dtype) for t in tensors_of(value)]


def images(device: torch.device) -> torch.Tensor:
    return torch.ones(4, 3, 16, 16, device=device)


def convolutions(device: torch.device) -> Any:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=8, padding="same", padding_mode="reflect"),
        nn.MaxPool2d(2),
        nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1),
        nn.GroupNorm(2, 4),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ).to(device)
    loss = F.cross_entropy(model(images(device)), torch.zeros(4, dtype=torch.int64, device=device), label_smoothing=0.1)
    loss.backward()
    return model, loss


def channels_last(device: torch.device) -> Any:
    model = nn.Conv2d(3, 8, 3, bias=False).to(device).to(memory_format=torch.channels_last)
    x = images(device).to(memory_format=torch.channels_last).requires_grad_()
    out = model(x)
    out.sum().backward()
    return model, out, x.grad


def one_and_three_dimensions(device: torch.device) -> Any:
    line, volume = nn.Conv1d(4, 8, 3).to(device), nn.Conv3d(2, 4, 3).to(device)
    (line(torch.ones(2, 4, 9, device=device)).sum() + volume(torch.ones(2, 2, 5, 5, 5, device=device)).sum()).backward()
    return line, volume


def recurrent(device: torch.device) -> Any:
    models = [cls(8, 16, 2, batch_first=True).to(device) for cls in (nn.LSTM, nn.GRU, nn.RNN)]
    x = torch.ones(4, 10, 8, device=device)
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([10, 8, 5, 2]), batch_first=True)
    out = nn.utils.rnn.pad_packed_sequence(models[1](packed)[0], batch_first=True)[0]
    (out.sum() + models[0](x)[0].sum() + models[2](x)[0].sum()).backward()
    return models, out


def speech(device: torch.device) -> Any:
    logits = torch.ones(50, 4, 20, device=device, requires_grad=True)
    targets, lengths = torch.ones(4, 10, dtype=torch.int64, device=device), torch.tensor([10, 8, 6, 4])
    loss = F.ctc_loss(logits.log_softmax(2), targets, torch.full((4,), 50), lengths)
    loss.backward()
    return loss, logits.grad


def optimizers(device: torch.device) -> Any:
    left = []
    for cls, kwargs in (
        (torch.optim.SGD, {"fused": True, "momentum": 0.9}),
        (torch.optim.Adagrad, {"fused": True}),
        (torch.optim.AdamW, {"fused": True, "amsgrad": True}),
        (torch.optim.RMSprop, {"foreach": True}),
        (torch.optim.Adadelta, {"foreach": False}),
    ):
        model = nn.Linear(8, 8).to(device)
        optimizer: Any = cls(model.parameters(), lr=0.1, **kwargs)  # type: ignore[operator]
        model(torch.ones(2, 8, device=device)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        left += [model, optimizer]
    return left


def gradients_of_each_sample(device: torch.device) -> Any:
    model = nn.Linear(8, 2).to(device)

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, parameters, (x,)).sum()  # type: ignore[no-any-return]

    grad = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    return list(grad(dict(model.named_parameters()), torch.ones(5, 8, device=device)).values())


def saved_and_loaded(device: torch.device) -> Any:
    model = nn.Linear(8, 8).to(device)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, map_location=device)
    return model, list(loaded.values())


SCRIPTS: tuple[Callable[[torch.device], Any], ...] = (
    convolutions,
    channels_last,
    one_and_three_dimensions,
    recurrent,
    speech,
    optimizers,
    gradients_of_each_sample,
    saved_and_loaded,
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_a_script_leaves_the_tensors_that_it_leaves_on_the_cpu(script: Callable[[torch.device], Any]) -> None:
    with SimulatedGPU() as gpu:
        left = script(gpu.device)
        on_card = [tensor for tensor in tensors_of(left) if tensor.device == gpu.device]
        counted = {tensor.data_ptr(): gpu.memory.record_of(tensor).block_bytes for tensor in on_card}
        assert on_card and sum(counted.values()) <= gpu.memory_allocated()
    assert layouts(left) == layouts(script(CPU))


def test_what_only_cudnn_knows_is_named() -> None:
    with SimulatedGPU() as gpu:
        convolutions(gpu.device)
        named = set(gpu.unknown_ops)
        nn.LSTM(4, 4).to(gpu.device)(torch.ones(2, 2, 4, device=gpu.device))
        nn.LSTMCell(4, 4).to(gpu.device)(torch.ones(2, 4, device=gpu.device))
        assert gpu.unknown_ops["aten::_cudnn_rnn"] == 1
    assert named == {
        *("aten::convolution", "aten::convolution_backward"),
        *("aten::native_batch_norm", "aten::native_batch_norm_backward"),
    }


def test_a_convolution_in_mixed_layouts_copies_what_cudnn_cannot_take() -> None:
    """One of the two is channels last, so that the other is copied: 8 x 3 x 3 x 3 floats, in a block of 1,024."""
    with SimulatedGPU() as gpu:
        x = images(gpu.device).to(memory_format=torch.channels_last)
        weight = torch.ones(8, 3, 3, 3, device=gpu.device)
        gpu.reset_peak_memory_stats()
        before = gpu.memory_allocated()
        out = F.conv2d(x, weight)
        assert out.is_contiguous(memory_format=torch.channels_last)
        assert gpu.max_memory_allocated() - before == 1024 + 4 * 8 * 14 * 14 * 4


def test_where_floats_decide_a_shape_it_is_the_largest_and_counted() -> None:
    with SimulatedGPU() as gpu:
        scores = torch.ones(30, 4, device=gpu.device)
        assert scores[scores[:, 0] > 0.5].shape == (30, 4)
        assert torch.unique(scores).shape == (120,)
        assert gpu.rule_branches == {"an unknown mask is true everywhere": 1, "no two unknown values are alike": 1}
        assert scores[~torch.isnan(scores)].shape == (120,)
        assert gpu.rule_branches["isnan of a float is false"] == 1


def test_distributions_take_parameters_that_have_no_values() -> None:
    with SimulatedGPU() as gpu:
        mean = torch.ones(3, 4, device=gpu.device)
        normal = torch.distributions.Normal(mean, mean.exp())
        chosen = torch.distributions.Categorical(logits=mean).sample()
        assert normal.log_prob(normal.rsample()).shape == (3, 4)
        assert gpu.rule_branches["what torch.distributions checks is valid"] >= 3
        assert chosen.tolist() == [3, 3, 3]  # the rule's token, where there are as many


def test_a_position_by_rule_is_one_that_there_is() -> None:
    with SimulatedGPU() as gpu:
        scores = torch.ones(2, 3, device=gpu.device)
        assert F.one_hot(scores.argmax(1), 3).shape == (2, 3)
        assert [scores.argmax().item(), scores.argmin(0).tolist()] == [5, [1, 1, 1]]
        assert torch.multinomial(scores, 1).tolist() == [[2], [2]]


def test_what_says_cuda_by_name_means_the_card() -> None:
    with SimulatedGPU("a100_80gb") as gpu:
        model = nn.Linear(512, 512).cuda()
        scaler = torch.amp.GradScaler("cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(torch.ones(2, 512, device=gpu.device))
        assert out.dtype == torch.float16
        scaler.scale(out.float().sum()).backward()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.synchronize()
        assert torch.cuda.max_memory_allocated() == gpu.max_memory_allocated() > 1 << 20
        assert torch.cuda.mem_get_info()[1] == torch.cuda.get_device_properties(0).total_memory == gpu.card.memory_bytes
        assert str(gpu.max_memory_reserved()) in torch.cuda.memory_summary().replace(",", "")
        with torch.cuda.device(0):
            assert torch.cuda.current_device() == 0
    assert torch.cuda.max_memory_allocated() == 0


def loaded(map_location: Any) -> torch.Tensor:
    buffer = io.BytesIO()
    torch.save(torch.ones(2), buffer)
    buffer.seek(0)
    return torch.load(buffer, map_location=map_location)  # type: ignore[no-any-return]


def made_by_default(name: Any) -> torch.Tensor:
    torch.set_default_device(name)
    try:
        return torch.tensor([1.0, 2.0])
    finally:
        torch.set_default_device(None)


def made_in_context(name: Any) -> torch.Tensor:
    with torch.device(name):
        return nn.Linear(2, 1).weight.detach()[0]


# Each gives two elements on the device that is named.
NAMING: dict[str, Callable[[Any], torch.Tensor]] = {
    "Tensor.to": lambda name: torch.ones(2).to(name),
    "Tensor.to(device=)": lambda name: torch.ones(2).to(device=name, dtype=torch.bfloat16, non_blocking=True),
    "Tensor.cuda": lambda name: torch.ones(2).cuda(name),
    "Module.to": lambda name: nn.Linear(2, 1).to(name).weight.detach()[0],
    "Module.to_empty": lambda name: nn.Linear(2, 1, device="meta").to_empty(device=name).weight.detach()[0],
    "a module's device=": lambda name: nn.Linear(2, 1, device=name).weight.detach()[0],
    **{
        make.__name__: lambda name, make=make: make(2, device=name)
        for make in (torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn, torch.arange, torch.randperm)
    },
    "full": lambda name: torch.full((2,), 1.0, device=name),
    "linspace": lambda name: torch.linspace(0, 1, 2, device=name),
    "tril_indices": lambda name: torch.tril_indices(1, 1, device=name).flatten(),
    "empty_strided": lambda name: torch.empty_strided((2,), (1,), device=name),
    "tensor": lambda name: torch.tensor([1.0, 2.0], device=name),
    "as_tensor": lambda name: torch.as_tensor([1.0, 2.0], device=name),
    "asarray": lambda name: torch.asarray([1.0, 2.0], device=name),
    "new_tensor": lambda name: torch.ones(1).new_tensor([1.0, 2.0], device=name),
    "empty_like of the host": lambda name: torch.empty_like(torch.ones(2), device=name),
    "zeros_like of the card": lambda name: torch.zeros_like(torch.ones(2, device="cuda"), device=name),
    "new_zeros": lambda name: torch.ones(1).new_zeros(2, device=name),
    "torch.load": loaded,
    "torch.load of each": lambda name: loaded({"cpu": str(name)}),
    "torch.set_default_device": made_by_default,
    "with torch.device": made_in_context,
    "Generator": lambda name: torch.randn(2, generator=torch.Generator(name).manual_seed(1), device=name),
}
NAMES = ("cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 0))


@pytest.mark.parametrize("way", NAMING)
def test_a_tensor_that_is_put_on_cuda_is_on_the_card(way: str) -> None:
    with SimulatedGPU() as gpu:
        for name in NAMES:
            made = NAMING[way](name)
            assert made.device == gpu.device and made.shape == (2,), name
            assert gpu.memory_allocated() == 512  # two elements, in the allocator's smallest block
            del made
        with pytest.raises(UnsupportedOperationError, match=r'"cuda:1" cannot be simulated: there is one card'):
            NAMING[way]("cuda:1")


def test_what_is_on_the_card_is_not_copied_to_cuda() -> None:
    with SimulatedGPU():
        x = torch.ones(2, device="cuda")
        assert x.to("cuda") is x and x.to(device="cuda:0") is x and x.cuda() is x


def test_cuda_is_what_it_was_after_a_simulation() -> None:
    def has_kernel() -> bool:
        return torch._C._dispatch_has_kernel_for_dispatch_key("aten::empty.memory_format", "CUDA")

    before = has_kernel()  # a build with CUDA has one
    with SimulatedGPU():
        assert torch.ones(2, device="cuda").shape == (2,)
        assert has_kernel()
    assert has_kernel() == before


def test_compiled_code_runs_eagerly_and_says_so() -> None:
    with SimulatedGPU() as gpu:

        @torch.compile(dynamic=True)
        def triple(x: torch.Tensor) -> torch.Tensor:
            return x * 3

        assert "torch.compile" not in gpu.unknown_ops  # not called yet
        for run in (triple, lambda x: torch.compile(nn.ReLU())(x)):
            with pytest.warns(UserWarning, match="runs eagerly"):
                assert run(torch.ones(2, device=gpu.device)).shape == (2,)
        assert gpu.unknown_ops["torch.compile"] == 2


REFUSED: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "sparse": (lambda x: torch.sparse_coo_tensor(torch.zeros(1, 2, dtype=torch.int64), x[0, :2]), "Sparse tensors"),
    "nested": (lambda x: torch.nested.as_nested_tensor([x, x]) * 2, "NestedTensor tensors"),
    "several cards": (lambda x: nn.parallel.DistributedDataParallel(nn.Linear(2, 2).to(x.device)), "one card, alone"),
    "bytes": (lambda x: x.untyped_storage()[0], "has no bytes"),
    "a copy of a storage": (lambda x: x.untyped_storage().clone(), "has no bytes"),
    "pickled": (lambda x: x.untyped_storage().__reduce__(), "has no bytes"),
}


@pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors", "ignore:Sparse invariant", "ignore:TypedStorage"
)
@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_simulated_is_refused_by_name(kind: str) -> None:
    run, word = REFUSED[kind]
    with SimulatedGPU() as gpu, pytest.raises(UnsupportedOperationError, match=word):
        run(torch.ones(4, 4, device=gpu.device))


def test_a_model_on_the_host_is_no_prediction_and_said_to_be_none() -> None:
    with pytest.warns(UserWarning, match=r"nothing on the simulated GPU.*gpu\.device"), SimulatedGPU():
        nn.Linear(2, 2)(torch.ones(2))


def test_tensors_end_with_their_simulation() -> None:
    with SimulatedGPU() as gpu:
        model = nn.Linear(2, 2).to(gpu.device)
    with pytest.raises(RuntimeError, match="no simulated GPU is active"):
        model(torch.ones(1))
    with SimulatedGPU() as gpu, pytest.raises(RuntimeError, match="not made in the simulation that is active"):
        model(torch.ones(1, 2, device=gpu.device))


def test_what_is_no_card_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"gpu=80 is not a card.*h100_80gb"):
        SimulatedGPU(80)  # type: ignore[arg-type]
