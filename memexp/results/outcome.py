"""How a cell that is not ok ended, in one sentence for people."""

from memexp.results.format import GIB, bytes_text, one_line
from memexp.results.record import Oom, Record

_VERBS = {"timeout": "timed out"}


def outcome(record: Record) -> str:
    """`OOM in backward of step 1: asked 37.1 GiB, …`, `refused (needs_hardware): …`; empty for a cell that is ok."""
    if record.is_ok:
        return ""
    reason = one_line(record.reason or "")
    if record.status == "oom":
        return _oom(record.memory.oom, reason)
    kind = f" ({record.reason_kind})" if record.reason_kind else ""
    return f"{_VERBS.get(record.status, record.status)}{kind}" + (f": {reason}" if reason else "")


def _oom(oom: Oom | None, reason: str) -> str:
    if oom is None:
        return f"OOM: {reason}" if reason else "OOM"
    place = "OOM"
    if oom.phase:
        place += f" in {one_line(oom.phase)}"
    if oom.step is not None:
        place += f" of step {oom.step}" if oom.phase else f" in step {oom.step}"
    figures = []
    if oom.requested_bytes is not None:
        figures.append(f"asked {_bytes(oom.requested_bytes)}")
    if oom.free_bytes is not None:
        free = _bytes(oom.free_bytes)
        same_unit = figures and figures[0].split()[-1] == free.split()[-1]
        figures.append(f"{free.split()[0] if same_unit else free} free")
    if oom.phase == "load" and figures:
        # The next tensor of the model did not fit, and nobody knows how many were still to come.
        figures.append("and more is needed than could be seen")
    elif oom.short_bytes is not None:
        figures.append(f"at least {_bytes(oom.short_bytes)} short")
    return f"{place}: {', '.join(figures)}" if figures else place + (f": {reason}" if reason else "")


def _bytes(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else bytes_text(count)
