"""Predictions against peaks that others measured on real cards. `make published` prints them all, speeds included.

fms-acceleration's rows are for one A100 of 80 GB; full-size models, in seconds.
"""

from pathlib import Path

import pytest
import torch
import transformers
from sweeping import sweep

from memexp.simulate import SimulatedGPU, prepare
from tools.published import FULL, GIB
from tools.rebuilt import MISTRAL_7B, automodel_lora, fused_loss, mistral_lora, plain_loss, qwen_with_loss

prepare()


@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.* is deprecated:FutureWarning")  # PEFT asks for it
@pytest.mark.parametrize(("batch", "published_bytes", "tokens_per_second"), [(8, 38_742_912_512, 3_354)])
def test_mistral_7b_with_lora(batch: int, published_bytes: int, tokens_per_second: float) -> None:
    """Allocated to a ten-thousandth; the rate is a prediction, calibrated on another card."""
    figures = mistral_lora(batch)
    assert figures.peak_allocated_bytes == pytest.approx(published_bytes, rel=1e-4)
    assert figures.tokens_per_second == pytest.approx(tokens_per_second, rel=0.10)


@pytest.mark.usefixtures("warm_cells")
def test_mistral_7b_in_full(tmp_path: Path) -> None:
    """The optimizer sets the peak: weights, gradients, two states and foreach's temporaries, of 13.5 GiB each."""
    found = sweep(tmp_path, "-m", "batch_size=4,8", *FULL, "steps=1", "unmeasured_steps=0").records
    assert [record["status"] for record in found] == ["ok", "ok"]
    for record in found:
        memory = record["memory"]
        assert memory["peak_allocated_bytes"] / GIB == pytest.approx(67.5, rel=0.01)
        assert memory["peak_phase"] == "optimizer"


@pytest.mark.parametrize(
    ("model", "dropout", "tokens_per_second"), [("qwen2_5_7b", 0.0, 14_110), ("llama3_1_8b", 0.1, 12_473)]
)
def test_the_share_of_products_is_calibrated_on_automodels_rows(
    model: str, dropout: float, tokens_per_second: float
) -> None:
    assert automodel_lora(model, dropout).tokens_per_second == pytest.approx(tokens_per_second, rel=0.02)


def test_a_fused_loss_takes_less_than_plain_logits() -> None:
    """Published is -33% for Qwen3-1.7B, with no word on the batch: no more than the direction can be held to it."""
    plain, fused = (qwen_with_loss(loss, layers=4).peak_allocated_bytes for loss in (plain_loss, fused_loss))
    assert fused < 0.8 * plain


def test_a_model_that_needs_more_than_40_gb_does_not_fit_a_card_of_40_gb() -> None:
    with SimulatedGPU("a100_40gb") as gpu:
        with torch.device(gpu.device):
            model = transformers.AutoModelForCausalLM.from_config(MISTRAL_7B, dtype=torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        for parameter in model.parameters():
            parameter.grad = torch.empty_like(parameter)
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            optimizer.step()
        assert gpu.memory_reserved() <= gpu.capacity_bytes
