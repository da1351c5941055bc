"""What stands below a table: where its numbers do not compare, and what they leave out. One sentence each."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from memexp.results import alike, verdict
from memexp.results.compare import DIFFERENT_WORK, Baseline, Comparison
from memexp.results.few_rows import rows_timed, timed_on_few_rows
from memexp.results.format import listing, one_line, option_text, visible
from memexp.results.grid import THIS_CELL, Grid, grouped
from memexp.results.outcome import outcome
from memexp.results.record import Record
from memexp.results.software import mixed

_FEW_TOKENS_KEPT = 0.95
_MOST_OF_A_KIND = 6
_Thing = TypeVar("_Thing")


def remarks(
    grid: Grid, comparison: Comparison, missing: Sequence[str] = (), damaged: Sequence[Path] = ()
) -> tuple[str, ...]:
    """Plain sentences, the most important first. They hold text from records: escape them where that matters."""
    kinds: list[list[str]] = [
        _without_baseline(grid, comparison, missing),
        _tokens_cut(grid),
        _fell_back(grid, comparison),
        verdict.sentences(grid),
        _different_work(grid, comparison),
        _few_rows(grid),
        _the_first(alike.sentences(grid), str),
        _mixed_software(grid),
        _shared_gpus(grid),
        _notes_of_cells(grid),
        _long_options(grid),
        _not_run(grid, missing),
        _set_aside(damaged),
    ]
    return tuple(line for lines in kinds for line in lines)


def _without_baseline(grid: Grid, comparison: Comparison, missing: Sequence[str]) -> list[str]:
    def sentence(baseline: Baseline) -> str:
        place = f" for {grid.typed(_lists(baseline.group))}" if baseline.group else ""
        name = f"baseline {grid.typed(_lists(baseline.options))}" if baseline.options else "baseline"
        return f"No differences{place}: the {name} {_why_unusable(grid, baseline, missing)}"

    return _the_first([b for b in comparison.baselines if b.others and not b.usable], sentence)


def _why_unusable(grid: Grid, baseline: Baseline, missing: Sequence[str]) -> str:
    if baseline.ok:
        return f"asked for {listing(sorted(set(baseline.fell_back)))}, which fell back"
    if baseline.records:
        return f"is not ok: {outcome(baseline.records[0])}"
    offered = {axis.name: [option_text(value) for value in axis.options] for axis in grid.sweep.axes}
    possible = all(text in offered.get(axis, ()) for axis, text in baseline.options.items())
    return "has not run yet" if missing and possible else "is no cell of this sweep"


def _tokens_cut(grid: Grid) -> list[str]:
    cut = [r for r in grid.ok if r.data.kept_fraction is not None and r.data.kept_fraction < _FEW_TOKENS_KEPT]
    groups = grouped(cut, lambda record: (record.data.kept_tokens, record.data.kept_fraction, _rows_dropped(record)))
    if len(groups) > _MOST_OF_A_KIND:
        shares = [1 - (record.data.kept_fraction or 0.0) for record in cut]
        worst = f"{_share(min(shares))} to {_share(max(shares))}"
        return [f"{len(cut):,} of {len(grid.ok):,} cells cut {worst} of the tokens: compare what they kept"]
    return [_sentence(f"{grid.describe(cells, grid.ok)} {_what_was_cut(cells[0])}") for cells in groups]


def _what_was_cut(record: Record) -> str:
    """Whether rows were cut or left out is TRL's choice by trainer, and is read from what became of them."""
    data, dropped = record.data, _rows_dropped(record)
    kept, fraction = data.kept_tokens, data.kept_fraction or 0.0
    counts = f" ({kept:,} of {kept / fraction:,.0f} kept)" if kept and fraction else ""
    tokens = f"{_share(1 - fraction)} of the tokens{counts}"
    if not dropped:
        return f"cut {tokens}"
    if dropped == data.cut_rows:
        return f"dropped {dropped:,} of {data.rows_in:,} rows longer than max_length, and with them {tokens}"
    return f"cut {tokens}, and dropped {dropped:,} of {data.rows_in:,} rows"


def _rows_dropped(record: Record) -> int:
    """Rows that are gone as a whole; 0 also where that is unknown, and of packed rows, which lose only empty ones."""
    data = record.data
    if data.rows_in is None or data.rows_kept is None or data.rows_packed is not None:
        return 0
    return data.rows_in - data.rows_kept


