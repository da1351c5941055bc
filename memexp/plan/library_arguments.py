"""What a plan's fields are as arguments of transformers, bitsandbytes and PEFT: plain data, and none of them imported.

A cell calls the libraries with it, and the code to paste is written from it, so that both say the same.
"""

from collections.abc import Mapping
from typing import Any

from memexp.plan.plan import Work

# What a model is for, by PEFT's name for it, to the class of transformers that builds it.
MODEL_CLASSES = {"CAUSAL_LM": "AutoModelForCausalLM", "SEQ_CLS": "AutoModelForSequenceClassification"}


def head_arguments(task: str) -> dict[str, Any]:
    """What the config says of the model's head: a classifier's one label is the reward."""
    return {"num_labels": 1} if task == "SEQ_CLS" else {}


def bitsandbytes_arguments(fields: Mapping[str, Any], bf16: bool) -> dict[str, Any]:
    """Those of a BitsAndBytesConfig. `fields` are a plan's `quantization`: `bits`, and for 4 the others of its file.

    `bf16` is whether the trainer's arithmetic is bf16, which `auto` stands for: transformers' own default for 4 bits
    computes in fp32, whatever the trainer does.
    """
    if fields["bits"] == 8:
        return {"load_in_8bit": True}
    compute = fields["compute_dtype"]
    return {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": fields["quant_type"],
        "bnb_4bit_use_double_quant": fields["double_quant"],
        "bnb_4bit_compute_dtype": ("bfloat16" if bf16 else "float32") if compute == "auto" else compute,
    }


def lora_arguments(work: Work) -> dict[str, Any] | None:
    """Those of a LoraConfig; None where no adapter is trained."""
    if work.peft is None:
        return None
    modules = work.peft["target_modules"]
    # PEFT reads a bare string as a pattern for whole names; a user means one of the layers of that name.
    if isinstance(modules, str) and modules != "all-linear":
        modules = [modules]
    return {"task_type": work.trainer.task, **work.peft, "target_modules": modules}
