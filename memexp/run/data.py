"""Read a plan's data and judge it before a model is built: what cannot be trained on is named by row and column."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa

from memexp.plan import conf
from memexp.plan.length_distributions import length_distribution, length_rows
from memexp.plan.plan import Plan
from memexp.plan.values import show
from memexp.run import made_rows
from memexp.run.made_rows import MADE, SHAPES
from memexp.run.refusal import Refused

ASSETS = Path(__file__).parents[1] / "assets"
# What TRL's trainers read beside those columns where a row has it: the template's, the loss's. Prompts keep all
# others, since a reward of the user's own may read them.
BESIDE = {
    "documents": ("tools", "chat_template_kwargs", "completion_mask", "assistant_masks"),
    "pairs": ("tools", "chat_template_kwargs", "margin"),
}
# What TRL's trainers give a reward beside the columns of its rows.
OF_THE_REWARD = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
# Any of these makes TRL expect a model that sees.
IMAGES = ("image", "images")
# How files begin that are none of text.
_BINARY = {
    b"\x1f\x8b": "is compressed (gzip). Unpack it first",
    b"PK\x03\x04": "is a zip file. Unpack it first",
    b"PAR1": "is a Parquet file. Type data=hub data.path=FOLDER, the folder that holds it",
    b"\xff\xfe": "is UTF-16. Save it as UTF-8",
    b"\xfe\xff": "is UTF-16. Save it as UTF-8",
}


def load_data(plan: Plan, vocab_size: int, tokenizer: Any = None) -> datasets.Dataset:
    """The rows in the file's own order, with the columns that TRL knows. Raises Refused.

    `vocab_size` is that of the model: token ids beyond it are refused, since the embedding would read past its end.
    `tokenizer` is needed for data=lengths where the trainer takes text.
    """
    data, kind = plan.work.data, plan.work.trainer.rows
    rows = _rows(data, kind, vocab_size, tokenizer)
    if not rows:
        raise Refused("invalid_data", f"{_where(data)} has no rows.")
    columns = _shape(data, rows[0], plan)
    made = kind != "documents" and columns not in SHAPES[kind]
    named = dict.fromkeys(name for row in rows for name in row)  # a column may begin in a later row
    beside = () if made else tuple(name for name in BESIDE.get(kind, ()) if name in named)
    for number, row in enumerate(rows, start=1):
        for column in (*columns, *beside):
            problem = _problem(column, row.get(column), row, vocab_size) or _mixed(column, row, rows[0], columns)
            if problem:
                raise Refused("invalid_data", f"{_where(data)}, row {number}, column {column}: {problem}.")
    if made:
        return datasets.Dataset.from_list(_made(rows, kind, columns, data))
    others = tuple(name for name in named if name not in columns) if kind == "prompts" else beside
    taken = next((name for name in others if name in OF_THE_REWARD), None) if kind == "prompts" else None
    if taken:
        raise Refused(
            "invalid_data", f"{_where(data)} has the column {taken}, and TRL gives a reward its own {taken}. Rename it."
        )
    return _dataset({name: [row.get(name) for row in rows] for name in (*columns, *others)}, data)


def _dataset(columns: dict[str, list[Any]], data: dict[str, Any]) -> datasets.Dataset:
    for name, values in columns.items():
        try:
            pa.array(values)
        except pa.ArrowException as error:
            said = str(error).splitlines()[0]
            raise Refused(
                "invalid_data", f"{_where(data)}, column {name}: its rows hold values of different kinds ({said})."
            ) from error
    return datasets.Dataset.from_dict(columns)


def how_rows_are_made(plan: Plan) -> tuple[str, ...]:
    """A note for the record where pairs or prompts are not the user's own."""
    data, kind = plan.work.data, plan.work.trainer.rows
    if kind == "documents":
        return ()
    first: dict[str, Any] = {}
    if data["kind"] == "jsonl":
        first = next(_read_jsonl(Path(data["path"]), data), {})
    elif data["kind"] == "hub":
        first = _hub_rows(data)[0]
    own = any(all(column in first for column in columns) for columns in SHAPES[kind])
    return () if own else (MADE[kind],)


def _rows(data: dict[str, Any], kind: str, vocab_size: int, tokenizer: Any) -> list[dict[str, Any]]:
    if data["kind"] == "docstrings":
        return list(_read_jsonl(ASSETS / "docstrings.jsonl", {}))
    if data["kind"] == "jsonl":
        return list(_read_jsonl(Path(data["path"]), data))
    if data["kind"] == "lengths":
        return _length_rows(data, kind, vocab_size, tokenizer)
    return _hub_rows(data)


def _made(rows: list[dict[str, Any]], kind: str, columns: tuple[str, ...], data: dict[str, Any]) -> list[Any]:
    halves = []
    for number, row in enumerate(rows, start=1):
        cut = made_rows.cut_in_two({column: row[column] for column in columns})
        if cut is None:
            where = f"{_where(data)}, row {number}, column {columns[0]}"
            raise Refused("invalid_data", f"{where}: it is too short to be cut into a prompt and an answer.")
        halves.append(cut)
    return made_rows.pairs(halves) if kind == "pairs" else [{"prompt": prompt} for prompt, _ in halves]