def _fell_back(grid: Grid, comparison: Comparison) -> list[str]:
    lines = []
    for name in dict.fromkeys(name for cell in comparison.cells for name in cell.fell_back):
        cells = [cell for cell in comparison.cells if name in cell.fell_back]
        is_compared = any(change is not None for cell in cells for change in cell.vs_baseline.values())
        who = grid.describe([cell.record for cell in cells], grid.ok)
        line = f"{who} asked for {one_line(name)}, which fell back: trained without it"
        lines.append(_sentence(line + ("" if is_compared else ", so no differences are shown")))
    return lines


def _different_work(grid: Grid, comparison: Comparison) -> list[str]:
    other = [cell.record for cell in comparison.cells if DIFFERENT_WORK in cell.flags]
    if not other:
        return []
    baseline = [record for b in comparison.baselines for record in b.ok]
    against = f", the baseline on {_work(baseline)}" if baseline else ""
    has_budget = any(key.startswith("budget.") and value is not None for key, value in grid.sweep.fixed.items())
    advice = "" if has_budget else "; with budget.tokens=N every cell trains on as many"
    return [f"Different work: {grid.describe(other, grid.ok)} trained on {_work(other)}{against}{advice}"]


def _few_rows(grid: Grid) -> list[str]:
    few = [record for record in grid.ok if record.id in timed_on_few_rows(grid.ok)]
    if not few:
        return []
    rows = _range([rows_timed(record) for record in few], ",.0f")
    who = grid.describe(few, grid.ok)
    timed = f"timed on {rows} row{'' if rows == '1' else 's'}"
    return [_sentence(f"{who}: {timed}, too few for a speed that compares with that of other rows; type more steps")]


def _work(records: Sequence[Record]) -> str:
    tokens = _range([record.data.real_tokens for record in records], ",.0f") or "unknown"
    epochs = _range([record.data.epochs for record in records], ",.3g")
    return f"{tokens} real tokens" + (f" in {epochs} epochs" if epochs else "")


def _range(numbers: Iterable[float | None], form: str) -> str:
    known = [number for number in numbers if number is not None]
    texts = dict.fromkeys(format(number, form) for number in ((min(known), max(known)) if known else ()))
    return " to ".join(texts)


def _mixed_software(grid: Grid) -> list[str]:
    found = mixed(record.environment for record in grid.records if record.status != "refused")
    return [visible(f"Cells ran on different versions, and may not compare: {listing(found)}")] if found else []


def _shared_gpus(grid: Grid) -> list[str]:
    shared = [record for record in grid.records if record.environment.get("foreign_processes")]
    if not shared:
        return []
    who = grid.describe(shared, grid.records)
    return [_sentence(f"{who} shared the GPU with other processes: memory of the device and speed are not the cell's")]


def _notes_of_cells(grid: Grid) -> list[str]:
    cells = defaultdict(list)
    for record in grid.records:
        for note in dict.fromkeys(record.notes):
            cells[note].append(record)

    def sentence(note: str) -> str:
        noted = cells[note]
        among = grid.ok if all(record.is_ok for record in noted) else grid.records
        return _sentence(f"{grid.describe(noted, among)}: {one_line(note)}")

    return _the_first(list(cells), sentence)


def _long_options(grid: Grid) -> list[str]:
    return _the_first(grid.legend(), lambda option: f"{visible(option[0])}={option[1]} is {option[2]}")


def _not_run(grid: Grid, missing: Sequence[str]) -> list[str]:
    if not missing:
        return []
    total = len(grid.records) + len(missing)
    resume = f"the same command with sweep={visible(grid.sweep.name)} runs {'it' if len(missing) == 1 else 'them'}"
    return [f"Not run yet: {len(missing):,} of {total:,} cells ({listing(missing)}); {resume}"]


def _set_aside(damaged: Sequence[Path]) -> list[str]:
    return _the_first(
        damaged, lambda path: f"Damaged record, set aside and not read: {visible('/'.join(path.parts[-3:]))}"
    )


def _lists(options: dict[str, str]) -> dict[str, list[str]]:
    return {axis: [text] for axis, text in options.items()}


def _share(fraction: float) -> str:
    return ">99%" if 0.995 <= fraction < 1 else f"{100 * fraction:.0f}%"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] if text.startswith(("every", THIS_CELL)) else text


def _the_first(things: Sequence[_Thing], sentence: Callable[[_Thing], str]) -> list[str]:
    rest = len(things) - _MOST_OF_A_KIND
    more = [f"… and {rest:,} more like it"] if rest > 0 else []
    return [sentence(thing) for thing in things[:_MOST_OF_A_KIND]] + more
