"""Writes memexp/assets/tokenizer/: a byte-level BPE of 4,096 tokens from docstrings.jsonl, and its ChatML template.

Run once by a maintainer, each time that the docstrings change; needs the `tokenizers` package alone:

    python tools/train_tokenizer.py

The same text and the same version of `tokenizers` write the same bytes. There is no normalizer and no unknown token, so
that decoding gives back any text as it was.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ASSETS = Path(__file__).parents[1] / "memexp" / "assets"
VOCAB_SIZE = 4_096
PAD, START, END, END_OF_TEXT = SPECIAL_TOKENS = ["<|pad|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"]

# `generation` marks what TRL's assistant_only_loss trains on. The end of the turn is inside: a model that is never
# trained to end its turn does not stop.
CHAT_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' }}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}
            {{- message['content'] + '<|im_end|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- message['content'] + '<|im_end|>' }}
    {%- endif %}
    {{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# Padding differs from the end of a turn: where they are one token, a trainer that masks padding masks the end too.
CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": None,
    "eos_token": END,
    "pad_token": PAD,
    "additional_special_tokens": [START, END_OF_TEXT],
    "clean_up_tokenization_spaces": False,
}


def main() -> None:
    folder = ASSETS / "tokenizer"
    folder.mkdir(exist_ok=True)
    trained(training_text(ASSETS / "docstrings.jsonl")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(CONFIG, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    for path in sorted(folder.iterdir()):
        print(f"{path.name}: {path.stat().st_size:,} bytes")


def trained(texts: Iterator[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def training_text(path: Path) -> Iterator[str]:
    """What the chat template will render, without its special tokens: each role and each content."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            for message in json.loads(line)["messages"]:
                yield message["role"]
                yield message["content"]


if __name__ == "__main__":
    main()
