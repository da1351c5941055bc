"""What the caching allocator did in a cell, kept as a file that `make check-traces` replays.

Off unless the environment names a folder in MEMEXP_TRACES: recording every allocation costs time and memory. Stack
frames are stripped, so that a trace tells sizes and addresses and nothing of the machine that it is from.
"""

import gzip
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VARIABLE = "MEMEXP_TRACES"
_MOST_EVENTS = 5_000_000
_BLOCK = ("address", "size", "requested_size", "state")
_SEGMENT = ("address", "total_size", "stream", "segment_type")


def traces_folder() -> Path | None:
    """Where to keep traces; None where nobody asks for them."""
    folder = os.environ.get(VARIABLE)
    return Path(folder) if folder else None


@contextmanager
def cuda_trace(path: Path) -> Iterator[None]:
    """Record the allocator of the current CUDA device, from here to the end of the block."""
    import torch

    torch.cuda.memory._record_memory_history("all", context=None, stacks="python", max_entries=_MOST_EVENTS)
    try:
        with kept_trace(path, torch.cuda.memory._snapshot):
            yield
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


@contextmanager
def kept_trace(path: Path, snapshot: Callable[[], dict[str, Any]]) -> Iterator[None]:
    """Write what `snapshot` tells at the end of the block, however that comes."""
    try:
        yield
    finally:
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt", encoding="utf-8") as file:
            json.dump(stripped(snapshot()), file, separators=(",", ":"))


def stripped(snapshot: dict[str, Any]) -> dict[str, Any]:
    """`torch.cuda.memory._snapshot()` less everything that a replay does not need."""
    segments = [
        {**{key: segment[key] for key in _SEGMENT}, "blocks": [_only(block, _BLOCK) for block in segment["blocks"]]}
        for segment in snapshot["segments"]
    ]
    traces = [
        [[event["action"], event.get("addr", 0), event.get("size", 0), event.get("stream", 0)] for event in device]
        for device in snapshot["device_traces"]
    ]
    return {"segments": segments, "device_traces": traces}


def _only(values: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: values[key] for key in keys if key in values}
