"""What has been exported already: `wandb.json` beside each record. No W&B in here, so that the parent can ask too.

A mark names the bytes of record.json that a run was made from. A changed project, group or config does not make a run
stale; to write a cell's run again, delete its `wandb.json`.
"""

import hashlib
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from memexp.frozen import Frozen
from memexp.results.store import write_atomically


@dataclass(frozen=True)
class Mark(Frozen):
    """The W&B run of one cell. `exported_from` is the SHA-256 of record.json, `url` is None for an offline run."""

    id: str
    mode: str
    exported_from: str
    url: str | None = None


def read_mark(record_path: Path) -> Mark | None:
    """The mark beside this record, or None when there is none or it cannot be read."""
    try:
        return Mark.read(_mark_path(record_path))
    except (OSError, ValueError, TypeError):
        return None


def write_mark(record_path: Path, mark: Mark) -> None:
    """Replaces an older mark in one step. Raises OSError."""
    write_atomically(_mark_path(record_path), mark.to_json(), durable=False)


def is_exported(record_path: Path, mode: str) -> bool:
    """True when a run was written in this mode from exactly the record that lies there now."""
    mark = read_mark(record_path)
    try:
        return mark is not None and (mark.mode, mark.exported_from) == (mode, fingerprint(record_path.read_bytes()))
    except OSError:
        return False


def read_summary_mark(folder: Path) -> Mark | None:
    """The mark of a sweep's summary run, `wandb.json` in its folder, or None."""
    return read_mark(folder / "sweep.json")


def write_summary_mark(folder: Path, mark: Mark) -> None:
    """Replaces an older mark in one step. Raises OSError."""
    write_mark(folder / "sweep.json", mark)


def is_summarised(folder: Path, mode: str) -> bool:
    """True when the summary was written in this mode from exactly the records that lie there now."""
    mark = read_summary_mark(folder)
    return mark is not None and (mark.mode, mark.exported_from) == (mode, sweep_fingerprint(folder))


def sweep_fingerprint(folder: Path) -> str:
    """Of every record of the sweep together."""
    found = hashlib.sha256()
    for path in sorted(folder.glob("cells/*/record.json")):
        with suppress(OSError):
            found.update(fingerprint(path.read_bytes()).encode())
    return found.hexdigest()


def fingerprint(record_json: bytes) -> str:
    return hashlib.sha256(record_json).hexdigest()


def run_id(wandb_folder: Path, plan_id: str) -> str:
    """The same id for the same cell of the same sweep, and another one for the same plan in another sweep.

    The sweep is told by a random word in its folder and not by its path: two machines may use one path and one project.
    """
    identity = wandb_folder / "identity"
    if not identity.exists():
        write_atomically(identity, uuid.uuid4().hex, durable=False)
    return hashlib.sha256(f"{identity.read_text()}/{plan_id}".encode()).hexdigest()[:16]


def _mark_path(record_path: Path) -> Path:
    return record_path.with_name("wandb.json")
