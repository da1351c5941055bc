"""Jobs that others measured on other stacks, rebuilt op by op from their code, to run on a simulated GPU.

What differs from memexp's own jobs is what those stacks did at the time: which version's loss, whose adapters, what is
fused. Each function names what it was read from. Two steps are run, and the second one's rate is told.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch.nn.functional import cross_entropy, dropout, rms_norm, silu
from trl.kernels.chunked_logprob import ChunkedLogProbFunction

from memexp.plan import load
from memexp.simulate import SimulatedGPU
from memexp.simulate.cards import card_named

LENGTH = 4096
# Version 0.1: a vocabulary of 32,000, where `model=mistral_7b` has 32,768.
MISTRAL_7B = transformers.MistralConfig(num_key_value_heads=8, vocab_size=32000, sliding_window=None)
Loss = Callable[[Any, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Figures:
    """What one prediction says."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    tokens_per_second: float


def mistral_lora(batch: int) -> Figures:
    """fms-acceleration's `standard-peft`: bf16 without autocast, PEFT's fp32 adapters of rank 16 on q, k, v and o with
    dropout 0.1, every layer checkpointed, flash attention (scripts/benchmarks: scenarios.yaml, defaults.yaml).
    """
    with SimulatedGPU("a100_80gb") as gpu:
        with torch.device(gpu.device):
            model = transformers.AutoModelForCausalLM.from_config(
                MISTRAL_7B, dtype=torch.bfloat16, attn_implementation="flash_attention_2"
            )
        _checkpointed(model)
        model.enable_input_require_grads()
        projections = ["q_proj", "k_proj", "v_proj", "o_proj"]
        lora = LoraConfig(task_type="CAUSAL_LM", r=16, lora_alpha=16, lora_dropout=0.1, target_modules=projections)
        adapted = get_peft_model(model, lora).train()
        return train(gpu, adapted, lambda _, ids: loss_of_transformers_4_48(model, ids), batch, LENGTH, autocast=False)


def automodel_lora(model: str, adapter_dropout: float) -> Figures:
    """NeMo Automodel's LoRA benchmark on one H100, as of December 2025 when its figures were published: bf16 without
    autocast, bf16 adapters of rank 16 on every linear layer but the head, gate and up in one product, RMSNorm as one
    kernel, the logits upcast for the loss, nothing checkpointed. Its two recipes differ in dropout. Left out: that q, k
    and v are one product there. (examples/llm_finetune: *_peft_benchmark.yaml; components/_peft/lora.py.)
    """
    settings = load(f"model={model}", "backend=simulate").work.model
    config = transformers.AutoConfig.for_model(settings.model_type, **settings.config)
    # Only time is asked for, and this rebuilding needs a little more than the 80 GB that were enough for the original.
    card = replace(card_named("h100_80gb"), memory_bytes=card_named("h200_141gb").memory_bytes)
    with SimulatedGPU(card) as gpu:
        with torch.device(gpu.device):
            built = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        built.config.use_cache = False
        built.requires_grad_(False)
        for layer in built.model.layers:
            _as_automodel(layer, adapter_dropout)
        _fuse_norm(built.model.norm)
        return train(gpu, built.train(), upcast_loss, 2, LENGTH, autocast=False)


def qwen_with_loss(loss: Loss, layers: int = 28) -> Figures:
    """Qwen3-1.7B with fp32 weights under bf16 autocast, trained whole, in TRL's default batch of 8 rows of 1,024."""
    config = transformers.AutoConfig.for_model(
        "qwen3", **{**load("model=qwen3_1_7b", "backend=simulate").work.model.config, "num_hidden_layers": layers}
    )
    with SimulatedGPU("h100_80gb") as gpu:
        with torch.device(gpu.device):
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        _checkpointed(model)
        return train(gpu, model, loss, 8, 1024)


