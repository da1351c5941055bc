"""Records made by hand, for tests of everything that reads them, and the folder of a sweep that holds them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from memexp.results.record import Data, Memory, Oom, Record, Speed
from memexp.results.store import write_record, write_sweep
from memexp.results.sweep import Axis, Sweep, SweepFolder

GIB = 2**30
PACKING = Axis("packing", ("none", "bfd"), "none")
OFFLOAD = Axis("offload", ("false", "true"), "false")


def made(plan_id: str, peak: float | None = 1 * GIB, *, data: Data | None = None, **fields: Any) -> Record:
    """An ok cell that was measured. Options of axes are given as `choices`; `peak` is in bytes."""
    memory = Memory(
        peak_allocated_bytes=None if peak is None else int(peak),
        peak_reserved_bytes=fields.pop("reserved", None),
        worst_case_peak_allocated_bytes=fields.pop("worst", None),
    )
    speed = Speed(median_step_seconds=fields.pop("step", None), real_tokens_per_second=fields.pop("rate", None))
    data = data or Data(real_tokens=1000, kept_tokens=5000, kept_fraction=1.0, padding_fraction=0.0, epochs=0.2)
    fields = {"backend": "cuda", "sweep": "made", "status": "ok", **fields}
    return Record(id=plan_id, memory=memory, speed=speed, data=data, **fields)


def not_ok(plan_id: str, status: str, reason: str | None = None, oom: Oom | None = None, **fields: Any) -> Record:
    return Record(id=plan_id, sweep="made", status=status, reason=reason, memory=Memory(oom=oom), **fields)


def swept(*axes: Axis, cells: str = "", **fields: Any) -> Sweep:
    """A sweep of the cells whose ids are the letters of `cells`."""
    return Sweep(name="made", axes=axes, cells=tuple(cells), **fields)


def folder_of(path: Path, sweep: Sweep, records: Iterable[Record]) -> SweepFolder:
    """The sweep's folder at `path` with these records, and without plans."""
    folder = SweepFolder(path)
    path.mkdir(parents=True, exist_ok=True)
    write_sweep(folder, sweep)
    for record in records:
        folder.cell(record.id).mkdir(parents=True)
        write_record(folder.record(record.id), record)
    return folder


def two_by_two() -> tuple[Sweep, list[Record]]:
    """packing x offload; 8 GiB and 1,000 tokens/s is the baseline, the last cell ran out of memory."""
    oom = Oom("backward", 1, int(37.1 * GIB), int(34.5 * GIB), int(2.6 * GIB))
    records = [
        made("a", 8 * GIB, rate=1000.0, step=0.2, choices={"packing": "none", "offload": "false"}),
        made("b", 6 * GIB, rate=900.0, step=0.25, choices={"packing": "none", "offload": "true"}),
        made("c", 10 * GIB, rate=1500.0, step=0.3, choices={"packing": "bfd", "offload": "false"}),
        not_ok("d", "oom", "CUDA out of memory", oom, choices={"packing": "bfd", "offload": "true"}),
    ]
    return swept(PACKING, OFFLOAD, cells="abcd"), records
