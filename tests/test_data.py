"""A user's own rows: what can be trained on is, and what cannot is refused by file, row and column, before a model."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from sweeping import sweep

from memexp.plan import load
from memexp.run.data import load_data
from memexp.run.refusal import Refused


def data(path: Path, *more: str) -> Any:
    return load_data(load("backend=cpu", "data=jsonl", f"data.path={path}", *more), vocab_size=4096)


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"text": "a"}, ["text"]),
        ({"messages": CHAT, "source": "x"}, ["messages"]),
        ({"prompt": "a", "completion": "b"}, ["prompt", "completion"]),
        ({"prompt": CHAT[:1], "completion": CHAT[1:]}, ["prompt", "completion"]),
        ({"input_ids": [1, 2]}, ["input_ids"]),
        ({"input_ids": [1, 2], "labels": [-100, 2]}, ["input_ids", "labels"]),
    ],
)
def test_the_shapes_that_trl_takes_are_taken(tmp_path: Path, row: dict[str, Any], columns: list[str]) -> None:
    rows = data(write(tmp_path / "rows.jsonl", row, row))
    assert rows.column_names == columns
    assert len(rows) == 2


def test_what_trl_reads_beside_the_rows_is_kept(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    rows = data(write(tmp_path / "a.jsonl", {"messages": CHAT, "tools": tools, "chat_template_kwargs": {"x": True}}))
    assert rows[0] == {"messages": CHAT, "tools": tools, "chat_template_kwargs": {"x": True}}
    masked = data(write(tmp_path / "b.jsonl", {"input_ids": [1, 2], "completion_mask": [0, 1]}))
    assert masked[0] == {"input_ids": [1, 2], "completion_mask": [0, 1]}


@pytest.mark.parametrize(
    ("row", "kind", "said"),
    [
        ({"messages": CHAT, "images": ["a.png"]}, "unsupported", "the column images: memexp trains models of text"),
        ({"text": "a", "image": "a.png"}, "unsupported", "Leave image out"),
        ({"messages": CHAT, "tools": 5}, "invalid_data", "row 1, column tools: it is a list of tools"),
        ({"messages": CHAT, "chat_template_kwargs": "x"}, "invalid_data", "a set of arguments"),
        ({"input_ids": [1, 2], "completion_mask": [1]}, "invalid_data", "1 completion mask for 2 tokens"),
        ({"input_ids": [1, 2], "completion_mask": [0, 3]}, "invalid_data", "a mask has 1 where"),
        ({"prompt": 5, "completion": "a"}, "invalid_data", "column prompt: it is text or a list of"),
    ],
)
def test_what_is_beside_the_rows_and_cannot_be_used_is_named(
    tmp_path: Path, row: dict[str, Any], kind: str, said: str
) -> None:
    with pytest.raises(Refused, match=said) as refused:
        data(write(tmp_path / "rows.jsonl", row))
    assert refused.value.kind == kind


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (gzip.compress(b'{"text": "a"}'), r"is compressed \(gzip\)\. Unpack it first"),
        (b"PAR1\x15\xff", "data=hub data.path=FOLDER"),
        ('{"text": "a"}'.encode("utf-16"), "is UTF-16. Save it as UTF-8"),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path: Path, first: bytes, said: str) -> None:
    (tmp_path / "rows.jsonl").write_bytes(first)
    with pytest.raises(Refused, match=said):
        data(tmp_path / "rows.jsonl")


def test_rows_keep_the_order_of_the_file(tmp_path: Path) -> None:
    assert data(write(tmp_path / "rows.jsonl", *({"text": str(i)} for i in range(50))))["text"] == list(
        map(str, range(50))
    )


def test_a_column_may_have_another_name(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", {"body": "a"})
    assert data(path, "data.columns.text=body")["text"] == ["a"]


def test_a_column_that_was_named_decides_what_the_rows_are(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", {"messages": CHAT, "body": "a"})
    assert data(path, "data.columns.text=body").column_names == ["text"]
    with pytest.raises(Refused, match="no column bodi to read as text; it has messages, body"):
        data(path, "data.columns.text=bodi")


@pytest.mark.parametrize("text", ['\ufeff{"text": "a"}\n', '{"text": "a"}\r\n\r\n', '\n{"text": "a"}\n   \n'])
def test_a_byte_order_mark_and_blank_lines_are_no_rows(tmp_path: Path, text: str) -> None:
    (tmp_path / "rows.jsonl").write_bytes(text.encode())
    assert data(tmp_path / "rows.jsonl")["text"] == ["a"]


def test_a_line_separator_inside_text_is_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"text": "a\u2028b\x85c"}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert data(path)["text"] == ["a\u2028b\x85c"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "no rows"),
        ([{"text": "a"}, {"text": None}], "row 2, column text: it is null"),
        ([{"text": "a"}, {}], "row 2, column text"),
        ([{"text": 5}], "row 1, column text: text is a string, not int"),
        ([{"body": "a"}], "data.columns.text=NAME"),
        ([[1, 2]], "line 1 is a JSON list"),
        ([{"messages": []}], "row 1, column messages"),
        ([{"messages": [{"role": "user"}]}], "message 1 has no role and content"),
        ([{"messages": "hello"}], "messages is a list"),
        ([{"input_ids": [1, "2"]}], "row 1, column input_ids: token ids are a list of whole numbers"),
        ([{"input_ids": [1, 4096]}], "token id 4096 is outside the model's vocabulary of 4096"),
        ([{"input_ids": [-1]}], "token id -1"),
        ([{"input_ids": [1, 2], "labels": [1]}], "row 1, column labels"),
    ],
)
def test_what_cannot_be_trained_on_is_named(tmp_path: Path, rows: list[Any], said: str) -> None:
    with pytest.raises(Refused) as refused:
        data(write(tmp_path / "rows.jsonl", *rows))
    assert refused.value.kind == "invalid_data"
    assert said in refused.value.reason
    assert "\n" not in refused.value.reason


def test_bytes_that_are_no_utf_8_are_named_with_their_place(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"text": "caf\xe9"}\n')
    with pytest.raises(Refused, match="not UTF-8: byte 13"):
        data(tmp_path / "rows.jsonl")


def test_a_broken_line_is_named_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n{"text": \n')
    with pytest.raises(Refused, match="line 2 is no JSON"):
        data(tmp_path / "rows.jsonl")


@pytest.mark.usefixtures("warm_cells")
@pytest.mark.parametrize("packing", ["none", "bfd"])
@pytest.mark.parametrize("row", [{"input_ids": [5]}, {"input_ids": [5, 6], "labels": [-100, -100]}, {"input_ids": []}])
def test_rows_with_nothing_to_learn_are_no_result(tmp_path: Path, row: dict[str, Any], packing: str) -> None:
    path = write(tmp_path / "rows.jsonl", row, row)
    result = sweep(
        tmp_path / "results",
        "data=jsonl",
        f"data.path={path}",
        f"packing={packing}",
        "logger=none",
        "max_length=8",
        "steps=1",
    )
    (record,) = result.records
    assert (record["status"], record["reason_kind"]) == ("refused", "invalid_data")
    assert "nothing to learn" in record["reason"]


def test_the_shipped_rows_are_conversations() -> None:
    rows = load_data(load("backend=cpu"), vocab_size=4096)
    assert rows.column_names == ["messages"]
    assert len(rows) == 1000
