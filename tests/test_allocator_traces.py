"""The replayer on a recording written by hand: it accepts the right one and says where a changed one goes wrong."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memexp.simulate import traces

MIB = 1 << 20
OLD, LARGE, SMALL = 0x1000_0000, 0x4000_0000, 0x8000_0000
RECORDED = os.environ.get("MEMEXP_TRACES")

Trace = dict[str, Any]


def recording() -> Trace:
    """5 MiB get a new large segment. A block of 13.5 MiB from before the trace, alone in 14 MiB (the tail is its own),
    is freed and its segment is the best fit for 14 MiB; 14 MiB more fit beside the 5, with a tail of 1 MiB. 1000 bytes
    get a small segment. All but the 5 MiB is freed, the cache is emptied, and 3 MiB come from beside the 5."""
    events = [
        ["segment_alloc", LARGE, 20 * MIB, 0],
        ["alloc", LARGE, 5 * MIB, 0],
        ["free_requested", OLD, 13 * MIB + MIB // 2, 0],
        ["free_completed", OLD, 13 * MIB + MIB // 2, 0],
        ["alloc", OLD, 14 * MIB, 0],
        ["alloc", LARGE + 5 * MIB, 14 * MIB, 0],
        ["segment_alloc", SMALL, 2 * MIB, 0],
        ["alloc", SMALL, 1000, 0],
        ["free_requested", SMALL, 1000, 0],
        ["free_completed", SMALL, 1000, 0],
        ["free_completed", OLD, 14 * MIB, 0],
        ["free_completed", LARGE + 5 * MIB, 14 * MIB, 0],
        ["segment_free", OLD, 14 * MIB, 0],
        ["segment_free", SMALL, 2 * MIB, 0],
        ["alloc", LARGE + 5 * MIB, 3 * MIB, 0],
    ]
    blocks = [
        {"address": LARGE, "size": 5 * MIB, "requested_size": 5 * MIB, "state": "active_allocated"},
        {"address": LARGE + 5 * MIB, "size": 3 * MIB, "requested_size": 3 * MIB, "state": "active_allocated"},
        {"address": LARGE + 8 * MIB, "size": 12 * MIB, "requested_size": 14 * MIB, "state": "inactive"},
    ]
    segment = {"address": LARGE, "total_size": 20 * MIB, "stream": 0, "segment_type": "large", "blocks": blocks}
    return {"segments": [segment], "device_traces": [events]}


def test_a_right_recording_is_exact() -> None:
    result = traces.replay(recording())
    assert result.mismatch is None
    assert (result.events, result.allocations) == (15, 5)
    assert result.peak_allocated_bytes == (14 + 5 + 15) * MIB + 1024
    assert result.peak_reserved_bytes == (14 + 20 + 2) * MIB


def test_the_state_at_the_start_is_what_undoing_the_events_leaves() -> None:
    trace = recording()
    events = [tuple(event) for event in trace["device_traces"][0]]
    (segment,) = traces.initial_segments(trace["segments"], events)
    assert (segment["address"], segment["total_size"], segment["segment_type"]) == (OLD, 14 * MIB, "large")
    (block,) = segment["blocks"]
    assert (block["address"], block["size"], block["state"]) == (OLD, 14 * MIB, "active_allocated")


def change(index: int, field: int, value: int) -> Callable[[Trace], None]:
    def apply(trace: Trace) -> None:
        trace["device_traces"][0][index][field] = value

    return apply


def drop(index: int) -> Callable[[Trace], None]:
    return lambda trace: trace["device_traces"][0].pop(index)


def claim_a_larger_segment(trace: Trace) -> None:
    trace["segments"][0]["total_size"] += 2 * MIB


def claim_a_larger_last_block(trace: Trace) -> None:
    trace["segments"][0]["blocks"][1]["size"] += 512


def claim_a_new_segment(trace: Trace) -> None:
    trace["device_traces"][0].insert(14, ["segment_alloc", SMALL, 20 * MIB, 0])
    trace["segments"].append({**trace["segments"][0], "address": SMALL, "blocks": []})


@pytest.mark.parametrize(
    ("damage", "report"),
    [
        (change(7, 1, SMALL + 512), f"event 7: 1000 bytes at {SMALL:#x}, recorded at {SMALL + 512:#x}"),
        (change(0, 2, 22 * MIB), "event 1: a new segment of 20971520 bytes, recorded 23068672"),
        (change(4, 2, 16 * MIB), "event 4: a new segment of 16777216 bytes, recorded none"),
        (change(9, 1, SMALL + 512), f"event 9: nothing is allocated at address {SMALL + 512:#x}"),
        (claim_a_new_segment, "event 15: 3145728 bytes from the cache, recorded a new segment for them"),
        (drop(13), f"event 12: only the simulation gives back the 2097152 bytes at {SMALL:#x}"),
        (drop(10), f"event 11: only the recording gives back the 14680064 bytes at {OLD:#x}"),
        (claim_a_larger_segment, "at the end: 20971520 bytes reserved, recorded 23068672"),
        (claim_a_larger_last_block, f"at the end: the block at {LARGE + 5 * MIB:#x} differs"),
    ],
)
def test_a_wrong_recording_is_reported_where_it_goes_wrong(damage: Callable[[Trace], None], report: str) -> None:
    trace = recording()
    damage(trace)
    assert traces.replay(trace).mismatch == report


def save(folder: Path, name: str, trace: Trace) -> None:
    (folder / name).write_bytes(gzip.compress(json.dumps(trace).encode()))


def test_exact_files_exit_0_with_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, "a.json.gz", recording())
    save(tmp_path, "b.json.gz", recording())
    assert traces.main([str(tmp_path)]) == 0
    line = "15 events, 5 allocations, peak 34.0 MiB allocated, 36.0 MiB reserved: exact"
    assert capsys.readouterr().out.splitlines() == [f"a.json.gz: {line}", f"b.json.gz: {line}"]


def test_one_wrong_file_exits_1_and_the_others_are_still_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = recording()
    claim_a_larger_segment(wrong)
    save(tmp_path, "a.json.gz", wrong)
    save(tmp_path, "b.json.gz", recording())
    assert traces.main([str(tmp_path)]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("at the end: 20971520 bytes reserved, recorded 23068672")
    assert second.endswith("exact")


def _zipped(text: bytes) -> bytes:
    return gzip.compress(text, mtime=0)  # no time of day in it: every process must collect the same tests


@pytest.mark.parametrize(
    ("content", "report"),
    [
        (b"not gzip", "BadGzipFile"),
        (_zipped(b"not json"), "JSONDecodeError"),
        (_zipped(b"[]"), "AttributeError"),
        (_zipped(b'{"segments": [], "device_traces": []}'), "has events of 0 devices"),
        (
            _zipped(b'{"allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}'),
            "only default settings can be replayed",
        ),
    ],
)
def test_a_file_that_is_no_trace_exits_1_and_says_why(
    content: bytes, report: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.json.gz").write_bytes(content)
    assert traces.main([str(tmp_path)]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("bad.json.gz: cannot be replayed: ") and report in line


def test_a_folder_without_traces_exits_2_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert traces.main([str(tmp_path)]) == 2
    assert traces.main([str(tmp_path / "missing")]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"{tmp_path} holds no *.json.gz file",
        f"{tmp_path / 'missing'} is not a folder",
    ]


def test_the_command_needs_neither_torch_nor_hydra(tmp_path: Path) -> None:
    save(tmp_path, "a.json.gz", recording())
    without = "import runpy, sys; sys.modules['torch'] = sys.modules['hydra'] = None; "
    run = without + "runpy.run_module('memexp.simulate.traces', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", run, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("exact\n")


@pytest.mark.skipif(RECORDED is None, reason="MEMEXP_TRACES does not name a folder of recorded traces")
def test_recordings_of_real_gpus_are_exact(capsys: pytest.CaptureFixture[str]) -> None:
    assert traces.main([str(RECORDED)]) == 0, capsys.readouterr().out
