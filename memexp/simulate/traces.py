"""Hold the simulated allocator against recordings of the real one: `python -m memexp.simulate.traces FOLDER`.

A trace is a PyTorch memory snapshot as gzip-compressed JSON: `segments`, the state at its end, and `device_traces`,
what the allocator did, as `[action, address, size, stream]`. Each allocation is made again in a simulated allocator
that starts from the same state, and has to come out at the same address. Left out: recordings of more than one device,
and of other settings than the default ones, for which the state at the start cannot be told.
"""

import argparse
import gzip
import json
import sys
import zlib
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from memexp.simulate.allocator import CachingAllocator
from memexp.simulate.allocator.settings import MIB, SMALL_MAX_BYTES, SMALL_SEGMENT_BYTES, AllocatorSettings

Segment = dict[str, Any]
TraceEvent = tuple[str, int, int, int]

UNLIMITED_BYTES = 1 << 62


def main(arguments: list[str] | None = None) -> int:
    """Print one line a file. 0: all exact; 1: one differs or cannot be replayed; 2: no folder, or no trace in it."""
    parser = argparse.ArgumentParser(
        prog="python -m memexp.simulate.traces",
        description="Hold the simulated allocator against recordings of the real one.",
    )
    parser.add_argument("folder", type=Path, help="where the *.json.gz files are")
    folder: Path = parser.parse_args(arguments).folder
    files = sorted(folder.glob("*.json.gz"))
    if not files:
        print(f"{folder} {'holds no *.json.gz file' if folder.is_dir() else 'is not a folder'}", file=sys.stderr)
        return 2
    return max([_report(file) for file in files])


@dataclass(frozen=True)
class Replay:
    """`mismatch` is the first difference from the recording, in words; None if there is none."""

    events: int
    allocations: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    mismatch: str | None


def replay(trace: dict[str, Any]) -> Replay:
    """Raises ValueError for a recording that cannot be replayed; other built-in errors for one of another layout."""
    events = _events(trace)
    segments: list[Segment] = trace["segments"]
    replayer = _Replayer(initial_segments(segments, events))
    mismatch = replayer.run(events) or replayer.compare_end(segments)
    statistics = replayer.allocator.statistics
    return Replay(
        events=len(events),
        allocations=sum(action == "alloc" for action, *_ in events),
        peak_allocated_bytes=statistics.allocated_bytes.peak,
        peak_reserved_bytes=statistics.reserved_bytes.peak,
        mismatch=mismatch,
    )


def initial_segments(segments: list[Segment], events: list[TraceEvent]) -> list[Segment]:
    """The state before the first event, found by undoing the events from the last state backwards.

    A block that lived before the trace and died in it is known by its requested size only. Its tail is taken to be part
    of it up to 1 MiB in the large pool, where no smaller rest is ever split off. What a recording contradicts itself in
    is left for the replay to find.
    """
    before = {segment["address"]: segment for segment in segments}
    active = {
        block["address"]: block for segment in segments for block in segment["blocks"] if block["state"] != "inactive"
    }
    for action, address, size, stream in reversed(events):
        if action == "segment_alloc":
            before.pop(address, None)
        elif action == "segment_free":
            kind = "small" if size == SMALL_SEGMENT_BYTES else "large"
            before[address] = {"address": address, "total_size": size, "stream": stream, "segment_type": kind}
        elif action == "alloc":
            active.pop(address, None)
        elif action == "free_completed":
            active[address] = {"address": address, "size": None, "requested_size": size}
    in_order = sorted(active.values(), key=_address)
    return [{**segment, "blocks": _fill(segment, in_order)} for segment in before.values()]


class _Mismatch(Exception):
    pass