def loss_of_transformers_4_48(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """It upcast the logits and then copied them once more, shifted by a token, all while it held the hidden states."""
    hidden = model.model(input_ids=ids).last_hidden_state
    logits = model.lm_head(hidden)
    upcast = logits.float()
    shifted = upcast[..., :-1, :].contiguous()
    return cross_entropy(shifted.view(-1, shifted.shape[-1]), ids[..., 1:].reshape(-1))


def upcast_loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Automodel's `MaskedCrossEntropy`."""
    logits = model(input_ids=ids).logits
    return cross_entropy(logits.view(-1, logits.shape[-1]).float(), ids.view(-1))


def plain_loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """transformers' own, on the logits of all tokens."""
    loss: torch.Tensor = model(input_ids=ids, labels=ids).loss
    return loss


def fused_loss(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """TRL's, which never has all logits at once."""
    hidden = model.model(input_ids=ids).last_hidden_state[:, :-1].reshape(-1, model.config.hidden_size)
    targets = ids[:, 1:].reshape(-1)
    kernel = ChunkedLogProbFunction.apply
    log_probabilities: torch.Tensor = kernel(hidden, model.lm_head.weight, None, targets, 1.0, 8192)[0]
    return -log_probabilities.mean()


def train(
    gpu: SimulatedGPU, model: torch.nn.Module, loss_of: Loss, batch: int, length: int, autocast: bool = True
) -> Figures:
    """Two steps with fused AdamW, under bf16 autocast or without."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)
    ids = torch.zeros(batch, length, dtype=torch.int64, device=gpu.device)
    began = 0.0
    for _ in range(2):
        began = gpu.elapsed_seconds
        with torch.autocast(gpu.device.type, dtype=torch.bfloat16, enabled=autocast):
            loss = loss_of(model, ids)
        loss.backward()  # type: ignore[no-untyped-call]
        del loss
        optimizer.step()
        optimizer.zero_grad()
    rate = batch * length / (gpu.elapsed_seconds - began)
    return Figures(gpu.max_memory_allocated(), gpu.max_memory_reserved(), rate)


class Adapted(torch.nn.Module):
    """A linear layer and its adapter, scaled where it is narrow, with dropout on what it adds."""

    def __init__(self, base: torch.nn.Linear, dropout_share: float) -> None:
        super().__init__()
        make: dict[str, Any] = {"bias": False, "dtype": base.weight.dtype, "device": base.weight.device}
        self.base, self.dropout_share = base, dropout_share
        self.lora_a = torch.nn.Linear(base.in_features, 16, **make)
        self.lora_b = torch.nn.Linear(16, base.out_features, **make)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added = self.lora_b(self.lora_a(x) * 2.0)
        if self.dropout_share:
            added = dropout(added, self.dropout_share)
        result: torch.Tensor = self.base(x) + added
        return result


class GateAndUp(torch.nn.Module):
    """The feed-forward part with both of its first projections as one product."""

    def __init__(self, mlp: Any, dropout_share: float) -> None:
        super().__init__()
        weight = mlp.gate_proj.weight
        make: dict[str, Any] = {"bias": False, "dtype": weight.dtype, "device": weight.device}
        joint = torch.nn.Linear(weight.shape[1], 2 * weight.shape[0], **make).requires_grad_(False)
        self.gate_up, self.down = Adapted(joint, dropout_share), Adapted(mlp.down_proj, dropout_share)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        result: torch.Tensor = self.down(silu(gate) * up)
        return result


def _as_automodel(layer: Any, dropout_share: float) -> None:
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        setattr(layer.self_attn, name, Adapted(getattr(layer.self_attn, name), dropout_share))
    layer.mlp = GateAndUp(layer.mlp, dropout_share)
    _fuse_norm(layer.input_layernorm)
    _fuse_norm(layer.post_attention_layernorm)


def _fuse_norm(norm: Any) -> None:
    norm.forward = lambda x: rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)


def _checkpointed(model: Any) -> None:
    model.config.use_cache = False
    model.activation_checkpointing_enable()
