"""vLLM in the trainer's own process (colocate): what it must be given, and whether its sleep mode is on.

vLLM builds a model of its own from a folder, and TRL copies the trainer's weights into it before it samples.
"""

from pathlib import Path
from typing import Any

from memexp.plan.plan import Plan


def keep_weights_for_vllm(plan: Plan, model: Any, tokenizer: Any, scratch: Path) -> None:
    """Give a model of random weights a folder, and the name of it, from which vLLM reads the shapes."""
    if not plan.work.trainer.args.get("use_vllm") or plan.work.model.weights != "random":
        return
    folder = scratch / "weights"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    model.name_or_path = str(folder)  # trl 1.16, VLLMGeneration: LLM(model=model.name_or_path)


def vllm_settings(trainer: Any) -> dict[str, Any]:
    """`vllm_sleep` as the running engine has it; nothing where no engine runs."""
    # trl 1.16: GRPO and RLOO have it in an object of its own, OnlineDPO has it itself.
    engine = getattr(getattr(trainer, "vllm_generation", trainer), "llm", None)
    if engine is None:
        return {}
    return {"vllm_sleep": bool(engine.llm_engine.vllm_config.model_config.enable_sleep_mode)}
