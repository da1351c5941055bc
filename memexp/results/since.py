"""A sweep against an earlier one, cell by cell: `memexp report FOLDER --since OTHER`.

Cells are the same by their id, else by their choices: an id changes with what memexp puts into a plan. OTHER is a
sweep's folder, or anything with a records.jsonl, as the tables in results/reference/ are.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from memexp.frozen import Frozen
from memexp.plan.plan import PlanError
from memexp.results.agreement import TOLERANCE_PERCENT, Difference, changes_text, differences, environment_changes
from memexp.results.format import listing, visible
from memexp.results.open import open_sweep
from memexp.results.outcome import outcome
from memexp.results.record import Record
from memexp.results.store import read_records
from memexp.results.strict import parse_strictly
from memexp.results.sweep import SweepFolder

_MOST_CELLS = 20


@dataclass(frozen=True)
class Pair(Frozen):
    """One cell then and now. `moved` is empty where the two agree; cells that are not ok have but their status."""

    before: Record
    after: Record
    moved: tuple[Difference, ...] = ()

    @property
    def agrees(self) -> bool:
        return self.before.status == self.after.status and not self.moved


@dataclass(frozen=True)
class Since(Frozen):
    """`pairs` in the order of the later sweep; the others have no partner."""

    pairs: tuple[Pair, ...]
    only_before: tuple[Record, ...] = ()
    only_now: tuple[Record, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether every cell that is on both sides came out as before. False where none is."""
        return bool(self.pairs) and all(pair.agrees for pair in self.pairs)


def since(before: Sequence[Record], now: Sequence[Record]) -> Since:
    """Pair the records and compare each pair."""
    by_id = {record.id: record for record in before}
    by_choices = {_choices(record): record for record in before}
    pairs: list[Pair] = []
    alone: list[Record] = []
    for record in now:
        earlier = by_id.get(record.id) or by_choices.get(_choices(record))
        if earlier is None:
            alone.append(record)
        else:
            both_ok = earlier.is_ok and record.is_ok
            pairs.append(Pair(earlier, record, differences(earlier, record) if both_ok else ()))
    met = {pair.before.id for pair in pairs}
    return Since(tuple(pairs), tuple(record for record in before if record.id not in met), tuple(alone))


def read_earlier(path: Path) -> tuple[Record, ...]:
    """The records of a sweep's folder, or of a records.jsonl. Raises PlanError where there are none to be read."""
    file = path / "records.jsonl" if path.is_dir() else path
    if path.is_dir() and (SweepFolder(path).sweep_json.exists() or not file.exists()):
        return read_records(*open_sweep(path, "report … --since")).records
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise PlanError(f"--since {path}: {why}. Type a sweep's folder, or a records.jsonl.") from error
    return tuple(_record(line, number, file) for number, line in enumerate(lines, start=1) if line.strip())


def since_lines(found: Since, name: str) -> Iterator[str]:
    """Plain lines: how many cells agree, what moved in the others, what could explain it, and what has no partner."""
    tolerances = f"memory within {TOLERANCE_PERCENT['memory']:g}%, speed within {TOLERANCE_PERCENT['speed']:g}%"
    same = sum(pair.agrees for pair in found.pairs)
    if found.pairs:
        yield f"Since {visible(name)}: {same:,} of {len(found.pairs):,} cells as before ({tolerances})"
    else:
        yield f"No cell in common with {visible(name)}: nothing to compare"
    moved = [pair for pair in found.pairs if not pair.agrees]
    for pair in moved[:_MOST_CELLS]:
        yield f"- {_label(pair.after)}: {_what_moved(pair)}"
    if len(moved) > _MOST_CELLS:
        yield f"- … and {len(moved) - _MOST_CELLS:,} more"
    changes = Counter(changes_text(environment_changes(pair.before, pair.after)) for pair in found.pairs)
    for text, count in changes.most_common(_MOST_CELLS):
        if text:
            yield f"- {'Every cell' if count == len(found.pairs) else f'{count:,} cells'}: {text}"
    for records, where in ((found.only_now, "Only here"), (found.only_before, "Only there")):
        if records:
            yield f"- {where}: {listing([_label(record) for record in records])}"


def _what_moved(pair: Pair) -> str:
    if pair.before.status != pair.after.status:
        return f"{outcome(pair.before) or 'ok'} before, {outcome(pair.after) or 'ok'} now"
    return ", ".join(map(str, pair.moved))


def _label(record: Record) -> str:
    return visible(record.cell) or record.id


def _choices(record: Record) -> str:
    return json.dumps(record.choices, sort_keys=True, default=str)


def _record(line: str, number: int, file: Path) -> Record:
    try:
        return parse_strictly(Record, line)
    except (ValueError, TypeError, RecursionError) as error:
        raise PlanError(f"--since {file}: line {number} is no record ({error}). Type a sweep's folder.") from error
