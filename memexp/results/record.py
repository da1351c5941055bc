"""The Record: all that leaves a worker, and all that tables, W&B and later commands read. JSON, no torch.

Unknown is None, never 0 or -1. Numbers are raw, in the unit of their name: bytes, seconds, fractions of 1.
"""

from dataclasses import dataclass, field
from typing import Any

from memexp.frozen import Frozen

SCHEMA_VERSION = 1
STATUSES = ("ok", "oom", "refused", "failed", "timeout", "killed")
# Of these the cell says nothing about its job: something went wrong around it.
BROKEN = ("failed", "timeout", "killed")
REASON_KINDS = ("unsupported", "conflict", "needs_hardware", "needs_package", "invalid_data", "not_found")
CATEGORIES = (
    "weights_bytes",
    "gradients_bytes",
    "optimizer_bytes",
    "activations_bytes",
    "logits_bytes",
    "workspaces_bytes",
)


@dataclass(frozen=True)
class Oom(Frozen):
    """Where memory ran out. `short_bytes` is the least that was missing: the step may ask for more later."""

    phase: str | None = None
    step: int | None = None
    requested_bytes: int | None = None
    free_bytes: int | None = None
    short_bytes: int | None = None


@dataclass(frozen=True)
class Memory(Frozen):
    """Peaks by phase. `peak_allocated_bytes` and `peak_reserved_bytes` are over warmup and measured, never load.

    `peak_categories` is of that peak; of a cell that is OOM, of the highest point until memory ran out, null in load.
    """

    load_peak_allocated_bytes: int | None = None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    peak_phase: str | None = None
    phases: dict[str, Any] = field(default_factory=dict)
    peak_categories: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(CATEGORIES))
    worst_case_peak_allocated_bytes: int | None = None
    device_used_peak_bytes: int | None = None
    host_peak_bytes: int | None = None
    pinned_peak_bytes: int | None = None
    alloc_retries: int | None = None
    capacity_bytes: int | None = None
    per_step: tuple[dict[str, Any], ...] = ()
    oom: Oom | None = None


@dataclass(frozen=True)
class Speed(Frozen):
    """Rates over the measured steps only: the sum of tokens over the sum of seconds, never tokens over a median.

    `mfu` is for a job whose FLOPs are known. It is null in every record so far: they depend on what is frozen, on the
    experts of a token and on the lengths of its documents, which no formula of the parameters alone has.
    """

    step_seconds: tuple[float, ...] = ()
    median_step_seconds: float | None = None
    real_tokens_per_second: float | None = None
    loss_tokens_per_second: float | None = None
    slot_tokens_per_second: float | None = None
    samples_per_second: float | None = None
    mfu: float | None = None
    phases: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Data(Frozen):
    """`real_tokens` were trained on in this run; `kept_tokens` are those of the whole prepared dataset."""

    rows_in: int | None = None
    rows_kept: int | None = None
    rows_packed: int | None = None
    real_tokens: int | None = None
    kept_tokens: int | None = None
    kept_fraction: float | None = None
    padding_fraction: float | None = None
    cut_rows: int | None = None
    steps: int | None = None
    epochs: float | None = None
    steps_per_epoch: int | None = None
    hours_per_epoch: float | None = None


@dataclass(frozen=True)
class Loss(Frozen):
    """The loss of every step, unmeasured ones included. The verdict against a baseline is made where cells meet."""

    per_step: tuple[float | None, ...] = ()
    first: float | None = None
    last: float | None = None
    verdict: str | None = None
    max_abs_difference: float | None = None
    tolerance: float | None = None


@dataclass(frozen=True)
class Simulation(Frozen):
    """How far a simulated number can be trusted; None in a record of measurements.

    `peak_reserved_at_most_bytes` is what is reserved where memory that two streams share is free again as late as can
    be, which `memory.peak_reserved_bytes` takes to be at once; None without offloading, and where it would not fit.
    """

    coverage: float | None = None
    unknown_ops: tuple[str, ...] = ()
    rule_branches: dict[str, int] = field(default_factory=dict)
    peak_reserved_at_most_bytes: int | None = None


@dataclass(frozen=True)
class Timing(Frozen):
    """`setup_seconds` is from the worker's start to the first step, `wall_seconds` is what the parent waited."""

    setup_seconds: float | None = None
    train_seconds: float | None = None
    wall_seconds: float | None = None
    started_at: str | None = None


@dataclass(frozen=True)
class Record(Frozen):
    """One cell: what was asked, what was really used, what it took. Only `id`, `sweep` and `status` always exist.

    Of a cell of several processes the peaks are the highest of any and the tokens those of all; `ranks` has them apart.
    """

    id: str
    sweep: str
    status: str
    cell: str = ""
    schema_version: int = SCHEMA_VERSION
    reason_kind: str | None = None
    reason: str | None = None
    notes: tuple[str, ...] = ()
    backend: str | None = None
    predicted: tuple[str, ...] = ()
    choices: dict[str, Any] = field(default_factory=dict)
    effective: dict[str, Any] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)
    speed: Speed = field(default_factory=Speed)
    data: Data = field(default_factory=Data)
    loss: Loss = field(default_factory=Loss)
    simulation: Simulation | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    timing: Timing = field(default_factory=Timing)
    ranks: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r} is not one of {', '.join(STATUSES)}")
        if self.reason_kind is not None and self.reason_kind not in REASON_KINDS:
            raise ValueError(f"reason_kind {self.reason_kind!r} is not one of {', '.join(REASON_KINDS)}")

    @property
    def is_ok(self) -> bool:
        """Whether it ran to its end: only then are there numbers to compare."""
        return self.status == "ok"

    def is_predicted(self, figure: str) -> bool:
        """Whether `figure`, as `memory.peak_reserved_bytes`, comes from a model. One cell may have both kinds: what is
        allocated on the CPU is counted, and what would be reserved is not."""
        return figure in self.predicted or figure.partition(".")[0] in self.predicted
