"""Quantised weights and optimizers with 8-bit state: built, predicted and confirmed. Sizes are found by hand.

The hand's rules are those of bitsandbytes: 4 bits a weight and a scale for each 64 of them, in fp32 or, quantised once
more, in one byte with an fp32 scale for each 256; int8 has one fp32 scale a row.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from sweeping import Swept, sweep

from memexp.plan import PlanError, load
from memexp.plan.plan import Plan
from memexp.run.build import build_config, build_model
from memexp.run.confirm import fallen_back
from memexp.run.quantize import quantization_config, random_quantized
from memexp.simulate import SimulatedGPU, prepare
from memexp.simulate.patches import PATCHES

prepare()
pytestmark = pytest.mark.filterwarnings("ignore:a float was read")  # bitsandbytes makes a list of its code's values
HIDDEN, MLP, KEYS, VOCAB, LAYERS = 512, 2048, 128, 4096, 2
# (outputs, inputs) of the linear layers of one decoder layer: q, k, v, o, gate, up, down.
LINEAR = [
    *((HIDDEN, HIDDEN), (KEYS, HIDDEN), (KEYS, HIDDEN), (HIDDEN, HIDDEN)),
    *((MLP, HIDDEN), (MLP, HIDDEN), (HIDDEN, MLP)),
]
NF4 = {"bits": 4, "quant_type": "nf4", "compute_dtype": "auto", "double_quant": True}
PLAIN_NF4, FP4, INT8 = {**NF4, "double_quant": False}, {**NF4, "quant_type": "fp4"}, {"bits": 8}
SHORT = ("max_length=32", "batch_size=2", "steps=1", "unmeasured_steps=1", "logger=none")
WORKSPACE = 8 * 2**20 + 128 * 1024  # cuBLAS on an A100: two of 4,096 KiB and eight of 16 KiB


def small_config(shrunk: int = 1) -> Any:
    """For the simulated card; shrunk for the CPU, which quantises slowly."""
    return transformers.AutoConfig.for_model(
        "mistral",
        vocab_size=VOCAB // shrunk,
        hidden_size=HIDDEN // shrunk,
        intermediate_size=MLP // shrunk,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=2,
        tie_word_embeddings=False,
    )


def quantized(fields: dict[str, Any], dtype: torch.dtype = torch.bfloat16, shrunk: int = 1) -> Any:
    config = quantization_config(fields, bf16=True)
    return random_quantized(transformers.AutoModelForCausalLM, small_config(shrunk), config, dtype=dtype)


def linear_bytes(fields: dict[str, Any], outputs: int, inputs: int) -> int:
    weights = outputs * inputs
    if fields["bits"] == 8:
        return weights + 4 * outputs
    table = 16 * 4
    if not fields["double_quant"]:
        return weights // 2 + weights // 64 * 4 + table
    scales, their_mean, their_table = weights // 64, 4, 256 * 4
    return weights // 2 + table + scales + scales // 256 * 4 + their_mean + their_table


@pytest.mark.parametrize("fields", [NF4, PLAIN_NF4, FP4, INT8], ids=["nf4", "nf4 plain scales", "fp4", "int8"])
def test_a_quantised_model_on_the_card_is_as_large_as_computed_by_hand(fields: dict[str, Any]) -> None:
    with SimulatedGPU("a100_40gb") as gpu:
        with torch.device(gpu.device):
            model = quantized(fields)
        embeddings, norms, rotary = 2 * VOCAB * HIDDEN * 2, (2 * LAYERS + 1) * HIDDEN * 2, 2 * 32 * 4
        shared_table = 256 * 4 if fields.get("double_quant") else 0
        layers = LAYERS * sum(linear_bytes(fields, *shape) for shape in LINEAR)
        stats = gpu.memory_stats()
        assert stats["requested_bytes.all.current"] == layers + embeddings + norms + rotary + shared_table
        del model


def test_no_more_than_one_layer_is_ever_there_in_full_precision() -> None:
    with SimulatedGPU("a100_40gb") as gpu:
        with torch.device(gpu.device):
            model = quantized(NF4)
        whole_layer = MLP * HIDDEN * 2
        assert gpu.max_memory_allocated() - gpu.memory_allocated() < 2 * whole_layer
        assert gpu.max_memory_allocated() < 2 * VOCAB * HIDDEN * 2 + LAYERS * sum(2 * o * i for o, i in LINEAR)
        del model


def layer_peaks(fields: dict[str, Any], tokens: int) -> tuple[int, int]:
    """Bytes that one product takes at its highest, forward and backward, beyond what was there before."""
    with SimulatedGPU("a100_40gb") as gpu:
        with torch.device(gpu.device):
            layer = quantized(fields).train().model.layers[0].mlp.up_proj
        hidden = torch.empty(tokens, HIDDEN, dtype=torch.bfloat16, device=gpu.device, requires_grad=True)
        gradient = torch.empty(tokens, MLP, dtype=torch.bfloat16, device=gpu.device)
        torch.mm(hidden.detach(), hidden.detach().t())  # takes the forward's workspace
        before = gpu.memory_allocated()
        gpu.reset_peak_memory_stats()
        out = layer(hidden)
        forward = gpu.max_memory_allocated() - before
        before = gpu.memory_allocated()
        gpu.reset_peak_memory_stats()
        out.backward(gradient)
        return forward, gpu.max_memory_allocated() - before


def test_a_large_product_of_4_bit_weights_turns_them_back_first() -> None:
    """Above 1,536 rows, the whole weight in bf16 and its scales in fp32: forward keeps them without their mean too."""
    forward, backward = layer_peaks(NF4, tokens=2048)
    weight, out, gradient, scales = MLP * HIDDEN * 2, 2048 * MLP * 2, 2048 * HIDDEN * 2, MLP * HIDDEN // 64 * 4
    assert forward == weight + out + 2 * scales
    assert backward == weight + gradient + WORKSPACE


def test_a_small_product_of_4_bit_weights_needs_no_room_for_them() -> None:
    forward, _ = layer_peaks(NF4, tokens=4)
    assert forward == 4 * MLP * 2


def test_a_product_of_int8_takes_its_sums_in_32_bits_and_the_result_twice() -> None:
    """Hidden states in int8 and a scale for each row; sums in int32; the result in fp16, then in bf16."""
    forward, backward = layer_peaks(INT8, tokens=2048)
    rows, out = 2048 * HIDDEN + 2048 * 4, 2048 * MLP
    assert forward == rows + 4 * out + 2 * out + 2 * out
    assert backward == MLP * HIDDEN * 2 + 2048 * HIDDEN * 2 + WORKSPACE


@pytest.mark.parametrize("paged", [False, True])
def test_8_bit_state_has_a_byte_a_moment_and_pages_lie_outside_of_the_allocator(paged: bool) -> None:
    """A scale for each 256 in fp32, for both moments, and two tables of 256; pages hold the moments alone."""
    import bitsandbytes

    AdamW: Any = vars(bitsandbytes.optim)["AdamW"]
    with SimulatedGPU("a100_40gb") as gpu:
        layer = torch.nn.Linear(1024, 2048, bias=False, device=gpu.device)
        optimizer = AdamW(layer.parameters(), optim_bits=8, is_paged=paged)
        layer.weight.grad = torch.empty_like(layer.weight)
        before = gpu.memory_stats()["requested_bytes.all.current"]
        optimizer.step()
        state = gpu.memory_stats()["requested_bytes.all.current"] - before
        weights = 1024 * 2048
        assert state == (0 if paged else 2 * weights) + 2 * weights // 256 * 4 + 2 * 256 * 4
        assert gpu.unknown_ops == {}


def test_two_simulations_in_one_process_share_no_tables() -> None:
    sizes = []
    for card in ("a100_40gb", "h100_80gb"):
        with SimulatedGPU(card) as gpu:
            with torch.device(gpu.device):
                model = quantized(NF4)
            sizes.append(gpu.memory_stats()["requested_bytes.all.current"])
            del model
    assert sizes[0] == sizes[1]


def test_every_operator_of_bitsandbytes_for_cuda_has_one_on_the_simulated_card() -> None:
    import re

    import bitsandbytes

    source = (Path(bitsandbytes.__file__).parent / "backends" / "cuda" / "ops.py").read_text()
    names = re.findall(r'register_kernel\("(bitsandbytes::[\w.]+)", "cuda"\)', source)
    with SimulatedGPU():
        has = [torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1") for name in names]
    assert len(names) > 10
    assert all(has)
    assert any(patch.module.startswith("bitsandbytes") for patch in PATCHES)


def test_random_weights_are_drawn_from_the_seed_with_the_models_own_spread() -> None:
    import bitsandbytes

    def built() -> Any:
        torch.manual_seed(0)
        return quantized(PLAIN_NF4, torch.float32, shrunk=4)

    first, second = built(), built()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    weight = first.model.layers[0].mlp.up_proj.weight
    values = bitsandbytes.functional.dequantize_4bit(weight.data, weight.quant_state)
    assert values.std().item() == pytest.approx(first.config.initializer_range, rel=0.05)
    assert first.model.rotary_emb.inv_freq[0] == 1.0


@pytest.mark.parametrize("fields", [NF4, INT8], ids=["nf4", "int8"])
def test_a_model_made_layer_by_layer_is_what_transformers_loads(fields: dict[str, Any], tmp_path: Path) -> None:
    transformers.AutoModelForCausalLM.from_config(small_config(shrunk=4)).save_pretrained(tmp_path)
    config = quantization_config(fields, bf16=True)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, quantization_config=config, dtype=torch.bfloat16
    )
    made = quantized(fields, shrunk=4)

    def shapes(model: Any) -> dict[str, Any]:
        # The last words of a 4-bit layer are text, as long as its numbers are.
        state = model.state_dict().items()
        return {name: (tuple(value.shape), value.dtype) for name, value in state if "bitsandbytes__" not in name}

    def kinds(model: Any) -> dict[str, Any]:
        return {name: (type(value), value.requires_grad) for name, value in model.named_parameters()}

    assert shapes(made) == shapes(loaded)
    assert kinds(made) == kinds(loaded)
    assert made.is_quantized and made.quantization_method == loaded.quantization_method
    assert (made.training, made.dtype) == (loaded.training, loaded.dtype)


def test_pretrained_weights_are_loaded_quantised(tmp_path: Path) -> None:
    import bitsandbytes

    plain = transformers.AutoModelForCausalLM.from_config(small_config(shrunk=4))
    plain.save_pretrained(tmp_path)
    plan = planned("quantization=nf4", "model.weights=pretrained", f"model.path={tmp_path}")
    model = build_model(plan, build_config(plan.work.model))
    name = "model.layers.1.mlp.down_proj.weight"
    expected, _ = bitsandbytes.functional.quantize_4bit(plain.get_parameter(name), quant_type="nf4")
    assert torch.equal(model.get_parameter(name).data, expected)


def planned(*overrides: str) -> Plan:
    return load("backend=cpu", "model=tiny", "peft=lora", *overrides)


@pytest.mark.parametrize("option", ["nf4", "int8"])
def test_quantised_weights_without_adapters_are_a_conflict(option: str) -> None:
    refusal = load("backend=simulate", f"quantization={option}").refusal
    assert refusal is not None and refusal.kind == "conflict"
    assert "Type peft=lora." in refusal.reason
    assert load("backend=simulate", f"quantization={option}", "peft=lora").refusal is None


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("quantization.quant_type=int4", "choose one of nf4, fp4"),
        ("quantization.compute_dtype=fp8", "choose one of auto, bfloat16, float16, float32"),
        ("quantization.double_quant=2", "true or false"),
    ],
)
def test_a_wrong_field_says_what_it_may_be(typed: str, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        planned("quantization=nf4", typed)


def test_arithmetic_in_bf16_computes_4_bit_products_in_bf16() -> None:
    assert quantization_config(NF4, bf16=True).bnb_4bit_compute_dtype == torch.bfloat16
    assert quantization_config(NF4, bf16=False).bnb_4bit_compute_dtype == torch.float32
    assert quantization_config({**NF4, "compute_dtype": "float16"}, bf16=True).bnb_4bit_compute_dtype == torch.float16


def test_weights_that_were_not_quantised_are_named() -> None:
    plan = planned("quantization=nf4")
    assert "quantization=nf4" in fallen_back(plan, {"quantization": "none"})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, warm_cells: None) -> Swept:
    axes = ("quantization=none,nf4,int8", "optimizer=adamw_fused,adamw_8bit")
    return sweep(tmp_path_factory.mktemp("trained"), "-m", *SHORT, *axes, "peft=lora")


def test_quantised_weights_train_on_the_cpu_and_are_counted(trained: Swept) -> None:
    """The tiny model: 2 layers of q 64 x 64, k and v 32 x 64, o 64 x 64, and three of 64 x 128."""
    count = 2 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 128)
    for record in trained.records:
        assert record["status"] == "ok"
        option, effective = record["choices"]["quantization"], record["effective"]
        assert effective["quantization"] == option
        assert effective["quantized_parameters"] == (0 if option == "none" else count)
        assert effective["parameters"] == 336_448 + effective["trainable_parameters"]
        assert all(loss > 0 for loss in record["loss"]["per_step"])
        assert "quantization" not in " ".join(effective["fell_back"])


def test_8_bit_state_is_looked_for_in_the_state_itself(trained: Swept) -> None:
    """bitsandbytes keeps the moments of weights below 4,096 in fp32: of these small adapters all of them."""
    for record in trained.records:
        asked = record["choices"]["optimizer"] == "adamw_8bit"
        assert record["effective"]["fell_back"] == (["optimizer=adamw_8bit"] if asked else [])


def test_8_bit_state_of_a_whole_model_is_confirmed(tmp_path: Path, warm_cells: None) -> None:
    (record,) = sweep(tmp_path, *SHORT, "optimizer=adamw_8bit").records
    assert record["status"] == "ok"
    assert record["effective"]["optimizer_moments_dtype"] == "uint8"
    assert record["effective"]["fell_back"] == []


def test_the_cast_of_every_int8_product_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    from bitsandbytes.autograd import _functions

    quantization_config(INT8, bf16=True)
    quantization_config(INT8, bf16=True)
    for _ in range(3):
        _functions.logger.warning("MatMul8bitLt: inputs will be cast from %s to float16", "a dtype of this test")
    assert [record.getMessage() for record in caplog.records].count(
        "MatMul8bitLt: inputs will be cast from a dtype of this test to float16"
    ) == 1


def test_a_bias_that_bitsandbytes_casts_is_no_precision_that_fell_back(tmp_path: Path, warm_cells: None) -> None:
    """Qwen2 has biases, and bitsandbytes 0.50's Linear4bit.forward takes them to the dtype of its input."""
    job = ("backend=simulate", "model=tiny", "precision=bf16", "peft=lora", "quantization=nf4")
    (record,) = sweep(tmp_path, *SHORT, *job).records
    assert record["effective"]["weights_dtype"] == "float32"
    assert record["effective"]["fell_back"] == []
