"""The child's whole story: read the plan, build, train under the meters, confirm, and write the record.

    python -m memexp.run.worker …/cells/<id>/plan.json PARENT_PID

Whatever goes wrong in here is a row: the record says what, the log has the traceback. Only what ends the process itself
(an exit, a signal) leaves no record, and the parent writes one then.
"""

import contextlib
import ctypes
import os
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from memexp.measure.host import reset_host_peak
from memexp.measure.memory import MemoryMeter
from memexp.measure.tokens import CountingCollator
from memexp.plan.plan import Plan
from memexp.results.record import Record, Timing
from memexp.results.store import write_record
from memexp.run.build import build_args, build_config, build_model, build_tokenizer, build_trainer, trainer_class
from memexp.run.confirm import effective_settings, fallen_back
from memexp.run.data import how_rows_are_made, load_data
from memexp.run.device import Device
from memexp.run.distributed import give_up, meet, part, this_rank
from memexp.run.environment import describe_worker
from memexp.run.measured import measured_by_rank, measured_path
from memexp.run.metered import StepEdges, metered
from memexp.run.meters import Meters
from memexp.run.preparation import longest_kept, prepared_lengths, steps_to_take
from memexp.run.progress import Progress, write_progress
from memexp.run.reference import reference_built_alike
from memexp.run.refusal import Refused, objection
from memexp.run.row_lengths import RowLengths
from memexp.run.sharding import SamplingWatch
from memexp.run.summary import by_category, data_fields, is_oom, loss_fields, memory_fields, oom_fields, speed_fields
from memexp.run.tokenizer_check import check_tokenizer
from memexp.run.tokens_cache import TokensCache
from memexp.run.unmeasured import base_record
from memexp.run.vllm import keep_weights_for_vllm
from memexp.run.worst_case import worst_case_step

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(plan_path: str, parent: int, process: str = "fresh") -> int:
    """Run one plan and leave its record beside it for the parent, the process of that number.

    Returns 0, the exit code of a record written.
    """
    _end_with_parent(parent)
    path = Path(plan_path)
    plan = Plan.read(path)
    job = Job(plan, path.parent, process)
    record = job.run()
    if plan.work.processes == 1:
        write_record(measured_path(path), record)
        return 0
    write_record(measured_by_rank(path, this_rank()), record)
    # The others wait for a rank that gave up, until the parent ends them.
    return 0 if record.is_ok else give_up()


