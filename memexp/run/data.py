"""Read a plan's data and judge it before a model is built: what cannot be trained on is named by row and column."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets

from memexp.plan.lengths import length_distribution, length_rows
from memexp.plan.plan import Plan
from memexp.run.refusal import Refused

ASSETS = Path(__file__).parents[1] / "assets"
# The shapes that TRL's SFTTrainer takes, each with the columns that it needs.
SHAPES: tuple[tuple[str, ...], ...] = (("input_ids",), ("messages",), ("prompt", "completion"), ("text",))


def load_data(plan: Plan, vocab_size: int) -> datasets.Dataset:
    """The rows in the file's own order, with the columns that TRL knows. Raises Refused.

    `vocab_size` is that of the model: token ids beyond it are refused, since the embedding would read past its end.
    """
    rows = _rows(plan.work.data, vocab_size)
    if not rows:
        raise Refused("invalid_data", f"{_where(plan.work.data)} has no rows.")
    columns = _shape(plan.work.data, rows[0])
    for number, row in enumerate(rows, start=1):
        for column in columns:
            problem = _problem(column, row.get(column), row, vocab_size)
            if problem:
                where = f"{_where(plan.work.data)}, row {number}, column {column}"
                raise Refused("invalid_data", f"{where}: {problem}.")
    return datasets.Dataset.from_list([{column: row[column] for column in columns} for row in rows])


def _rows(data: dict[str, Any], vocab_size: int) -> list[dict[str, Any]]:
    if data["kind"] == "docstrings":
        return list(_read_jsonl(ASSETS / "docstrings.jsonl", {}))
    if data["kind"] == "jsonl":
        return list(_read_jsonl(Path(data["path"]), data))
    if data["kind"] == "lengths":
        return _length_rows(data, vocab_size)
    return _hub_rows(data)


def _read_jsonl(path: Path, data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise Refused("not_found", f"data.path={path} is not there any more.") from error
    except UnicodeDecodeError as error:
        raise Refused(
            "invalid_data", f"{path} is not UTF-8: byte {error.start} cannot be read. Save it as UTF-8."
        ) from error
    # Not splitlines: JSON text may hold other line separators, and they are no ends of rows.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise Refused("invalid_data", f"{path}, line {number} is no JSON: {error}.") from error
        if not isinstance(row, dict):
            raise Refused(
                "invalid_data", f"{path}, line {number} is a JSON {type(row).__name__}, not an object with columns."
            )
        yield _renamed(row, data.get("columns"))


def _renamed(row: dict[str, Any], columns: dict[str, str] | None) -> dict[str, Any]:
    return {**row, **{ours: row.get(theirs) for ours, theirs in (columns or {}).items()}}


def _length_rows(data: dict[str, Any], vocab_size: int) -> list[dict[str, Any]]:
    try:
        distribution = length_distribution(data["distribution"], data)
        return length_rows(data["rows"], distribution, seed=data["seed"], vocab_size=vocab_size)
    except ValueError as error:
        raise Refused("invalid_data", str(error)) from error


def _hub_rows(data: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        dataset = datasets.load_dataset(data["path"], data["name"], split=data["split"])
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        said = str(error).splitlines()[0]
        raise Refused("not_found", f"data.path={data['path']}: the hub gave no such dataset ({said}).") from error
    return [_renamed(dict(row), data["columns"]) for row in dataset]


def _shape(data: dict[str, Any], row: dict[str, Any]) -> tuple[str, ...]:
    mapped = data.get("columns") or {}
    for ours, theirs in mapped.items():
        if theirs not in row:
            there = ", ".join(name for name in row if name not in mapped)
            raise Refused("invalid_data", f"{_where(data)} has no column {theirs} to read as {ours}; it has {there}.")
    for columns in SHAPES:
        # A column that the user named decides what the rows are.
        named = not mapped or any(ours in (*columns, "labels") for ours in mapped)
        if named and all(column in row for column in columns):
            return (*columns, "labels") if columns == ("input_ids",) and "labels" in row else columns
    wanted = "; ".join(" and ".join(columns) for columns in SHAPES)
    raise Refused(
        "invalid_data",
        f"{_where(data)} has the columns {', '.join(row) or 'none'}; trainer=sft takes one of: {wanted}. "
        "Name yours with data.columns.text=NAME.",
    )


def _problem(column: str, value: Any, row: dict[str, Any], vocab_size: int) -> str | None:
    if value is None:
        return "it is null"
    if column in ("input_ids", "labels"):
        return _tokens_problem(column, value, row, vocab_size)
    if column == "text":
        return None if isinstance(value, str) else f"text is a string, not {type(value).__name__}"
    if isinstance(value, str):
        return None if column != "messages" else "messages is a list of {role, content}"
    return _messages_problem(value)


def _tokens_problem(column: str, value: Any, row: dict[str, Any], vocab_size: int) -> str | None:
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        return "token ids are a list of whole numbers"
    ignored = -100 if column == "labels" else None
    outside = next((token for token in value if not 0 <= token < vocab_size and token != ignored), None)
    if outside is not None:
        return f"token id {outside} is outside the model's vocabulary of {vocab_size}"
    if len(value) != len(row["input_ids"]):
        return f"{len(value)} labels for {len(row['input_ids'])} tokens"
    return None


def _messages_problem(value: Any) -> str | None:
    if not isinstance(value, list) or not value:
        return "messages is a list of {role, content}, and not an empty one"
    for index, message in enumerate(value, start=1):
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            return f"message {index} has no role and content that are strings"
    return None


def _where(data: dict[str, Any]) -> str:
    return f"data={data['kind']}" + (f" ({data['path']})" if data.get("path") else "")
