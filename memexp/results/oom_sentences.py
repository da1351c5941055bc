"""What was on the card when memory ran out, and which options act on it: lines below the table, for cells that are OOM.

What an option acts on is data of its file (`acts_on`), and to act on is not always to lower: packing fills rows up.
Where nobody knows what was on the card, as on a real one, the techniques are named that act on what the phase can hold.
"""

from collections.abc import Iterator, Mapping, Sequence

from memexp.plan import conf
from memexp.results.format import bytes_text, fraction_text, listing, one_line, option_text
from memexp.results.grid import THIS_CELL, Grid, grouped
from memexp.results.phases import HELD, STATE, largest_part, shares, verb
from memexp.results.predicted import tilde
from memexp.results.record import Record

_LOAD = "load"
_MOST_SENTENCES = 6
_MOST_NAMED = 12
_OF_THE_BATCH = ("activations", "logits")
_SHAPE = ("batch_size", "max_length")


def oom_sentences(grid: Grid) -> list[str]:
    """One sentence for all cells that ran out in one phase, of the same, with the same ways out; the most cells first.

    Nothing for a cell of which neither is known. Options that the cell has, or whose technique already acts on the
    largest part, are not named, nor are those of other trainers.
    """
    cells = [record for record in grid.records if record.status == "oom" and _phase(record) and _may_hold(record)]
    groups = grouped(cells, lambda record: (_phase(record), _largest(record), tuple(_acting(record))))
    sentences = [_sentence(grid, group) for group in sorted(groups, key=lambda group: -len(group))]
    rest = len(sentences) - _MOST_SENTENCES
    return sentences[:_MOST_SENTENCES] + ([f"… and {rest:,} more like it"] if rest > 0 else [])


def _sentence(grid: Grid, cells: Sequence[Record]) -> str:
    name = grid.describe(cells, grid.records)
    who = name[0].upper() + name[1:] if name.startswith(("every", THIS_CELL)) else name
    if " and " in name:  # cells named one by one
        who = f"{len(cells):,} cells"
    acting = _acting(cells[0])
    if _largest(cells[0]) in _OF_THE_BATCH:
        acting += [key for key in _SHAPE if cells[0].choices.get(key) not in (None, 1)]
    advice = f": {listing(acting, at_most=_MOST_NAMED)} {verb(acting, 'act')} on that" if acting else ""
    return f"{who} ran out in {_phase(cells[0])}, {_what_is_there(cells)}{advice}"


def _what_is_there(cells: Sequence[Record]) -> str:
    largest = _largest(cells[0])
    if largest is None:
        held = [STATE.get(part, part) for part in _held(cells[0])]
        return f"which holds {listing(held, at_most=len(held))}"
    by_size = sorted(cells, key=lambda record: _size(record, largest) or 0)
    told = " to ".join(dict.fromkeys(_told(record, largest) for record in (by_size[0], by_size[-1])))
    if _phase(cells[0]) == _LOAD:
        return (
            f"with {told} of weights so far and more to come" if told else "which holds weights, and more were to come"
        )
    return f"when the largest part was {STATE.get(largest, largest)}, {told}"


def _told(record: Record, part: str) -> str:
    """`~18.10 GiB (80%)`; in load, where all there is are weights, without the share. Empty for an unknown size."""
    size = _size(record, part)
    if size is None:
        return ""
    share = f" ({fraction_text(round(shares(record)[part], 2))})" if _phase(record) != _LOAD else ""
    return tilde(record, "memory.peak_allocated_bytes") + bytes_text(size) + share


def _acting(record: Record) -> list[str]:
    """`quantization=int8,nf4`, or the techniques alone where the largest part is not known."""
    largest = _largest(record)
    if largest is None:
        return sorted(group for group, acts in conf.acts_on().items() if set(acts) & set(_held(record)))
    return [
        f"{group}={','.join(names)}"
        for group in sorted(conf.acts_on())
        if (names := [*_options(group, largest, record.choices)])
    ]


def _options(group: str, part: str, choices: Mapping[str, object]) -> Iterator[str]:
    files = {name: conf.option(group, name) for name in conf.groups()[group]}
    now = files.get(option_text(choices.get(group)), {})
    if part in (now.get("acts_on") or ()):
        return
    for name, file in files.items():
        trainers = file.get("trainers")
        if part in (file.get("acts_on") or ()) and (not trainers or choices.get("trainer", "sft") in trainers):
            yield name


def _phase(record: Record) -> str | None:
    return one_line(record.memory.oom.phase) if record.memory.oom and record.memory.oom.phase else None


def _held(record: Record) -> tuple[str, ...]:
    return HELD.get(_phase(record) or "", ())


def _may_hold(record: Record) -> bool:
    return bool(_held(record) or _largest(record))


def _largest(record: Record) -> str | None:
    return "weights" if _phase(record) == _LOAD else largest_part(record)


def _size(record: Record, part: str) -> int | None:
    if _phase(record) == _LOAD:
        return record.memory.load_peak_allocated_bytes
    size: int | None = record.memory.peak_categories[f"{part}_bytes"]
    return size
