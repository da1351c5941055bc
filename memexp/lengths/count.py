"""The worker of `memexp lengths`: tokenise with TRL, cut and pack with TRL, and write the figures as JSON.

    python -m memexp.lengths.count plan.json request.json answer.json

The rows are judged as a run judges them. No weights are read: TRL tokenises in its trainer's constructor, which is
given the smallest model that there is.
"""

import copy
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import transformers

from memexp.lengths.shares import shares
from memexp.plan.plan import Plan
from memexp.run.build import build_args, build_config, build_tokenizer, build_trainer, trainer_class
from memexp.run.data import load_data
from memexp.run.refusal import Refused
from memexp.run.row_lengths import row_lengths
from memexp.run.tokens_cache import TokensCache


def main(plan_path: str, request_path: str, answer_path: str) -> int:
    """Write `{"lengths": [[tokens, rows], …], "cuts": […]}`, or `{"refused": reason}` where the data cannot be used."""
    datasets.disable_progress_bars()
    plan = Plan.read(Path(plan_path))
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    try:
        lengths = token_lengths(plan, Path(request["cache"]))
        max_lengths = request["max_lengths"] or usual_max_lengths(lengths)
        answer: dict[str, Any] = {
            "lengths": sorted(Counter(lengths).items()),
            "cuts": [shares(lengths, length, request["batch_sizes"]) for length in max_lengths],
        }
    except Refused as refusal:
        answer = {"refused": str(refusal)}
    Path(answer_path).write_text(json.dumps(answer), encoding="utf-8")
    return 0


def token_lengths(plan: Plan, cache_folder: Path) -> list[int]:
    """Tokens of each row in the data's order, nothing cut. Raises Refused for data that a run would refuse."""
    vocab_size = build_config(plan.work.model).get_text_config().vocab_size
    cache = TokensCache(cache_folder, plan, vocab_size)
    rows = cache.read()
    if rows is None:
        tokenizer = build_tokenizer(plan)
        rows = _tokenise(plan, load_data(plan, vocab_size, tokenizer), tokenizer)
        cache.write(rows)
    lengths = row_lengths(rows)
    if not any(lengths):
        raise Refused("invalid_data", "no row has a token.")
    return lengths


def usual_max_lengths(lengths: list[int]) -> list[int]:
    """Powers of two from the one that holds half of the rows to the one that holds every row, the last six of them."""
    ordered = sorted(lengths)
    first, last = (max(length, 2) for length in (ordered[len(ordered) // 2], ordered[-1]))
    exponents = range((first - 1).bit_length(), (last - 1).bit_length() + 1)
    return [2**exponent for exponent in exponents][-6:]


def _tokenise(plan: Plan, rows: datasets.Dataset, tokenizer: Any) -> datasets.Dataset:
    tokenised: list[datasets.Dataset] = []
    base: Any = trainer_class(plan)

    class Tokenising(base):  # type: ignore[misc]
        def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, packing: bool, *rest: Any) -> Any:
            if {"input_ids", "labels"} <= set(dataset.column_names):
                tokenised.append(dataset)
                return dataset
            whole = copy.copy(args)
            whole.max_length = None
            tokenised.append(super()._prepare_dataset(dataset, processing_class, whole, False, *rest))
            return tokenised[-1]

    Tokenising.__name__ = base.__name__
    smallest = transformers.Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
    )
    model = transformers.AutoModelForCausalLM.from_config(smallest)
    with tempfile.TemporaryDirectory(prefix="memexp-") as scratch:
        build_trainer(plan, Tokenising, model, build_args(plan, Path(scratch)), rows, tokenizer)
    return tokenised[0]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
