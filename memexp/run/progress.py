"""The worker's word on where it is: one small file beside the plan, which any process on the machine may read."""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from memexp.frozen import Frozen
from memexp.results.store import write_atomically

STARTING = "starting"  # until the worker has its imports
_WAITING = "waiting for "


@dataclass(frozen=True)
class Progress(Frozen):
    """`step` counts optimizer steps from 1; 0 before the first. `steps` is None until the data is prepared."""

    phase: str
    step: int = 0
    steps: int | None = None

    @classmethod
    def waiting_for(cls, what: str) -> Self:
        """Of a cell that has not begun: it waits for a GPU, or in a cluster's queue."""
        return cls(f"{_WAITING}{what}")

    @property
    def is_waiting(self) -> bool:
        return self.phase.startswith(_WAITING)


def write_progress(path: Path, progress: Progress) -> None:
    """Replace the file at once, so that no reader sees half of it. A full disk is no reason to end a cell over it."""
    with contextlib.suppress(OSError):
        write_atomically(path, progress.to_json(), durable=False)


def read_progress(path: Path) -> Progress | None:
    """None where there is nothing to read yet, or nothing any more."""
    try:
        return Progress.read(path)
    except (OSError, TypeError, json.JSONDecodeError):
        return None
