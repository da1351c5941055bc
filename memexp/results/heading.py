"""What stands above a table: everything that is the same for all cells, the way it is typed."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from memexp.results.format import option_text, visible
from memexp.results.grid import Grid
from memexp.results.predicted import predicted_by
from memexp.results.record import STATUSES, Record
from memexp.results.software import versions_of

_JOB = ("trainer", "model", "model.path", "data", "data.path", "backend", "gpu")
_SHAPE = ("batch_size", "gradient_accumulation", "max_length")
_PACKAGES = ("memexp", "trl", "transformers", "torch", "peft", "bitsandbytes")
# Options that say nothing to a reader who does not see them.
_USUAL = {
    "launch": ("single",),
    "ds3_gather": ("true",),
    "gradient_accumulation": ("1",),
    "seed": ("0",),
    "threads": ("1",),
    "max_length": (),  # null is a setting here, not the absence of one
}
_OFF = ("none", "false", "default", "null")
_NOT_ABOUT_THE_JOB = (
    *("logger", "experiment", "isolation", "results_dir", "sweep", "baseline"),
    *("jobs", "timeout_seconds", "rerun", "fail_fast"),
)


def heading(grid: Grid, missing: Sequence[str] = ()) -> tuple[str, ...]:
    """Plain lines: the job, its settings, the software and the card, and how the cells ended."""
    lines = [
        *job_lines(grid),
        _software(grid.records),
        _how_they_ended(grid.records, missing),
        predicted_by(record.backend for record in grid.ok if record.predicted),
    ]
    return tuple(line for line in lines if line)


def job_lines(grid: Grid) -> tuple[str, ...]:
    """The job, and what else is the same for all cells but said on no axis of the grid, as it is typed."""
    same = _same_for_all(grid)
    job = {key: same.pop(key) for key in _JOB if key in same}
    if job.get("backend", "simulate") != "simulate":
        job.pop("gpu", None)
    settings = {key: same.pop(key) for key in _SHAPE if key in same} | same
    return tuple(line for line in (_typed(job), _typed(settings)) if line)


def _same_for_all(grid: Grid) -> dict[str, str]:
    """Choices on which every cell agrees and that are worth a word, under the names that are typed."""
    keys = grid.records[0].choices if grid.records else ()
    found = {key: _constant(option_text(r.choices[key]) for r in grid.records if key in r.choices) for key in keys}
    found["backend"] = _constant(record.backend for record in grid.records) or found.get("backend")
    hidden = {*_NOT_ABOUT_THE_JOB, *grid.axes}
    if any(text not in (None, "null") for key, text in found.items() if key.startswith("budget.")):
        hidden |= {"steps", "unmeasured_steps"}
    return {
        key: text
        for key, text in found.items()
        if text is not None and text not in _USUAL.get(key, _OFF) and key not in hidden
    }


def _software(records: Sequence[Record]) -> str:
    stated = [versions_of(r.environment) | {"memexp": r.environment.get("memexp")} for r in records]
    words = []
    for package in _PACKAGES:
        version = _constant(versions.get(package) for versions in stated)
        words += [f"{package} {version}"] if version else []
    card = _constant(record.environment.get("gpu") for record in records)
    words += [f"on {card}"] if card else []
    return visible(", ".join(words))


def _how_they_ended(records: Sequence[Record], missing: Sequence[str]) -> str:
    counts = Counter(record.status for record in records)
    words = [f"{counts[status]:,} {status}" for status in STATUSES if counts[status]]
    words += [f"{len(missing):,} not run yet"] if missing else []
    total = len(records) + len(missing)
    return f"{total:,} {'cell' if total == 1 else 'cells'}: {', '.join(words)}" if total else "no cells"


def _constant(values: Iterable[Any]) -> str | None:
    """The value as text where everyone who knows it says the same, else None."""
    found: str | None = None
    last: Any = None
    for value in values:
        if value is None or (value == last and type(value) is type(last)):
            continue
        text, last = option_text(value), value
        if found is not None and text != found:
            return None
        found = text
    return found


def _typed(options: dict[str, str]) -> str:
    return visible(" ".join(f"{key}={text}" for key, text in options.items()))
