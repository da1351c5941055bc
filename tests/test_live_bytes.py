"""The live-bytes meter against torch.profiler's own memory events, and against sums made by hand."""

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

from memexp.measure.live_bytes import LiveBytes

KIB = 1024
Mark = Callable[[str], AbstractContextManager[Any]]
Job = Callable[[Mark], Any]  # returns what it keeps alive

# What kernels make for themselves: single numbers, as for a Python number in `x * 2` or in the gradient's norm.
SCALARS_BYTES = 256
# A generator's state comes from no op, and checkpointing keeps one for each layer.
RNG_STATE_BYTES = torch.get_rng_state().nbytes
LAYERS = 2


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def profiled_peaks(job: Job, folder: Path) -> dict[str, int]:
    """The peak of each marked phase by the running sum of the profiler's allocations and frees, without the meter."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = job(lambda name: record_function(f"phase {name}"))
    del kept
    profiler.export_chrome_trace(str(folder / "trace.json"))
    trace = json.loads((folder / "trace.json").read_text())["traceEvents"]
    events = sorted((e["ts"], e["args"]["Bytes"]) for e in trace if e.get("name") == "[memory]")
    peaks = {}
    for span in trace:
        if span.get("cat") == "user_annotation" and span["name"].startswith("phase "):
            now = peak = sum(nbytes for at, nbytes in events if at < span["ts"])
            for at, nbytes in events:
                if span["ts"] <= at <= span["ts"] + span["dur"]:
                    now += nbytes
                    peak = max(peak, now)
            peaks[span["name"].removeprefix("phase ")] = peak
    return peaks


def metered_peaks(job: Job) -> dict[str, int]:
    gc.collect()
    peaks = {}

    @contextmanager
    def mark(name: str) -> Iterator[None]:
        meter.reset_peak()
        yield
        peaks[name] = meter.peak_allocated_bytes()

    with LiveBytes() as meter:
        job(mark)
    return peaks


def training(
    build: Callable[[], torch.nn.Module],
    loss_of: Callable[[Any], torch.Tensor],
    optimizer: dict[str, bool],
    bf16: bool = False,
    accumulate: int = 1,
) -> Job:
    def job(mark: Mark) -> Any:
        torch.manual_seed(0)
        with mark("load"):
            model = build()
            adamw = torch.optim.AdamW(model.parameters(), **optimizer)
        for step in range(2):
            for micro in range(accumulate):
                with mark(f"forward {step} {micro}"), torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    loss = loss_of(model)
                with mark(f"backward {step} {micro}"):
                    loss.backward()
            with mark(f"optimizer {step}"):
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                adamw.step()
                adamw.zero_grad()
                del loss
        return model, adamw

    return job


FUSED, FOREACH, PLAIN = {"fused": True}, {"foreach": True}, {"foreach": False, "fused": False}


def mlp_job(optimizer: dict[str, bool], checkpointed: bool = False) -> Job:
    def build() -> torch.nn.Module:
        linear, relu = torch.nn.Linear, torch.nn.ReLU
        return torch.nn.Sequential(linear(64, 256), relu(), linear(256, 256), torch.nn.GELU(), linear(256, 1000))

    def loss_of(model: Any) -> torch.Tensor:
        inputs, targets = torch.randn(128, 64), torch.randint(0, 1000, (128,))
        hidden = model[:2](inputs)
        logits = checkpoint(model[2:], hidden, use_reentrant=False) if checkpointed else model[2:](hidden)
        return torch.nn.functional.cross_entropy(logits, targets)

    return training(build, loss_of, optimizer)


def qwen2_job(optimizer: dict[str, bool], use_reentrant: bool | None = None, tied: bool = True, **options: Any) -> Job:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    def build() -> torch.nn.Module:
        model = Qwen2ForCausalLM(
            Qwen2Config(
                vocab_size=512, hidden_size=64, intermediate_size=192, num_hidden_layers=LAYERS, use_cache=False,
                num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=tied, attn_implementation="sdpa",
            )
        )  # fmt: skip
        if use_reentrant is not None:
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable({"use_reentrant": use_reentrant})
            model.enable_input_require_grads()
        return model.train()

    def loss_of(model: Any) -> torch.Tensor:
        tokens = torch.randint(0, 512, (4, 128))
        loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
        return loss

    return training(build, loss_of, optimizer, **options)


JOBS: dict[str, tuple[Callable[[], Job], int]] = {
    "mlp, fused AdamW": (lambda: mlp_job(FUSED), 0),
    "mlp, foreach AdamW": (lambda: mlp_job(FOREACH), 0),
    "mlp, plain AdamW": (lambda: mlp_job(PLAIN), 0),
    "mlp, checkpointed": (lambda: mlp_job(FUSED, checkpointed=True), 1),
    "qwen2, fused AdamW": (lambda: qwen2_job(FUSED), 0),
    "qwen2, foreach AdamW": (lambda: qwen2_job(FOREACH), 0),
    "qwen2, plain AdamW": (lambda: qwen2_job(PLAIN), 0),
    "qwen2, untied head, two micro-batches": (lambda: qwen2_job(FUSED, tied=False, accumulate=2), 0),
    "qwen2, bf16 autocast": (lambda: qwen2_job(FUSED, bf16=True), 0),
    "qwen2, checkpointed": (lambda: qwen2_job(FUSED, use_reentrant=False), LAYERS),
    "qwen2, checkpointed, reentrant": (lambda: qwen2_job(FUSED, use_reentrant=True), LAYERS),
    "qwen2, checkpointed, bf16 autocast": (lambda: qwen2_job(FUSED, use_reentrant=False, bf16=True), LAYERS),
}


@pytest.mark.parametrize("name", JOBS)
def test_every_phase_peaks_where_the_profiler_says(name: str, tmp_path: Path) -> None:
    make, rng_states = JOBS[name]
    job = make()
    job(lambda _: nullcontext())  # what is made once a process, such as cached attention masks
    expected, measured = profiled_peaks(job, tmp_path), metered_peaks(job)
    assert measured.keys() == expected.keys()
    missed = {phase: expected[phase] - measured[phase] for phase in expected}
    allowed = SCALARS_BYTES + rng_states * RNG_STATE_BYTES
    assert all(0 <= nbytes <= allowed for nbytes in missed.values()), missed
    assert max(measured.values()) == pytest.approx(max(expected.values()), rel=0.005)


def test_the_same_job_peaks_the_same_twice() -> None:
    job = mlp_job(FUSED, checkpointed=True)
    assert metered_peaks(job) == metered_peaks(job)


# --- where autograd goes out of place under a dispatch mode, and where it does not ------------------------------------


def weight() -> torch.Tensor:
    return torch.ones(256 * KIB, requires_grad=True)  # 1 MiB


def gradients_of_three_consumers_meet(mark: Mark) -> None:
    y = weight().exp()
    loss = (y * 2 + y * 3 + y * 4).sum()
    with mark("backward"):
        loss.backward()


def a_gather_spreads_its_gradient(mark: Mark) -> None:
    loss = weight().view(1024, 256).gather(1, torch.zeros(1024, 1, dtype=torch.long)).sum()
    with mark("backward"):
        loss.backward()


def an_index_spreads_its_gradient(mark: Mark) -> None:
    loss = weight()[torch.arange(64)].sum()
    with mark("backward"):
        loss.backward()


class AddsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        doubled = grads[0] * 2
        doubled = doubled + torch.ones(1)  # both are alive for a moment, with the mode and without
        return doubled


def a_custom_backward_adds(mark: Mark) -> None:
    loss = AddsInBackward.apply(weight()).sum()
    with mark("backward"):
        loss.backward()


def a_tied_weight_meets_itself(mark: Mark) -> None:
    shared = weight().view(512, 512)
    loss = (torch.nn.functional.embedding(torch.arange(8), shared) @ shared.t()).sum()
    with mark("backward"):
        loss.backward()


def a_gradient_meets_itself(mark: Mark) -> None:
    y = weight().view(512, 512)
    loss = (y + y).neg().sum()
    with mark("backward"):
        loss.backward()


def a_differentiable_backward_keeps_its_terms(mark: Mark) -> None:
    x = weight()
    y = x.view(512, 512)
    loss = (y * 2 + y * 3 + y * 4).sum()
    with mark("backward"):
        torch.autograd.grad(loss, x, create_graph=True)


def an_overwritten_index_takes_its_gradient_out(mark: Mark) -> None:
    loss = (weight().view(-1).index_put((torch.arange(64),), torch.zeros(64)) * 2).sum()
    with mark("backward"):
        loss.backward()


@pytest.mark.parametrize(
    "job",
    [
        gradients_of_three_consumers_meet,
        a_gather_spreads_its_gradient,
        an_index_spreads_its_gradient,
        a_custom_backward_adds,
        a_tied_weight_meets_itself,
        a_gradient_meets_itself,
        a_differentiable_backward_keeps_its_terms,
        an_overwritten_index_takes_its_gradient_out,
    ],
)
def test_backward_peaks_as_without_a_dispatch_mode(job: Job, tmp_path: Path) -> None:
    missed = profiled_peaks(job, tmp_path)["backward"] - metered_peaks(job)["backward"]
    assert 0 <= missed <= SCALARS_BYTES


def test_scratch_inside_a_kernel_is_not_seen(tmp_path: Path) -> None:
    def job(mark: Mark) -> None:
        logits = torch.ones(256, 1024)
        with mark("forward"), torch.no_grad():
            logits.logsumexp(-1)

    missed = profiled_peaks(job, tmp_path)["forward"] - metered_peaks(job)["forward"]
    assert missed == pytest.approx(256 * KIB * 4, rel=0.01)  # on the CPU, a copy of its whole input


# --- what counts, by hand ---------------------------------------------------------------------------------------------


def test_views_detached_tensors_and_in_place_results_share_their_storage() -> None:
    with LiveBytes() as meter:
        x = torch.zeros(100)
        kept = (x[10:], x.view(10, 10), x.detach(), x.add_(1), x.split(25), torch.nn.Parameter(x))
        assert meter.allocated_bytes() == 400
        del x
        assert meter.allocated_bytes() == 400
        del kept
        assert meter.allocated_bytes() == 0
    assert meter.peak_allocated_bytes() == 400


def test_a_peak_starts_anew_at_what_is_alive() -> None:
    with LiveBytes() as meter:
        x = torch.zeros(100)
        _ = x + x + x
        assert meter.peak_allocated_bytes() == 1200
        meter.reset_peak()
        assert meter.peak_allocated_bytes() == 800
        assert (meter.capacity_bytes(), meter.alloc_retries()) == (None, None)


def test_what_was_there_before_counts_from_its_first_use() -> None:
    model, weights = torch.nn.Linear(10, 10, bias=False), torch.ones(1, 10)
    array = torch.from_numpy(np.ones((1, 10), dtype=np.float32))
    with LiveBytes() as meter:
        assert meter.allocated_bytes() == 0
        model(array)
        assert meter.allocated_bytes() == 400 + 40
        torch.histogram(array, 4, weight=weights)
        assert meter.allocated_bytes() == 400 + 40 + 40
        _ = torch.tensor([1.0, 2.0])
        assert meter.allocated_bytes() == 400 + 40 + 40 + 8


def test_what_dies_after_the_mode_is_taken_off() -> None:
    with LiveBytes() as meter:
        x = torch.zeros(100)
    y = x + 1
    del x
    assert meter.allocated_bytes() == 0
    assert y.sum() == 100


def test_a_swap_of_data_frees_the_old_storage() -> None:
    with LiveBytes() as meter:
        parameter = torch.nn.Parameter(torch.zeros(100))
        parameter.data = parameter.data.to(torch.bfloat16)
        assert meter.allocated_bytes() == 200


def test_resized_storages_are_followed(tmp_path: Path) -> None:
    def job(mark: Mark) -> None:
        with mark("grow"):
            x = torch.zeros(100)
            x.untyped_storage().resize_(4000)
        with mark("free"):
            x.untyped_storage().resize_(0)
        with mark("regrow"):
            x.resize_(500)
        with mark("out"):
            torch.neg(torch.zeros(50), out=torch.empty(0))

    measured = metered_peaks(job)
    assert measured == profiled_peaks(job, tmp_path)
    assert measured == {"grow": 4400, "free": 4000, "regrow": 2000, "out": 2400}


def test_torch_resizes_its_own_way_again_after_the_last_mode() -> None:
    own = torch.UntypedStorage.resize_
    with LiveBytes(), LiveBytes():
        assert torch.UntypedStorage.resize_ is not own
    assert torch.UntypedStorage.resize_ is own


def test_other_devices_and_sparse_tensors_add_nothing() -> None:
    with LiveBytes() as meter:
        x = torch.zeros(1000, device="meta")
        _ = x + 1
        assert meter.allocated_bytes() == 0
        sparse = torch.eye(4).to_sparse()
        _ = sparse * 2
        assert meter.allocated_bytes() == 0
    with LiveBytes("meta") as meter:
        y = torch.zeros(1000, device="meta")
        assert meter.allocated_bytes() == y.nbytes


class Pair(torch.Tensor):
    """A wrapper subclass: it reports a shape and a size of its own, and holds two real tensors."""

    first: torch.Tensor
    second: torch.Tensor

    @staticmethod
    def __new__(cls, first: torch.Tensor, second: torch.Tensor) -> "Pair":
        pair: Pair = torch.Tensor._make_wrapper_subclass(cls, first.shape, dtype=first.dtype)
        pair.first, pair.second = first, second
        return pair

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["first", "second"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> "Pair":
        def on(part: str) -> torch.Tensor:
            result: torch.Tensor = func(*tree_map_only(Pair, lambda pair: getattr(pair, part), args), **(kwargs or {}))
            return result

        return cls(on("first"), on("second"))


def test_a_wrapper_subclass_counts_by_its_parts() -> None:
    outside = Pair(torch.zeros(100), torch.zeros(100))
    with LiveBytes() as meter:
        kept = outside + 1
        assert isinstance(kept, Pair)
        assert meter.allocated_bytes() == 4 * 400
        del kept
        assert meter.allocated_bytes() == 2 * 400


def test_a_subclass_with_data_of_its_own_counts_as_a_tensor() -> None:
    class Named(torch.Tensor): ...

    named = torch.zeros(100).as_subclass(Named)
    with LiveBytes() as meter:
        kept = named + 1
        assert isinstance(kept, Named)
        assert meter.allocated_bytes() == 800


def test_inference_mode_does_not_hide_temporaries(tmp_path: Path) -> None:
    def job(mark: Mark) -> None:
        with mark("forward"), torch.inference_mode():
            torch.nn.functional.cross_entropy(torch.ones(100, 100), torch.zeros(100, dtype=torch.long))

    assert metered_peaks(job)["forward"] == pytest.approx(profiled_peaks(job, tmp_path)["forward"], rel=0.01)


ACTIONS = st.sampled_from(["new", "add", "view", "in place", "clone", "drop", "stack", "detach"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(ACTIONS, st.integers(0, 99)), max_size=30))
def test_allocated_is_the_sum_of_the_storages_that_live_tensors_share(program: list[tuple[str, int]]) -> None:
    with LiveBytes() as meter:
        held = [torch.zeros(3)]
        for action, at in program:
            x = held[at % len(held)]
            if action == "drop" and len(held) > 1:
                held.pop(at % len(held))
            elif action != "drop":
                made = {
                    "new": lambda at=at: torch.zeros(at + 1),
                    "add": lambda x=x: x + 1,
                    "view": lambda x=x: x.flatten()[:2],
                    "in place": lambda x=x: x.mul_(2),
                    "clone": lambda x=x: x.clone(),
                    "stack": lambda x=x: torch.stack([x, x]),
                    "detach": lambda x=x: x.detach(),
                }[action]()
                held.append(made)
                del made
            del x
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in held}
        assert meter.allocated_bytes() == sum(storages.values())
