"""The part of a script that has the rows: the user's own, or those that ship, made into what the trainer takes.

How a cell made pairs or prompts of documents is quoted, so that the script trains on the same rows.
"""

import textwrap
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import memexp
from memexp.plan.length_distributions import length_distribution
from memexp.plan.plan import Plan
from memexp.run import made_rows
from memexp.script.python import comment, literal, quoted

ASSETS = Path(memexp.__file__).parent / "assets"
YOURS = "  # <- yours"
_ROWS = {
    "documents": "one JSON object a line, with messages, text, prompt and completion, or input_ids",
    "pairs": "one JSON object a line, with prompt, chosen and rejected",
    "prompts": "one JSON object a line, with prompt",
}
_DOCUMENTS = "one JSON object a line, with messages, prompt and completion, or text"
_MADE_BY: dict[str, tuple[Callable[..., Any], ...]] = {
    "pairs": (made_rows.cut_in_two, made_rows.with_words_reversed, made_rows.pairs),
    "prompts": (made_rows.cut_in_two,),
}
_MOST_WORDS = 512


def are_made(plan: Plan, notes: tuple[str, ...]) -> bool:
    """Whether the cell made its rows from documents. `notes` are those of its record, which say so of a user's file."""
    kind = plan.work.trainer.rows
    return kind != "documents" and (
        plan.work.data["kind"] in ("docstrings", "lengths") or made_rows.MADE[kind] in notes
    )


def imports(plan: Plan, made: bool) -> tuple[list[str], str]:
    """What the lines of `rows` need of the standard library, and the line that imports from datasets."""
    lengths = plan.work.data["kind"] == "lengths"
    classes = [*(["Dataset"] if made or lengths else []), *([] if lengths else ["load_dataset"])]
    standard = []
    if made:
        is_sequence = lengths or plan.work.trainer.rows == "pairs"
        standard += ["from collections.abc import Sequence"] if is_sequence else []
        standard += ["from random import Random"] if lengths else []
        standard += ["from typing import Any"]
    return standard, f"from datasets import {', '.join(classes)}"


def rows(plan: Plan, made: bool) -> str:
    """The lines that leave `rows`; `tokenizer` is there before them."""
    if plan.work.data["kind"] == "lengths":
        return _texts_of_lengths(plan) if made else _rows_of_lengths(plan)
    kind = plan.work.trainer.rows
    if not made:
        return _loaded(plan, "rows", _ROWS[kind])
    into = "pairs([cut_in_two(row) for row in documents])"
    if kind == "prompts":
        into = '[{"prompt": cut_in_two(row)[0]} for row in documents]'
    said = f"{made_rows.MADE[kind]}. Load {kind} of your own as rows, and leave this out."
    return "\n".join(
        [
            _loaded(plan, "documents", _DOCUMENTS),
            f"\n\n{comment(said)}{YOURS}",
            f"{quoted(*_MADE_BY[kind])}\n\n",
            f"rows = Dataset.from_list({into})",
        ]
    )


def _loaded(plan: Plan, into: str, said: str) -> str:
    data = plan.work.data
    if data["kind"] == "hub":
        configuration = f", {literal(data['name'])}" if data.get("name") else ""
        lines = [f"{into} = load_dataset({literal(data['path'])}{configuration}, split={literal(data['split'])})"]
    else:
        is_shipped = data["kind"] == "docstrings"
        path = str(ASSETS / "docstrings.jsonl") if is_shipped else data["path"]
        where = "; this file is of memexp's installation: on another machine copy it" if is_shipped else ""
        lines = [
            comment(said + where),
            f"DATA = {literal(path)}{YOURS if is_shipped else ''}",
            f'{into} = load_dataset("json", data_files=DATA, split="train")',
        ]
    return "\n".join([*lines, *_columns(plan, into)])


def _columns(plan: Plan, into: str) -> list[str]:
    """What reads a column under another name: it wins over one that has that name, and decides what the rows are."""
    named = plan.work.data.get("columns")
    if not named:
        return []
    copied = ", ".join(f"{literal(ours)}: row[{literal(theirs)}]" for ours, theirs in named.items())
    lines = [f"{into} = {into}.map(lambda row: {{{copied}}})"]
    kind = "documents" if into == "documents" else plan.work.trainer.rows
    if kind != "prompts":  # a reward may read any other column
        shapes = [shape for shape in made_rows.SHAPES[kind] if set(named) & {*shape, "labels"}]
        columns = list(dict.fromkeys(column for shape in shapes for column in (*shape, *_beside(shape))))
        lines.append(f"{into} = {into}.select_columns([c for c in {literal(columns)} if c in {into}.column_names])")
    return lines


def _beside(shape: tuple[str, ...]) -> tuple[str, ...]:
    return ("labels",) if shape == ("input_ids",) else ()


def _rows_of_lengths(plan: Plan) -> str:
    return "\n".join(
        [
            comment("made-up tokens of the lengths that were measured; load your own data in their place.") + YOURS,
            _lengths(plan),
            "ids = [[4 + n % 4000 for n in range(length)] for length in LENGTHS]",
            'rows = Dataset.from_list([{"input_ids": row, "labels": row} for row in ids])',
        ]
    )


def _texts_of_lengths(plan: Plan) -> str:
    kind = plan.work.trainer.rows
    return "\n".join(
        [
            comment("made-up text of the lengths that were measured, in tokens; load your own data in its place.")
            + YOURS,
            _lengths(plan),
            f"\n\n{quoted(made_rows.single_token_words, made_rows.row_of_length)}\n\n",
            f"words = single_token_words(tokenizer, {_MOST_WORDS})",
            f"random = Random({plan.work.data['seed']})",
            f"rows = Dataset.from_list([row_of_length(length, {literal(kind)}, words, random) for length in LENGTHS])",
        ]
    )


def _lengths(plan: Plan) -> str:
    data = plan.work.data
    drawn = length_distribution(data["distribution"], data).draw(data["rows"], Random(data["seed"]))
    return textwrap.fill(str(drawn), 110, initial_indent="LENGTHS = ", subsequent_indent="    ")