def _read_jsonl(path: Path, data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise Refused("not_found", f"data.path={path} is not there any more.") from error
    except UnicodeDecodeError as error:
        with path.open("rb") as file:
            first = file.read(4)
        other = next((what for magic, what in _BINARY.items() if first.startswith(magic)), None)
        why = other or f"is not UTF-8: byte {error.start} cannot be read. Save it as UTF-8"
        raise Refused("invalid_data", f"{path} {why}.") from error
    # Not splitlines: JSON text may hold other line separators, and they are no ends of rows.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            # json counts lines too, and each row is its line 1.
            why = f"{error.msg}, at character {error.colno}" if isinstance(error, json.JSONDecodeError) else f"{error}"
            raise Refused("invalid_data", f"{path}, line {number} is no JSON: {why}.") from error
        if not isinstance(row, dict):
            raise Refused(
                "invalid_data",
                f"{path}, line {number} is a JSON {type(row).__name__}, not an object with columns: a line is a row.",
            )
        if "\\ud" in line.lower() and _has_half_a_character(row):
            raise Refused("invalid_data", f"{path}, line {number} has half of a character (a surrogate).")
        yield _renamed(row, data.get("columns"))


def _has_half_a_character(row: dict[str, Any]) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _renamed(row: dict[str, Any], columns: dict[str, str] | None) -> dict[str, Any]:
    return {**row, **{ours: row.get(theirs) for ours, theirs in (columns or {}).items()}}


def _length_rows(data: dict[str, Any], kind: str, vocab_size: int, tokenizer: Any) -> list[dict[str, Any]]:
    try:
        if kind != "documents":
            return made_rows.rows_of_lengths(data, kind, tokenizer)
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


def _shape(data: dict[str, Any], row: dict[str, Any], plan: Plan) -> tuple[str, ...]:
    kind = plan.work.trainer.rows
    seen = next((name for name in IMAGES if name in row), None)
    if seen is not None:
        raise Refused(
            "unsupported",
            f"{_where(data)} has the column {seen}: memexp trains models of text, and without it the job would be "
            f"another. Leave {seen} out of the file to train on the text alone.",
        )
    shapes = SHAPES[kind] if kind == "documents" else (*SHAPES[kind], *made_rows.DOCUMENTS)
    mapped = data.get("columns") or {}
    for ours, theirs in mapped.items():
        if theirs not in row:
            there = ", ".join(name for name in row if name not in mapped)
            raise Refused("invalid_data", f"{_where(data)} has no column {theirs} to read as {ours}; it has {there}.")
    for columns in shapes:
        # A column that the user named decides what the rows are.
        named = not mapped or any(ours in (*columns, "labels") for ours in mapped)
        if named and all(column in row for column in columns):
            return (*columns, "labels") if columns == ("input_ids",) and "labels" in row else columns
    wanted = "; ".join(" and ".join(columns) for columns in shapes)
    example = shapes[-1 if kind == "documents" else 0][0]
    raise Refused(
        "invalid_data",
        f"{_where(data)} has the columns {', '.join(row) or 'none'}; trainer={plan.work.trainer.name} takes "
        f"one of: {wanted}. {_trainers_of(row, kind)}Name yours with data.columns.{example}=NAME.",
    )


def _trainers_of(row: dict[str, Any], but: str) -> str:
    """Which other trainers take such rows, by the columns they need; empty where none does."""
    kinds = [
        kind
        for kind, shapes in SHAPES.items()
        if kind != but and any(all(name in row for name in shape) for shape in shapes)
    ]
    kind = kinds[0] if kinds else None  # pairs have prompts too, and are more than that
    names = [name for name in conf.groups()["trainer"] if conf.option("trainer", name)["rows"] == kind]
    return f"trainer={' or trainer='.join(names)} takes such rows. " if names else ""


def _problem(column: str, value: Any, row: dict[str, Any], vocab_size: int) -> str | None:
    if column == "tools" and value is None:
        return None  # a conversation without any
    if value is None:
        return "it is null"
    if column in _OF_BESIDE:
        kind, wanted = _OF_BESIDE[column]
        return None if isinstance(value, kind) and not isinstance(value, bool) else f"it is {wanted}, not {show(value)}"
    if column in ("input_ids", "labels", "completion_mask", "assistant_masks"):
        return _tokens_problem(column, value, row, vocab_size)
    if column == "text":
        return None if isinstance(value, str) else f"text is a string, not {type(value).__name__}"
    if isinstance(value, str):
        return None if column != "messages" else "messages is a list of {role, content}"
    if not isinstance(value, list):
        return f"it is text or a list of {{role, content}}, not {type(value).__name__}"
    return _messages_problem(value)


_OF_BESIDE: dict[str, tuple[Any, str]] = {
    "tools": ((list, str), "a list of tools, or its JSON"),
    "chat_template_kwargs": (dict, "a set of arguments of the chat template"),
    "margin": ((int, float), "a number"),
}


def _mixed(column: str, row: dict[str, Any], first: dict[str, Any], columns: tuple[str, ...]) -> str | None:
    """TRL asks the first row alone whether all are texts or conversations."""
    if column not in ("prompt", "completion", "chosen", "rejected", "text"):
        return None
    names = {True: "text", False: "a list of messages"}
    here, there = isinstance(row[column], str), isinstance(first[columns[0]], str)
    return None if here == there else f"it is {names[here]}, where row 1 has {names[there]} as {columns[0]}"


def _tokens_problem(column: str, value: Any, row: dict[str, Any], vocab_size: int) -> str | None:
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        return "token ids are a list of whole numbers"
    if len(value) != len(row["input_ids"]):
        return f"{len(value)} {column.replace('_', ' ')} for {len(row['input_ids'])} tokens"
    if column not in ("input_ids", "labels"):
        return None if set(value) <= {0, 1} else "a mask has 1 where the loss is taken, else 0"
    ignored = -100 if column == "labels" else None
    outside = next((token for token in value if not 0 <= token < vocab_size and token != ignored), None)
    if outside is not None:
        return f"token id {outside} is outside the model's vocabulary of {vocab_size}"
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
