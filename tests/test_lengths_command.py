"""`memexp lengths`: held against TRL's trainer, against hand counts, and against what a run says of the same rows."""

import csv
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sweeping import write_rows

from memexp.cli import main
from memexp.lengths import count
from memexp.lengths.shares import padding_fraction, shares
from memexp.lengths.show import bins, histogram_lines, quantile
from memexp.plan import load

TORCHLESS = """
import sys
from memexp.cli import main
sys.exit(main(sys.argv[1:]) or 3 * ("torch" in sys.modules))
"""
# Eight documents, 56 tokens; the packing of them into rows of 16 is found by hand.
LENGTHS = [5, 9, 13, 3, 7, 11, 3, 5]


def test_what_a_max_length_cuts_is_counted_by_hand() -> None:
    """Within 8: 5+8+8+3+7+8+3+5 = 47 of 56 tokens, three rows of eight cut."""
    found = shares(LENGTHS, 8, [1, 2, 8])
    assert found["rows_cut_fraction"] == 3 / 8
    assert found["tokens_cut_fraction"] == pytest.approx(9 / 56)


def test_a_batch_is_padded_to_its_own_longest_row() -> None:
    """In twos: 18 + 26 + 22 + 10 = 76 slots for 56 tokens; alone none is padded; all at once 8 x 13 = 104."""
    lengths = np.asarray(LENGTHS)
    assert [padding_fraction(lengths, size) for size in (1, 2, 8)] == pytest.approx([0, 20 / 76, 48 / 104])
    assert padding_fraction(lengths, 5) == pytest.approx(1 - 56 / (5 * 13 + 3 * 11))  # the last batch has three rows


def test_packed_rows_are_those_that_hands_fill() -> None:
    """Into 16: 13+3, 11+5, 9+7, 5+3 leave 8 of 64 slots empty; one stream of 56 has four rows, the last of 8."""
    found = shares(LENGTHS, 16, [2])["packings"]
    assert {name: packed["rows"] for name, packed in found.items()} == {"bfd": 4, "bfd_split": 4, "wrapped": 4}
    assert all(packed["empty_fraction"] == pytest.approx(8 / 64) for packed in found.values())


def test_only_bfd_loses_what_is_cut() -> None:
    """Into 8: bfd keeps 47 of 56 tokens."""
    found = shares(LENGTHS, 8, [2])["packings"]
    assert found["bfd"]["kept_fraction"] == pytest.approx(47 / 56)
    assert (found["bfd_split"]["kept_fraction"], found["wrapped"]["kept_fraction"]) == (1, 1)


def test_zeros_are_packed_as_the_rows_themselves_are() -> None:
    from datasets import Dataset
    from trl.data_utils import pack_dataset

    random = np.random.default_rng(0)
    lengths = random.integers(1, 60, 2_500).tolist()  # more than one batch of datasets.map
    rows = Dataset.from_dict(
        {"input_ids": [list(range(n)) for n in lengths], "labels": [list(range(n)) for n in lengths]}
    )
    for name, packed in shares(lengths, 48, [4])["packings"].items():
        assert packed["rows"] == len(pack_dataset(rows, 48, name))


def test_the_bins_hold_every_row_and_a_long_tail_does_not_squeeze_them() -> None:
    lengths = [(n, 10) for n in range(1, 101)] + [(100_000, 1)]
    parts = bins(lengths)
    assert sum(rows for *_, rows in parts) == 1_001
    assert parts[-1] == (101, None, 1)
    assert parts[0][:2] == (1, 10)
    assert histogram_lines(lengths)[-1].endswith("100%")
    assert max(map(len, histogram_lines([(100_000, 10), (1_000_000, 1)], columns=60))) == 60
    assert [line.split()[0] for line in histogram_lines([(1, 1), (3, 2)])] == ["tokens", "1", "2", "3"]


