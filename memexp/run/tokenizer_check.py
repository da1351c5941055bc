"""Whether the tokenizer can do what the rows and the trainer ask of it. A pretrained model brings its own."""

from typing import Any

import datasets

from memexp.plan.plan import Plan
from memexp.run.refusal import Refused


def check_tokenizer(tokenizer: Any, rows: datasets.Dataset, plan: Plan) -> None:
    """Raise Refused (invalid_data) where TRL would raise in the middle of its own code."""
    args, path = plan.work.trainer.args, plan.work.model.path
    column = next(
        name for name in ("messages", "prompt", "chosen", "text", *rows.column_names) if name in rows.features
    )
    value = rows[0][column]
    conversation = isinstance(value, list) and bool(value) and isinstance(value[0], dict)
    where = f"data={plan.work.data['kind']}, row 1, column {column}"
    if conversation and tokenizer.chat_template is None and not args.get("chat_template_path"):
        raise Refused(
            "invalid_data",
            f"{where}: it is a conversation, and the tokenizer of model.path={path} has no chat template. Give text "
            "rows, or a tokenizer with a template.",
        )
    tokenised = column in ("input_ids", "chosen_ids")
    ends = tokenizer.eos_token is not None or args.get("eos_token")
    if not ends and (not tokenised or (tokenizer.pad_token is None and not args.get("pad_token"))):
        raise Refused(
            "invalid_data",
            f"{where}: TRL ends a row with the tokenizer's eos_token, and the tokenizer of model.path={path} has none. "
            "Give a tokenizer that has one.",
        )
