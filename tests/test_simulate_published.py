"""Predictions against peaks that others measured on real cards: fms-acceleration's rows for one A100 of 80 GB.

Its LoRA rows (trl 0.13, transformers 4.48) predate TRL's fused loss, so that the loss of that version is rebuilt here:
it upcast the logits and then copied them once more, shifted by a token. Full-size models, in seconds.
"""

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model

from memexp.simulate import SimulatedGPU, prepare

prepare()
GIB, LENGTH = 1 << 30, 4096
MISTRAL_7B = transformers.MistralConfig(num_key_value_heads=8, vocab_size=32000, sliding_window=None)


def loss_of_transformers_4_48(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    upcast = logits.float()
    shifted = upcast[..., :-1, :].contiguous()
    return torch.nn.functional.cross_entropy(shifted.view(-1, shifted.shape[-1]), labels[..., 1:].reshape(-1))


def build(gpu: SimulatedGPU) -> transformers.PreTrainedModel:
    with torch.device(gpu.device):
        model = transformers.AutoModelForCausalLM.from_config(
            MISTRAL_7B, dtype=torch.bfloat16, attn_implementation="flash_attention_2"
        )
    model.config.use_cache = False
    model.activation_checkpointing_enable()
    return model  # type: ignore[no-any-return]


def train(gpu: SimulatedGPU, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: int) -> float:
    """The peak of two steps in GiB."""
    ids = torch.zeros(batch, LENGTH, dtype=torch.int64, device=gpu.device)
    for _ in range(2):
        with torch.autocast(gpu.device.type, dtype=torch.bfloat16):
            outputs = model(input_ids=ids)
            loss = loss_of_transformers_4_48(outputs.logits, ids)
        loss.backward()
        del loss, outputs
        optimizer.step()
        optimizer.zero_grad()
    return gpu.max_memory_allocated() / GIB


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning")  # PEFT asks for it
@pytest.mark.parametrize(("batch", "published"), [(4, 24.9), (8, 36.1)])
def test_mistral_7b_with_lora(batch: int, published: float) -> None:
    with SimulatedGPU("a100_80gb") as gpu:
        model = build(gpu)
        model.enable_input_require_grads()
        lora = LoraConfig(task_type="CAUSAL_LM", r=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
        adapted = get_peft_model(model, lora)
        trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
        peak = train(gpu, adapted, torch.optim.AdamW(trained, fused=True), batch)

    assert peak == pytest.approx(published, rel=0.01)


def test_mistral_7b_in_full() -> None:
    """The optimizer sets the peak: weights, gradients, two states and foreach's temporaries, of 13.5 GiB each."""
    with SimulatedGPU("a100_80gb") as gpu:
        model = build(gpu)
        peak = train(gpu, model, torch.optim.AdamW(model.parameters(), foreach=True), 4)
    assert peak == pytest.approx(67.5, rel=0.01)
    assert gpu.peak_categories["optimizer"] > 0.55 * peak * GIB


def test_it_does_not_fit_a_card_of_40_gb() -> None:
    with SimulatedGPU("a100_40gb") as gpu:
        model = build(gpu)
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            train(gpu, model, torch.optim.AdamW(model.parameters(), foreach=True), 4)
        assert gpu.memory_reserved() <= gpu.capacity_bytes
