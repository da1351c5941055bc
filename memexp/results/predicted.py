"""The sign for a number that comes from a model: `~` before it, and the line that says whose prediction it is."""

from collections.abc import Iterable

from memexp.results.record import Record


def tilde(record: Record, figure: str) -> str:
    """`~` where `figure`, as `memory.peak_reserved_bytes`, is predicted in this record, and nothing where it is not."""
    return "~" if record.is_predicted(figure) else ""


def predicted_by(backends: Iterable[str | None]) -> str:
    """What the sign means. On the CPU only what a GPU would reserve is predicted."""
    by = {"a model of CUDA's caching allocator" if backend == "cpu" else "the simulated GPU" for backend in backends}
    return f"~ predicted by {' and '.join(sorted(by))}" if by else ""
