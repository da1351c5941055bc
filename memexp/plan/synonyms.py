"""What other tools and habits call things: what was typed, and what to type here. Data alone; typos are elsewhere."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

# A key and a value as patterns of a shell, both in small letters, and what to type, `{value}` being as typed.
_INSTEAD = (
    ("lr", "*", "learning_rate={value}"),
    ("bs", "*", "batch_size={value}"),
    ("bsz", "*", "batch_size={value}"),
    ("micro_batch_size", "*", "batch_size={value}"),
    ("grad_accum*", "*", "gradient_accumulation={value}"),
    ("seq_len*", "*", "max_length={value}"),
    ("max_seq_len*", "*", "max_length={value}"),
    ("epochs", "*", "budget.epochs={value}"),
    ("dtype", "*", "precision=bf16"),
    ("dataset", "*", "data=jsonl data.path=FILE, or data=hub data.path=ORG/NAME"),
    ("load_in_4bit", "*", "quantization=nf4 peft=lora"),
    ("load_in_8bit", "*", "quantization=int8 peft=lora"),
    ("flash_attention", "3", "attention=flash_attention_3"),
    ("flash_att*", "*", "attention=flash_attention_2"),
    ("attn_implementation", "*", "attention={value}"),
    ("attention", "flash", "attention=flash_attention_2"),
    ("attention", "flash2", "attention=flash_attention_2"),
    ("attention", "2", "attention=flash_attention_2"),
    ("peft", "qlora", "peft=lora quantization=nf4"),
    ("quantization", "4*", "quantization=nf4 peft=lora"),
    ("quantization", "8*", "quantization=int8 peft=lora"),
    ("model", "*/*", "model=own model.path={value}"),
    ("data", "*.json*", "data=jsonl data.path={value}"),
    ("data", "*/*", "data=hub data.path={value}"),
)
# What is said for on and off; the first that is an option of the group is meant.
_ON_AND_OFF = {
    **dict.fromkeys(("yes", "on", "1"), ("true",)),
    **dict.fromkeys(("no", "off", "0", "false"), ("false", "none")),
}


def instead_of(key: str, value: str, groups: Mapping[str, Sequence[str]]) -> str | None:
    """What to type for `key=value`, which memexp does not have; None where the words are nobody's."""
    for keys, values, instead in _INSTEAD:
        if fnmatchcase(key.lower(), keys) and fnmatchcase(value.lower(), values):
            return instead.format(value=value)
    meant = [word for word in _ON_AND_OFF.get(value.lower(), ()) if word in groups.get(key, ())]
    return f"{key}={meant[0]}" if meant else None
