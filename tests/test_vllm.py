"""What vLLM is given and what is read from it, as far as that shows without a GPU."""

from pathlib import Path
from types import SimpleNamespace

import torch

from memexp.plan import load
from memexp.plan.plan import Plan
from memexp.run.build import build_config, build_model, build_tokenizer
from memexp.run.vllm import keep_weights_for_vllm, vllm_settings


def planned(*overrides: str) -> Plan:
    return load("backend=cpu", "trainer=grpo", "batch_size=4", *overrides)


def test_random_weights_are_kept_where_vllm_reads_them(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    plan = planned("vllm_sleep=true")
    model, tokenizer = build_model(plan, build_config(plan.work.model)), build_tokenizer(plan)
    keep_weights_for_vllm(plan, model, tokenizer, tmp_path)
    kept = AutoModelForCausalLM.from_pretrained(model.name_or_path, dtype=torch.float32)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(model.parameters(), kept.parameters(), strict=True))
    assert AutoTokenizer.from_pretrained(model.name_or_path)("a word") == tokenizer("a word")


def test_without_vllm_nothing_is_written(tmp_path: Path) -> None:
    plan = planned()
    model = build_model(plan, build_config(plan.work.model))
    keep_weights_for_vllm(plan, model, build_tokenizer(plan), tmp_path)
    assert not list(tmp_path.iterdir())


def test_sleep_is_what_the_engine_has_and_nothing_where_there_is_none() -> None:
    # The attributes of vLLM 0.22 to 0.31: LLM.llm_engine.vllm_config.model_config.enable_sleep_mode.
    def engine(sleeps: bool) -> SimpleNamespace:
        model_config = SimpleNamespace(enable_sleep_mode=sleeps)
        return SimpleNamespace(llm_engine=SimpleNamespace(vllm_config=SimpleNamespace(model_config=model_config)))

    grpo, online_dpo = (
        SimpleNamespace(vllm_generation=SimpleNamespace(llm=engine(True))),
        SimpleNamespace(llm=engine(False)),
    )
    assert vllm_settings(grpo) == {"vllm_sleep": True}
    assert vllm_settings(online_dpo) == {"vllm_sleep": False}
    assert vllm_settings(SimpleNamespace()) == {}
