"""The worker's word on where it is: one small file beside the plan, which any process on the machine may read."""

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from memexp.frozen import Frozen


@dataclass(frozen=True)
class Progress(Frozen):
    """`step` counts optimizer steps from 1; 0 before the first. `steps` is None until the data is prepared."""

    phase: str
    step: int = 0
    steps: int | None = None


def write_progress(path: Path, progress: Progress) -> None:
    """Replace the file at once, so that no reader sees half of it. A full disk is no reason to end a cell over it."""
    temporary = path.with_suffix(".tmp")
    with contextlib.suppress(OSError):
        temporary.write_text(progress.to_json(), encoding="utf-8")
        os.replace(temporary, path)


def read_progress(path: Path) -> Progress | None:
    """None where there is nothing to read yet, or nothing any more."""
    try:
        return Progress.read(path)
    except (OSError, TypeError, json.JSONDecodeError):
        return None