def test_a_quantile_is_a_length_that_so_many_rows_do_not_exceed() -> None:
    assert quantile([(1, 50), (2, 45), (9, 5)], 0.95) == 2
    assert quantile([(1, 50), (2, 45), (9, 5)], 0.96) == 9


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The command on its own documents, once, in a process of its own that must not import torch."""
    results = tmp_path_factory.mktemp("lengths")
    command = [
        sys.executable,
        "-c",
        TORCHLESS,
        "lengths",
        f"results_dir={results}",
        "max_length=128,1024",
        "batch_size=4",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return results / "lengths" / "docstrings", done.stdout


def test_the_command_counts_the_tokens_that_a_run_counts(asked: tuple[Path, str]) -> None:
    """What a run says of the same rows: 213,741 tokens, of which max_length=1024 keeps 97.5% (README)."""
    folder, out = asked
    with open(folder / "lengths.csv", encoding="utf-8") as file:
        rows = [(int(row["tokens"]), int(row["rows"])) for row in csv.DictReader(file)]
    assert (sum(n for _, n in rows), sum(length * n for length, n in rows)) == (1_000, 213_741)
    assert "1,000 rows, 213,741 tokens" in out
    with open(folder / "max_length.csv", encoding="utf-8") as file:
        cuts = {row["max_length"]: row for row in csv.DictReader(file)}
    assert set(cuts) == {"128", "1024"}
    assert round(1 - float(cuts["1024"]["tokens_cut_fraction"]), 3) == 0.975
    assert float(cuts["128"]["bfd_kept_fraction"]) == pytest.approx(1 - float(cuts["128"]["tokens_cut_fraction"]))


def test_the_picture_is_a_png_of_a_size_to_read(asked: tuple[Path, str]) -> None:
    picture = (asked[0] / "lengths.png").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", picture[16:24]) > (1_200, 500)


def test_the_output_fits_a_terminal_but_for_its_sentences(asked: tuple[Path, str]) -> None:
    table = [line for line in asked[1].splitlines() if line.startswith(("max_length", "     ")) or "█" in line]
    assert len(table) > 5
    assert all(len(line) <= 80 for line in table)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["max_length=0"], "max_length=0: these are whole numbers of at least 1"),
        (["--max-length", "a,b"], "max_length=a,b"),
        (["packing=bfd"], "lengths packing=bfd: the lengths of rows do not depend on packing"),
        (["data=nothing"], "nothing"),
        (["data=jsonl", "data.path=no.jsonl"], "no.jsonl is not there"),
        (["--histogram"], "--help"),
    ],
)
def test_a_mistake_is_one_line(typed: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lengths", *typed]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1


def answered(tmp_path: Path, rows: Path) -> dict[str, Any]:
    """What the worker writes for these rows; in this process, to save the imports."""
    files = [tmp_path / name for name in ("plan.json", "request.json", "answer.json")]
    files[0].write_text(load("backend=cpu", "data=jsonl", f"data.path={rows}").to_json(), encoding="utf-8")
    request = {"max_lengths": [], "batch_sizes": [2], "cache": str(tmp_path / "tokens")}
    files[1].write_text(json.dumps(request), encoding="utf-8")
    assert count.main(*map(str, files)) == 0
    answer: dict[str, Any] = json.loads(files[2].read_text(encoding="utf-8"))
    return answer


def test_data_that_a_run_would_refuse_is_refused_in_its_words(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"text": "one"}) + "\n" + json.dumps({"text": None}) + "\n", encoding="utf-8")
    assert "row 2, column text: it is null" in answered(tmp_path, rows)["refused"]


def test_rows_that_are_tokens_already_are_counted_as_they_are(tmp_path: Path) -> None:
    """Without a max_length it looks at powers of two, from the one that holds half of the rows (5) to all (13)."""
    answer = answered(tmp_path, write_rows(tmp_path / "rows.jsonl", LENGTHS))
    assert answer["lengths"] == [[3, 2], [5, 2], [7, 1], [9, 1], [11, 1], [13, 1]]
    assert [cut["max_length"] for cut in answer["cuts"]] == [8, 16]
