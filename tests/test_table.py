"""The comparison table: what people read in Markdown and in a terminal, and what machines read in CSV."""

import csv
import io
import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_records import GIB, OFFLOAD, PACKING, made, not_ok, swept, two_by_two
from markdown_it import MarkdownIt
from rich.cells import cell_len
from rich.console import Console

from memexp.results.format import bytes_text, change_text, fraction_text, rate_text, seconds_text
from memexp.results.markdown import markdown
from memexp.results.record import Data, Oom, Record
from memexp.results.sweep import Axis, Sweep, SweepFolder
from memexp.results.table import make_table, print_table, write_tables
from memexp.results.terminal import hanging

NUMBERS = [
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "real_tokens_per_second",
    "median_step_seconds",
    "kept_fraction",
    "padding_fraction",
]


def printed(sweep: Sweep, records: Sequence[Record], width: int = 120, **table: Any) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    print_table(make_table(sweep, records, **table), console)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text.splitlines()


def csv_of(tmp_path: Path, sweep: Sweep, records: Sequence[Record]) -> list[dict[str, str]]:
    folder = SweepFolder(tmp_path)
    write_tables(folder, make_table(sweep, records))
    with folder.table_csv.open(newline="") as file:
        return list(csv.DictReader(file, strict=True))


def parsed(text: str) -> list[list[str]]:
    """The cells of the Markdown table as a Markdown parser reads them, markup resolved, the header line first."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    rows: list[list[str]] = []
    for before, token in itertools.pairwise(tokens):
        if before.type == "tr_open":
            rows.append([])
        if before.type in ("td_open", "th_open"):
            rows[-1].append("".join(child.content for child in token.children or ()))
    return rows


def row_of(lines: Sequence[str], *options: str) -> str:
    """The one line that starts with these options."""
    (line,) = [line for line in lines if line.split()[: len(options)] == list(options)]
    return " ".join(line.split())


# ---- values


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1536, "1.50 KiB"),
        (3 * 2**20, "3.00 MiB"),
        (512.4 * 2**20, "512 MiB"),
        (2**30 - 1, "1,024 MiB"),
        (2**30, "1.00 GiB"),
        (69062 * 2**20, "67.44 GiB"),
    ],
)
def test_bytes_are_gib_with_two_decimals_and_mib_below_that(count: float, text: str) -> None:
    assert bytes_text(count) == text


def test_times_rates_and_fractions_keep_three_digits() -> None:
    assert [seconds_text(s) for s in (0.0004, 0.0123, 0.25, 1, 12.34, 1234)] == [
        "0.40 ms",
        "12.3 ms",
        "250 ms",
        "1.00 s",
        "12.3 s",
        "1,234 s",
    ]
    assert [rate_text(r) for r in (0.5, 12.34, 21034.2)] == ["0.50", "12.3", "21,034"]
    assert [fraction_text(f) for f in (0, 0.0001, 0.123, 0.9996, 0.99999, 1)] == [
        "0%",
        "<0.1%",
        "12.3%",
        ">99.9%",
        ">99.9%",
        "100%",
    ]


def test_changes_are_signed_and_never_minus_zero() -> None:
    assert [change_text(p) for p in (-34.14, 0.26, 0, -0.04, 1234.5)] == ["-34.1%", "+0.3%", "0.0%", "0.0%", "+1,234%"]


# ---- rows and columns


def test_each_value_has_its_change_beside_it_and_the_baseline_is_marked() -> None:
    lines = printed(*two_by_two())
    assert row_of(lines, "none", "false") == "none false 8.00 GiB 1,000 200 ms baseline"
    assert row_of(lines, "none", "true") == "none true 6.00 GiB (-25.0%) 900 (-10.0%) 250 ms (+25.0%)"
    assert row_of(lines, "bfd", "false") == "bfd false 10.00 GiB (+25.0%) 1,500 (+50.0%) 300 ms (+50.0%)"


def test_the_values_of_a_column_are_in_line_with_and_without_a_change() -> None:
    lines = [line for line in printed(*two_by_two()) if " GiB" in line and "OOM" not in line and line[0] != "-"]
    assert len({line.index(" GiB") for line in lines}) == 1
    assert len({line.index(" ms") for line in lines}) == 1


def test_an_oom_is_a_row_that_says_how_much_was_missing() -> None:
    line = row_of(printed(*two_by_two()), "bfd", "true")
    assert line == "bfd true OOM in backward of step 1: asked 37.1 GiB, 34.5 free, at least 2.6 GiB short"


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (not_ok("a", "oom", "CUDA out of memory"), "OOM: CUDA out of memory"),
        (not_ok("a", "oom", oom=Oom(phase="optimizer")), "OOM in optimizer"),
        (
            not_ok("a", "oom", oom=Oom("forward", 3, 2 * GIB, 512 * 2**20)),
            "OOM in forward of step 3: asked 2.0 GiB, 512 MiB free",
        ),
        (not_ok("a", "refused", "no GPU", reason_kind="needs_hardware"), "refused (needs_hardware): no GPU"),
        (not_ok("a", "failed", "ValueError: no"), "failed: ValueError: no"),
        (not_ok("a", "timeout", "after 600 s"), "timed out: after 600 s"),
        (not_ok("a", "killed"), "killed"),
    ],
)
def test_a_cell_that_is_not_ok_has_its_reason_in_place_of_numbers(record: Record, text: str) -> None:
    sweep, records = two_by_two()
    records[0] = replace(record, choices=records[0].choices)
    assert row_of(printed(sweep, records), "none", "false") == f"none false {text} (baseline)"
    (cells,) = [row for row in parsed(markdown(make_table(sweep, records))) if row[:2] == ["none", "false"]]
    assert cells == ["none", "false", "-", "-", "-", f"{text} (baseline)"]


def test_columns_that_say_the_same_or_nothing_stand_above_the_table() -> None:
    sweep, records = two_by_two()
    records = [replace(record, choices={**record.choices, "packing": "bfd"}) for record in records]
    lines = printed(sweep, records)
    assert "Every cell: packing=bfd" in lines
    assert "Every ok cell: peak reserved unknown, kept 100%, padding 0%" in lines
    (heading,) = [line for line in lines if line.startswith("offload")]
    assert re.split(r"\s{2,}", heading) == ["offload", "peak allocated", "real tokens/s", "step"]


def test_numbers_that_differ_stay_in_the_table() -> None:
    sweep, records = two_by_two()
    records[1] = replace(records[1], data=Data(kept_fraction=0.5, padding_fraction=0.125))
    line = row_of(printed(sweep, records, width=160), "none", "true")
    assert line.endswith("250 ms (+25.0%) 50% 12.5%")


def test_cells_alike_in_everything_still_have_their_rows() -> None:
    records = [made("a", choices={"packing": "none"}), made("b", choices={"packing": "bfd"})]
    lines = printed(swept(PACKING, cells="ab"), records)
    assert [line.split() for line in lines if line.startswith(("none", "bfd"))] == [["none", "baseline"], ["bfd"]]


def test_a_single_cell_shows_its_numbers_without_a_baseline() -> None:
    text = "\n".join(printed(swept(cells="a"), [made("a", 3 * GIB, rate=10.0)]))
    assert "3.00 GiB" in text
    assert "This cell: peak reserved unknown, step unknown, kept 100%, padding 0%" in text
    assert "baseline" not in text


def test_a_worst_case_over_five_percent_above_the_peak_has_a_column() -> None:
    sweep, records = two_by_two()
    low = [replace(r, memory=replace(r.memory, worst_case_peak_allocated_bytes=int(6.2 * GIB))) for r in records[1:2]]
    assert "worst-case peak" not in "\n".join(printed(sweep, [records[0], *low]))
    high = [replace(r, memory=replace(r.memory, worst_case_peak_allocated_bytes=int(6.4 * GIB))) for r in records[1:2]]
    lines = printed(sweep, [records[0], *high])
    assert any("worst-case peak" in line for line in lines)
    assert "6.40 GiB" in row_of(lines, "true")


def test_predicted_numbers_are_marked_and_explained() -> None:
    sweep, records = two_by_two()
    records[1] = replace(records[1], predicted=("memory.peak_allocated_bytes",))
    lines = printed(sweep, records)
    assert "~ predicted by the simulated GPU" in lines
    assert row_of(lines, "none", "true") == "none true ~6.00 GiB (-25.0%) 900 (-10.0%) 250 ms (+25.0%)"
    assert not any("~" in line for line in printed(*two_by_two()))


def test_the_heading_names_the_job_the_way_it_is_typed() -> None:
    choices = {
        "trainer": "sft",
        "model": "tiny",
        "data": "docstrings",
        "gpu": "h100_80gb",
        "batch_size": 4,
        "max_length": 1024,
        "checkpointing": "none",
        "peft": "lora",
        "peft.r": 64,
        "learning_rate": None,
        "steps": 5,
        "budget.tokens": 1000,
    }
    sweep, records = two_by_two()
    environment = {"memexp": "0.1.0", "versions": {"trl": "1.16.0", "torch": "2.13.0"}, "gpu": "NVIDIA H200"}
    records = [replace(r, choices={**choices, **r.choices}, environment=environment, backend="cuda") for r in records]
    lines = printed(sweep, records)
    assert lines[1:5] == [
        "trainer=sft model=tiny data=docstrings backend=cuda",
        "batch_size=4 max_length=1024 peft=lora peft.r=64 budget.tokens=1000",
        "memexp 0.1.0, trl 1.16.0, torch 2.13.0, on NVIDIA H200",
        "4 cells: 3 ok, 1 oom",
    ]


def test_a_max_length_of_null_is_said() -> None:
    records = [made("a", choices={"max_length": None, "pad_to_multiple_of": None})]
    assert "max_length=null" in printed(swept(cells="a"), records)


def test_what_differs_between_cells_is_not_in_the_heading() -> None:
    sweep, records = two_by_two()
    records = [replace(r, choices={**r.choices, "model": r.id}) for r in records]
    assert not any("model=" in line for line in printed(sweep, records))


def test_missing_and_damaged_cells_are_named_below_the_table() -> None:
    sweep, records = two_by_two()
    damaged = [Path("results/made/cells/d/record.json.damaged-1")]
    lines = printed(sweep, records[:3], missing=["d"], damaged=damaged)
    assert "4 cells: 3 ok, 1 not run yet" in lines
    assert "- Not run yet: 1 of 4 cells (d); the same command with sweep=made runs it" in lines
    assert "- Damaged record, set aside and not read: cells/d/record.json.damaged-1" in lines


def test_a_sweep_of_which_nothing_has_run_is_no_error() -> None:
    sweep, _ = two_by_two()
    lines = printed(sweep, [], missing=sweep.cells)
    assert "4 cells: 4 not run yet" in lines
    assert markdown(make_table(sweep, [], missing=sweep.cells)).startswith("# made\n")


def test_a_sweep_in_which_nothing_was_ok_has_only_reasons() -> None:
    sweep, records = two_by_two()
    records = [not_ok(r.id, "refused", "no GPU", choices=r.choices) for r in records]
    assert row_of(printed(sweep, records), "bfd", "true") == "bfd true refused: no GPU"


def test_different_work_and_fall_backs_are_marked_in_their_rows() -> None:
    sweep, records = two_by_two()
    records[1] = replace(records[1], effective={"fell_back": ["offload"]})
    records[2] = replace(records[2], data=Data(real_tokens=2000))
    lines = printed(sweep, records, width=160)
    assert row_of(lines, "none", "true").endswith("6.00 GiB 900 250 ms 100% 0% offload fell back")
    assert row_of(lines, "bfd", "false").endswith("different work")


def test_rows_are_in_grid_order_whatever_the_order_of_the_records() -> None:
    sweep, records = two_by_two()
    assert printed(sweep, records[::-1]) == printed(sweep, records)


@pytest.mark.parametrize("make", [lambda: two_by_two()[1], lambda: [made("a", None, data=Data())]])
def test_people_never_read_none_or_nan(make: Any) -> None:
    records = [*make(), made("n", float(GIB), rate=float("nan"), choices={"packing": None})]
    table = make_table(swept(PACKING, OFFLOAD), records)
    for text in ("\n".join(printed(swept(PACKING, OFFLOAD), records)), markdown(table)):
        assert not re.search(r"\b(None|nan|inf)\b", text)


# ---- csv


def test_csv_has_the_axes_then_the_fixed_columns(tmp_path: Path) -> None:
    rows = csv_of(tmp_path, *two_by_two())
    changes = [f"{name}_vs_baseline" for name in NUMBERS]
    assert list(rows[0]) == ["packing", "offload", "status", "reason", *NUMBERS, *changes]
    assert len(rows) == 4


def test_csv_numbers_are_raw_and_unknown_is_empty(tmp_path: Path) -> None:
    row = csv_of(tmp_path, *two_by_two())[1]
    assert (row["packing"], row["offload"], row["status"], row["reason"]) == ("none", "true", "ok", "")
    assert row["peak_allocated_bytes"] == "6442450944"
    assert row["peak_reserved_bytes"] == row["peak_reserved_bytes_vs_baseline"] == ""
    assert float(row["peak_allocated_bytes_vs_baseline"]) == -25.0
    assert float(row["median_step_seconds"]) == 0.25


def test_csv_lines_end_as_unix_tools_expect(tmp_path: Path) -> None:
    csv_of(tmp_path, *two_by_two())
    content = (tmp_path / "table.csv").read_bytes()
    assert (content.count(b"\n"), content.count(b"\r")) == (5, 0)


def test_csv_keeps_every_column_that_the_other_tables_leave_out(tmp_path: Path) -> None:
    row = csv_of(tmp_path, swept(PACKING), [made("a", choices={"packing": "none"})])[0]
    assert (row["packing"], row["kept_fraction"], row["padding_fraction"]) == ("none", "1.0", "0.0")


def test_csv_has_no_numbers_of_a_cell_that_ran_out_of_memory(tmp_path: Path) -> None:
    sweep, records = two_by_two()
    records[3] = replace(records[3], memory=replace(records[3].memory, peak_allocated_bytes=5))
    row = csv_of(tmp_path, sweep, records)[3]
    assert (row["status"], row["reason"], row["peak_allocated_bytes"]) == ("oom", "CUDA out of memory", "")


def test_csv_options_are_as_typed(tmp_path: Path) -> None:
    axis = Axis("x", (None, True, 1e-5, [1, "a"]), None)
    records = [made(str(n), choices={"x": value}) for n, value in enumerate(axis.options)]
    assert [row["x"] for row in csv_of(tmp_path, swept(axis), records)] == ["null", "true", "1e-05", '[1, "a"]']


HOSTILE = (
    "a,b",
    'say "x"',
    "two\nlines",
    "cr\ronly",
    "=1+1",
    "@SUM(A1)",
    "-5",
    "a|b",
    "a\\|b",
    "[bold red]x[/]",
    "[/]",
    "\x1b[2Jgone",
    "<b>*x*</b> _y_ `z`",
    "\u202etxet",
    ":smile:",
    "| --- |",
    "",
    "日本語",
    "x" * 300 + "1" + "x" * 99,
    "x" * 300 + "2" + "x" * 99,
)


def hostile() -> tuple[Sweep, list[Record]]:
    axis = Axis("data.columns", HOSTILE, HOSTILE[0])
    records: list[Record] = []
    for n, text in enumerate(HOSTILE):
        choices = {axis.name: text}
        records += [made(f"ok{n}", (n + 1) * GIB, choices=choices), not_ok(f"no{n}", "failed", text, choices=choices)]
    return replace(swept(axis), name="a|b [red]*x*"), records


def test_csv_has_no_nan(tmp_path: Path) -> None:
    records = [made(i, GIB, rate=float("nan"), choices={"packing": p}) for i, p in (("a", "none"), ("b", "bfd"))]
    row = csv_of(tmp_path, swept(PACKING), records)[1]
    assert row["real_tokens_per_second"] == row["real_tokens_per_second_vs_baseline"] == ""


def test_csv_keeps_hostile_text_exactly(tmp_path: Path) -> None:
    rows = csv_of(tmp_path, *hostile())
    assert [row["data.columns"] for row in rows[::2]] == list(HOSTILE)
    assert [row["reason"] for row in rows[1::2]] == [text or "failed" for text in HOSTILE]


def test_markdown_shows_hostile_text_as_text() -> None:
    text = markdown(make_table(*hostile()))
    rows = parsed(text)
    assert {len(row) for row in rows} == {3}
    assert len(rows) == 1 + 2 * len(HOSTILE)
    shown = [row[0] for row in rows[1::2]]
    assert shown[2] == "two\\nlines"
    assert shown[4:12] == ["=1+1", "@SUM(A1)", "-5", "a|b", "a\\|b", "[bold red]x[/]", "[/]", "\\x1b[2Jgone"]
    assert shown[12:16] == ["<b>*x*</b> _y_ `z`", "\\u202etxet", ":smile:", "| --- |"]
    assert "\x1b" not in text


@pytest.mark.parametrize("width", [24, 40, 80, 120, 200])
def test_the_terminal_shows_hostile_text_as_text(width: int) -> None:
    text = "".join(" ".join(printed(*hostile(), width=width)).split())
    for expected in ("[boldred]x[/]", "\\x1b[2Jgone", "<b>*x*</b>_y_`z`", ":smile:", "日本語", "a|b[red]*x*"):
        assert expected in text
    assert "\x1b" not in text


def test_long_options_are_told_apart_and_given_in_full_below() -> None:
    lines = printed(*hostile())
    short = [line.split("  ")[0] for line in lines if line.startswith("xxx") and " " in line]
    assert short == ["xxxxxxxxxxxxx…xxxxxxxxxxxxx [1]"] * 2 + ["xxxxxxxxxxxxx…xxxxxxxxxxxxx [2]"] * 2
    assert "[1]is" + HOSTILE[-2] in "".join("".join(lines).split())


# ---- widths


def many_axes() -> tuple[Sweep, list[Record]]:
    axes = (
        Axis("checkpointing", ("none", "full"), "none"),
        Axis("allocator", ("default", "expandable_segments"), "default"),
        Axis("trainer.args.use_liger_kernel", (False, True), False),
        PACKING,
        OFFLOAD,
    )
    records = []
    for n, options in enumerate(itertools.product(*(axis.options for axis in axes))):
        choices = dict(zip((axis.name for axis in axes), options, strict=True))
        data = Data(kept_fraction=1 - n / 100, padding_fraction=n / 100)
        worst = (n + 2) * GIB
        cell = made(str(n), (n + 1) * GIB, reserved=worst, worst=worst, rate=1e4 + n, step=0.1 + n, data=data)
        failed = not_ok(str(n), "failed", "a reason that needs more than one line in most of these consoles, " * 2)
        records.append(replace(failed if n % 5 == 4 else cell, choices=choices))
    return swept(*axes), records


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 160, 240])
@pytest.mark.parametrize("make", [two_by_two, many_axes, hostile])
def test_no_line_is_wider_than_the_terminal(make: Any, width: int) -> None:
    sweep, records = make()
    assert max(map(cell_len, printed(sweep, records, width))) <= width


def test_at_80_columns_a_change_goes_below_its_value() -> None:
    sweep, records = many_axes()
    sweep = replace(sweep, axes=sweep.axes[-2:])
    lines = printed(sweep, records[:4], width=80)
    assert any(re.fullmatch(r"none +true +2\.00 GiB +3\.00 GiB +.*", line) for line in lines)
    assert any(re.fullmatch(r" +\+100\.0% .*", line) for line in lines)


def test_columns_without_room_are_named() -> None:
    lines = printed(*many_axes(), width=100)
    assert "No room here for peak reserved, worst-case peak, step and padding: see table.md." in lines
    assert row_of(lines, "none", "default", "false", "none", "false").endswith("1.00 GiB 10,000 100% baseline")


def test_what_is_reserved_outlives_the_worst_case() -> None:
    """It is the answer where the allocator is swept."""
    lines = printed(*many_axes(), width=110)
    assert "No room here for worst-case peak, step and padding: see table.md." in lines


def test_a_narrow_terminal_loses_no_number() -> None:
    sweep, records = many_axes()
    text = " ".join(" ".join(printed(sweep, records, width=30)).split())
    for number in ("peak allocated 1.00 GiB", "peak reserved 3.00 GiB (+50.0%)", "real tokens/s 10,001", "step 1.10 s"):
        assert number in text


def test_a_long_reason_is_told_once() -> None:
    sweep, records = many_axes()
    text = "\n".join(printed(sweep, records, width=120))
    assert text.count("a reason that needs") == 2
    assert text.count("failed, as above") == 5


def test_ten_thousand_cells_make_a_table(tmp_path: Path) -> None:
    seeds = Axis("seed", tuple(range(2500)), 0)
    records = [
        made(f"{seed}{packing}{offload}", GIB + seed, choices={"seed": seed, "packing": packing, "offload": offload})
        for seed, packing, offload in itertools.product(seeds.options, PACKING.options, OFFLOAD.options)
    ]
    rows = csv_of(tmp_path, swept(seeds, PACKING, OFFLOAD), records)
    assert len(rows) == 10_000
    # The median of the repeats is GIB + 1249.5, so repeats 1249 and 1250 lie half a byte around it.
    assert float(rows[4 * 1250]["peak_allocated_bytes_vs_baseline"]) == pytest.approx(50 / (GIB + 1249.5))


@pytest.mark.parametrize(
    ("width", "line", "lines"),
    [
        (20, "- packing=bfd: kept 97.5% of it", ["- packing=bfd: kept", "  97.5% of it"]),
        (32, "  by phase     load 1 GiB, forward 2 GiB", ["  by phase     load 1 GiB,", f"{'':15}forward 2 GiB"]),
        (20, "packing=bfd offload=true: peaks", ["packing=bfd", "offload=true: peaks"]),
        (20, "short", ["short"]),
        (20, "", [""]),
    ],
)
def test_a_line_that_is_too_long_goes_on_below_where_its_text_began(width: int, line: str, lines: list[str]) -> None:
    console = Console(file=io.StringIO(), width=width)
    assert [part.plain for part in hanging(console, line)] == lines
