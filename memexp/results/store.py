"""Records and sweeps on disk. A file is either whole or not there, and a damaged record is never read as a result.

Folders are made by whoever starts a sweep; nothing here creates one. A read-only folder or a full disk raises OSError
that names the file that was asked for.
"""

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex

from memexp.frozen import Frozen
from memexp.plan.plan import Plan
from memexp.results.record import Record
from memexp.results.strict import read_strictly
from memexp.results.sweep import Sweep, SweepFolder
from memexp.results.verdict import judged
from memexp.secrets import secrets_in, without_secrets


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
    return Stored(tuple(judged(sweep, records)), tuple(missing), tuple(damaged))


def write_record(path: Path, record: Record) -> None:
    """Write one record.json, without the user's keys. Raises ValueError for NaN or infinity, before touching a file."""
    write_atomically(path, _json(record))


def write_records_jsonl(folder: SweepFolder, records: Iterable[Record]) -> None:
    """Replace records.jsonl: one record a line, in the order given."""
    write_atomically(folder.records_jsonl, "".join(_json(record) for record in records))


def write_sweep(folder: SweepFolder, sweep: Sweep) -> None:
    """Write sweep.json, on which resuming and `memexp report` rely."""
    write_atomically(folder.sweep_json, _json(sweep))


def write_plan(folder: SweepFolder, plan: Plan) -> None:
    """Write the plan.json of a cell whose folder is there: `plan.id` names it. Written again by whoever resumes."""
    write_atomically(folder.plan(plan.id), _json(plan), durable=False)


def read_sweep(folder: SweepFolder) -> Sweep:
    """The inverse of `write_sweep`. Raises OSError where there is none, ValueError or TypeError for another shape."""
    return read_strictly(Sweep, folder.sweep_json)


def write_atomically(path: Path, text: str, durable: bool = True) -> None:
    """Replace `path` as a whole: readers see the old text or the new one, also after a crash or a full disk.

    Not `durable`: for what is made again where the machine itself loses power. Waiting for the disk takes milliseconds.
    """
    # A lone surrogate becomes the escape that JSON reads back as the same character.
    content = text.encode("utf-8", "backslashreplace")
    with replacing(path) as temporary, temporary.open("xb") as file:
        file.write(content)
        file.flush()
        if durable:
            os.fsync(file.fileno())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to instead: what is there takes the place of `path` when the block ends, unless that raises.

    An OSError names `path`.
    """
    temporary = path.with_name(f".{path.name}.{token_hex(4)}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            # A full disk names no file, and the temporary name would tell a user nothing.
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def _json(data: Frozen) -> str:
    shown = without_secrets(data.to_dict(), secrets_in(os.environ))
    return json.dumps(shown, allow_nan=False, ensure_ascii=False) + "\n"


def _read_record(path: Path, plan_id: str) -> Record | None:
    try:
        record = read_strictly(Record, path)
        if record.id != plan_id:
            raise ValueError(f"the record of {record.id} lies in the folder of {plan_id}")
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, RecursionError):
        set_aside(path)
        return None
    return record


def set_aside(path: Path) -> None:
    """Rename a damaged file to NAME.damaged-N, where nothing reads it and nothing is lost."""
    number = 1
    while (target := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    with suppress(FileNotFoundError):  # another reader was faster
        path.rename(target)
