"""Whether a technique that must not change the loss did not: every step's loss against that of the baseline.

A verdict is made only where it means something: the two cells differ in nothing but techniques whose files say
`same_loss`, trained the same steps on as many tokens, and both losses are known. Else there is none, and none for a
trainer that samples what it trains on: another rounding there is another sample.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from memexp.plan import conf
from memexp.results.compare import compare
from memexp.results.format import option_text
from memexp.results.grid import Grid
from memexp.results.record import Record
from memexp.results.sweep import Sweep

SAME, DIFFERENT = "same", "different"
# Of the largest loss. In fp32 sums in another order differ in the last digits, and steps of the optimizer make more of
# it; bf16 rounds each number to 8 bits, half of the last of which is 2**-9, and a loss is a mean of many.
RELATIVE_TOLERANCE = {None: 1e-4, "bfloat16": 2**-8, "float16": 2**-11}


def judged(sweep: Sweep, records: Sequence[Record]) -> list[Record]:
    """The records, with `loss.verdict`, `max_abs_difference` and `tolerance` where a verdict can be made."""
    against = {cell.record.id: cell.against for cell in compare(Grid(sweep, records)).cells if not cell.is_baseline}
    return [_judged(record, against.get(record.id, ())) for record in records]


def _judged(record: Record, baselines: Sequence[Record]) -> Record:
    # Repeats stand against the one of their own seed.
    base = next((other for other in baselines if _must_have_its_loss(record, other)), None)
    if base is None:
        return record
    pairs = list(zip(record.loss.per_step, base.loss.per_step, strict=True))
    known = [(mine, other) for mine, other in pairs if mine is not None and other is not None]
    if not known or len(known) < len(pairs):
        return record
    difference = max(abs(mine - other) for mine, other in known)
    largest = max(abs(other) for _, other in known)
    tolerance = RELATIVE_TOLERANCE.get(base.effective.get("autocast_dtype"), RELATIVE_TOLERANCE[None]) * max(
        1.0, largest
    )
    verdict = SAME if difference <= tolerance else DIFFERENT
    loss = replace(record.loss, verdict=verdict, max_abs_difference=difference, tolerance=tolerance)
    return replace(record, loss=loss)


def _must_have_its_loss(record: Record, base: Record) -> bool:
    if (record.status, base.status) != ("ok", "ok") or record.effective.get("fell_back") or _samples(record):
        return False
    if len(record.loss.per_step) != len(base.loss.per_step) or record.data.real_tokens != base.data.real_tokens:
        return False
    keys = record.choices.keys() | base.choices.keys()
    changed = [key for key in keys if option_text(record.choices.get(key)) != option_text(base.choices.get(key))]
    return bool(changed) and all(
        _keeps_the_loss(key, record.choices.get(key), base.choices.get(key)) for key in changed
    )


def _samples(record: Record) -> bool:
    trainer = option_text(record.choices.get("trainer"))
    return trainer in conf.groups()["trainer"] and conf.option("trainer", trainer).get("rows") == "prompts"


def _keeps_the_loss(group: str, *options: Any) -> bool:
    if group not in conf.groups() or group in conf.STRUCTURE:
        return False
    files = [conf.option(group, option_text(name)) for name in options if option_text(name) in conf.groups()[group]]
    kept = [file for file in files if file.get("same_loss")]
    return len(files) == len(options) and bool(kept) and all(file in kept or file.get("is_off") for file in files)


def sentences(grid: Grid) -> list[str]:
    """What the verdicts of a sweep come to, the bad ones first."""
    judged_cells = [record for record in grid.ok if record.loss.verdict]
    said = []
    for record in judged_cells:
        if record.loss.verdict == DIFFERENT:
            off, allowed = record.loss.max_abs_difference, record.loss.tolerance
            told = f"off by {off:.3g}, where {allowed:.1g} is rounding"
            said.append(f"{grid.label(record)} has another loss than the baseline: {told}")
    same = [record for record in judged_cells if record.loss.verdict == SAME]
    if same:
        largest = max(record.loss.max_abs_difference or 0.0 for record in same)
        said.append(f"{grid.describe(same, grid.ok)}: the same loss as the baseline in every step, to {largest:.1g}")
    return said
