"""Records and sweeps on disk. A file is either whole or not there, and a damaged record is never read as a result.

Folders are made by whoever starts a sweep; nothing here creates one. A read-only folder or a full disk raises OSError
that names the file that was asked for.
"""

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from memexp.results.record import Record
from memexp.results.strict import read_strictly
from memexp.results.sweep import Sweep, SweepFolder


@dataclass(frozen=True)
class Stored:
    """What a sweep's folder holds. `missing` are the cells that have to run, those with a damaged record among them."""

    records: tuple[Record, ...] = ()
    missing: tuple[str, ...] = ()
    damaged: tuple[Path, ...] = ()


def read_records(folder: SweepFolder, sweep: Sweep) -> Stored:
    """Every record of the sweep, in grid order. A damaged record.json is renamed to record.json.damaged-N.

    `damaged` names the files set aside now or earlier for cells that still have no record. Raises OSError where a
    file is there and cannot be opened or renamed.
    """
    records: list[Record] = []
    missing: list[str] = []
    damaged: list[Path] = []
    for plan_id in sweep.cells:
        record = _read_record(folder.record(plan_id), plan_id)
        if record is not None:
            records.append(record)
        else:
            missing.append(plan_id)
            damaged.extend(sorted(folder.cell(plan_id).glob("record.json.damaged-*")))
    return Stored(tuple(records), tuple(missing), tuple(damaged))


def write_record(path: Path, record: Record) -> None:
    """Write one record.json. Raises ValueError for NaN or infinity, before any file is touched."""
    write_atomically(path, record.to_json() + "\n")


def write_records_jsonl(folder: SweepFolder, records: Iterable[Record]) -> None:
    """Replace records.jsonl: one record a line, in the order given."""
    write_atomically(folder.records_jsonl, "".join(record.to_json() + "\n" for record in records))


def write_sweep(folder: SweepFolder, sweep: Sweep) -> None:
    """Write sweep.json, on which resuming and `memexp report` rely."""
    write_atomically(folder.sweep_json, sweep.to_json() + "\n")


def read_sweep(folder: SweepFolder) -> Sweep:
    """The inverse of `write_sweep`. Raises OSError where there is none, ValueError or TypeError for another shape."""
    return read_strictly(Sweep, folder.sweep_json)


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` as a whole: readers see the old text or the new one, also after a crash or a full disk."""
    # A lone surrogate becomes the escape that JSON reads back as the same character.
    content = text.encode("utf-8", "backslashreplace")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            # A full disk names no file, and the temporary name would tell a user nothing.
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def _read_record(path: Path, plan_id: str) -> Record | None:
    try:
        record = read_strictly(Record, path)
        if record.id != plan_id:
            raise ValueError(f"the record of {record.id} lies in the folder of {plan_id}")
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, RecursionError):
        _set_aside(path)
        return None
    return record


def _set_aside(path: Path) -> None:
    number = 1
    while (target := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    with suppress(FileNotFoundError):  # another reader was faster
        path.rename(target)