class Job:
    """One cell on its way from plan to record. However it stops, what was measured by then is in the record."""

    def __init__(self, plan: Plan, folder: Path, process: str) -> None:
        self.plan, self.folder, self.process = plan, folder, process
        self.started = time.perf_counter()
        self.setup_seconds: float | None = None
        self.train_seconds: float | None = None
        self.device = Device.of(plan)
        self.meters = Meters(MemoryMeter(self.device.counter), self.device.clock, self._on_step)
        self.trainer: Any = None
        self.rows_in: int | None = None
        self.lengths: RowLengths | None = None  # of the prepared rows
        self.effective: dict[str, Any] = {}
        self.categories: dict[str, int] = {}

    def run(self) -> Record:
        """Never raises an Exception: the record's status says what happened, and the log has the traceback."""
        try:
            self._run()
        except Refused as refusal:
            return replace(self._record("refused"), reason_kind=refusal.kind, reason=str(refusal))
        except Exception as error:
            traceback.print_exc()
            objected = objection(error, self.plan.choices)
            if objected is not None:
                return replace(self._record("refused"), reason_kind=objected.kind, reason=objected.reason)
            if type(error).__name__ == "UnsupportedOperationError":
                refused = f"backend=simulate cannot tell what this model takes: {_reason(error)}"
                return replace(self._record("refused"), reason_kind="unsupported", reason=refused)
            if not is_oom(error):
                return replace(self._record("failed"), reason=_reason(error))
            record = self._record("oom")
            oom = oom_fields(error, self.meters.memory)
            # While a model is loaded nothing is known of its tensors yet.
            there = by_category(self.device.peak_categories() if self.setup_seconds is not None else {})
            return replace(record, memory=replace(record.memory, oom=oom, peak_categories=there), reason=_reason(error))
        return self._record("ok")

    def _run(self) -> None:
        reset_host_peak()
        meet(self.plan)
        with tempfile.TemporaryDirectory(prefix="memexp-") as scratch, self.device:
            with self.meters.memory.phase("load"):
                self._build(Path(scratch))
            self.setup_seconds = time.perf_counter() - self.started
            began = time.perf_counter()
            self.device.training_begins()
            self._train()
            self.categories = self.device.peak_categories()
            assert self.lengths is not None
            worst_case_step(self.trainer, self.meters, self.lengths.widths, lambda: self._on_step("worst_case", 0))
            self.train_seconds = time.perf_counter() - began
        part(self.plan)

    def _build(self, scratch: Path) -> None:
        self._on_step("load", 0)
        plan = self.plan
        config = build_config(plan.work.model)
        vocab_size = config.get_text_config().vocab_size
        cache = TokensCache(self.folder.parents[1] / "tokens", plan, vocab_size)
        self.meters.on_tokenised = cache.write
        tokenizer = build_tokenizer(plan)
        rows = cache.read() or load_data(plan, vocab_size, tokenizer)
        self.rows_in = len(rows)
        check_tokenizer(tokenizer, rows, plan)
        args = build_args(plan, scratch)  # first: with it transformers knows whether ZeRO-3 splits what is built
        model = self._model(config)
        keep_weights_for_vllm(plan, model, tokenizer, scratch)
        trainer = trainer_class(plan)
        with reference_built_alike(plan, trainer, lambda: self._model(config)):
            own = metered(trainer, self.meters, plan.work.trainer.rows)
            self.trainer = build_trainer(plan, own, model, args, rows, tokenizer)

    def _model(self, config: Any) -> Any:
        with self.device.building():
            return build_model(self.plan, config)

    def _train(self) -> None:
        trainer, work = self.trainer, self.plan.work
        self.lengths = prepared_lengths(trainer, work.trainer.rows, self.meters)
        steps = steps_to_take(trainer, work, self.lengths)
        trainer.args.max_steps = steps.total
        if work.trainer.rows != "prompts":  # those are counted where they are sampled
            collator = CountingCollator(trainer.data_collator, packed=getattr(trainer.args, "packing", False))
            trainer.data_collator = self.meters.collator = collator
        trainer.add_callback(StepEdges(self.meters))
        sampling = SamplingWatch(trainer.model)
        self.meters.begin(steps)
        trainer.train()
        self.effective = effective_settings(trainer, self.meters.batch_keys) | sampling.settings()

    def _on_step(self, phase: str, step: int) -> None:
        if this_rank() > 0:
            return
        steps = self.meters.steps.total or None
        write_progress(self.folder / "progress.json", Progress(phase, step, steps))

    def _record(self, status: str) -> Record:
        plan, meters = self.plan, self.meters
        speed = speed_fields(meters)
        effective = {**self.effective, "fell_back": fallen_back(plan, self.effective)} if self.effective else {}
        return replace(
            base_record(plan, sweep=self.folder.parents[1].name),
            status=status,
            effective=effective,
            notes=(*plan.notes, *how_rows_are_made(plan), *self.device.notes()) if meters.counts else plan.notes,
            predicted=self.device.predicted,
            memory=memory_fields(meters.memory, self.device.sampler, self.categories),
            speed=speed,
            data=data_fields(meters, self.rows_in, self.lengths, plan.choices["packing"], longest_kept(self.trainer)),
            loss=loss_fields(meters.losses),
            simulation=self.device.simulation(),
            environment={**describe_worker(self.process), **self.device.facts},
            timing=Timing(setup_seconds=self.setup_seconds, train_seconds=self.train_seconds),
        )


def _end_with_parent(parent: int) -> None:
    """A worker whose parent was killed trains for nobody. Linux only; elsewhere it trains to its end."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The kernel tells of deaths from here on; the imports before took seconds.
    if os.getppid() != parent:
        raise SystemExit(f"process {parent}, which started this worker, is gone")


def _reason(error: Exception) -> str:
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}" if said else type(error).__name__


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
