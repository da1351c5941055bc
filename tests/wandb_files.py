"""Reads offline W&B runs from their `.wandb` files, without W&B's own reader and without its server."""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2 as proto

_FILE_HEADER_BYTES, _RECORD_HEADER_BYTES, _BLOCK_BYTES = 7, 7, 32 * 1024
_WHOLE, _LAST_PART = 1, 4


@dataclass
class OfflineRun:
    """`run` is W&B's own message: run_id, project, entity, run_group, job_type, display_name, tags."""

    folder: Path
    run: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    exit_code: int | None = None


def read_runs(sweep_folder: Path) -> list[OfflineRun]:
    """Every run folder below `wandb/`, ordered by display name. W&B's own values ("_step", …) are left out."""
    runs = [_read_run(path) for path in sweep_folder.glob("wandb/*/*.wandb")]
    return sorted(runs, key=lambda run: str(run.run.display_name))


def _read_run(path: Path) -> OfflineRun:
    found = OfflineRun(path.parent)
    for record in _records(path.read_bytes()):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found.run = record.run
            found.config |= _items(record.run.config.update)
        elif kind == "history":
            found.history.append(_items(record.history.item))
        elif kind == "summary":
            found.summary |= _items(record.summary.update)
        elif kind == "exit":
            found.exit_code = record.exit.exit_code
    return found


def _items(items: Any) -> dict[str, Any]:
    named = ((item.key or ".".join(item.nested_key), json.loads(item.value_json)) for item in items)
    return {name: value for name, value in named if not name.startswith("_")}


def _records(data: bytes) -> Iterator[Any]:
    position, message = _FILE_HEADER_BYTES, b""
    while position + _RECORD_HEADER_BYTES <= len(data):
        left_in_block = _BLOCK_BYTES - position % _BLOCK_BYTES
        if left_in_block < _RECORD_HEADER_BYTES:
            position += left_in_block
            continue
        _checksum, length, kind = struct.unpack_from("<IHB", data, position)
        position += _RECORD_HEADER_BYTES
        message += data[position : position + length]
        position += length
        if kind in (_WHOLE, _LAST_PART):
            yield proto.Record.FromString(message)
            message = b""