class _Replayer:
    def __init__(self, segments: list[Segment]) -> None:
        self.allocator = CachingAllocator(UNLIMITED_BYTES, new_address=self._recorded_address)
        self.allocator.load(segments)
        self._new_segments: deque[tuple[int, int]] = deque()

    def run(self, events: list[TraceEvent]) -> str | None:
        """The first mismatch. A run of segment_free is what one empty_cache gives back."""
        done = 0
        try:
            for is_release, run in groupby(events, key=lambda event: event[0] == "segment_free"):
                if is_release:
                    done += self._empty_cache({(address, size) for _, address, size, _ in run})
                    continue
                for event in run:
                    self._step(*event)
                    done += 1
        except (_Mismatch, ValueError) as error:
            return f"event {done}: {error}"
        return None

    def compare_end(self, segments: list[Segment]) -> str | None:
        reserved = self.allocator.statistics.reserved_bytes.current
        recorded = sum(segment["total_size"] for segment in segments)
        if reserved != recorded:
            return f"at the end: {reserved} bytes reserved, recorded {recorded}"
        different = _layout(self.allocator.segments()) ^ _layout(segments)
        return f"at the end: the block at {min(different)[0]:#x} differs" if different else None

    def _step(self, action: str, address: int, size: int, stream: int) -> None:
        if action == "segment_alloc":
            self._new_segments.append((address, size))
        elif action == "free_completed":
            self.allocator.free(address)
        elif action == "alloc":
            got = self.allocator.malloc(size, stream)
            if self._new_segments:
                raise _Mismatch(f"{size} bytes from the cache, recorded a new segment for them")
            if got != address:
                raise _Mismatch(f"{size} bytes at {got:#x}, recorded at {address:#x}")

    def _empty_cache(self, recorded: set[tuple[int, int]]) -> int:
        before = _extents(self.allocator.segments())
        self.allocator.empty_cache()
        given_back = before - _extents(self.allocator.segments())
        if different := given_back ^ recorded:
            address, size = min(different)
            whose = "only the simulation" if (address, size) in given_back else "only the recording"
            raise _Mismatch(f"{whose} gives back the {size} bytes at {address:#x}")
        return len(recorded)

    def _recorded_address(self, size: int) -> int:
        if not self._new_segments:
            raise _Mismatch(f"a new segment of {size} bytes, recorded none")
        address, recorded_size = self._new_segments.popleft()
        if size != recorded_size:
            raise _Mismatch(f"a new segment of {size} bytes, recorded {recorded_size}")
        return address


def _events(trace: dict[str, Any]) -> list[TraceEvent]:
    settings = (trace.get("allocator_settings") or {}).get("PYTORCH_CUDA_ALLOC_CONF")
    if settings:
        raise ValueError(f"recorded with the settings {settings}; only default settings can be replayed")
    recorded = [events for events in trace["device_traces"] if events]
    if len(recorded) != 1:
        raise ValueError(f"has events of {len(recorded)} devices; only those of one can be replayed")
    return [(action, address, size, stream) for action, address, size, stream in recorded[0]]


def _fill(segment: Segment, active: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks of a segment: those of `active`, by address, that lie in it, with inactive ones between them."""
    position, end = segment["address"], segment["address"] + segment["total_size"]
    inside = active[bisect_left(active, position, key=_address) : bisect_left(active, end, key=_address)]
    limits = [*map(_address, inside), end][1:]
    blocks = []
    for block, limit in zip(inside, limits, strict=True):
        if block["address"] > position:
            blocks.append(_inactive(position, block["address"] - position))
        size = block["size"] or _size_in(segment, block["requested_size"], limit - block["address"])
        blocks.append({**block, "size": size, "state": "active_allocated"})
        position = block["address"] + size
    return [*blocks, _inactive(position, end - position)] if position < end else blocks


def _address(block: dict[str, Any]) -> int:
    return int(block["address"])


def _inactive(address: int, size: int) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": 0, "state": "inactive"}


def _size_in(segment: Segment, requested_size: int, room: int) -> int:
    size = AllocatorSettings().round_size(requested_size)
    return room if segment["segment_type"] == "large" and room - size <= SMALL_MAX_BYTES else size


def _extents(segments: list[Segment]) -> set[tuple[int, int]]:
    return {(segment["address"], segment["total_size"]) for segment in segments}


def _layout(segments: list[Segment]) -> set[tuple[int, int, bool]]:
    blocks = (block for segment in segments for block in segment["blocks"])
    return {(block["address"], block["size"], block["state"] == "inactive") for block in blocks}


def _report(file: Path) -> int:
    try:
        result = replay(json.loads(gzip.decompress(file.read_bytes())))
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"{file.name}: cannot be replayed: {type(error).__name__}: {error}")
        return 1
    allocated, reserved = result.peak_allocated_bytes / MIB, result.peak_reserved_bytes / MIB
    print(
        f"{file.name}: {result.events} events, {result.allocations} allocations, "
        f"peak {allocated:,.1f} MiB allocated, {reserved:,.1f} MiB reserved: {result.mismatch or 'exact'}"
    )
    return 0 if result.mismatch is None else 1


if __name__ == "__main__":
    sys.exit(main())
