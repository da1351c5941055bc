"""The parent's side of a cell of several processes: its ranks are started together, and end together.

Each rank is a worker with the variables that torchrun would give it. torchrun itself is left out: its agent spends ten
seconds on importing torch, restarts what a measurement must not restart, and of a rank that died it knows no more than
the parent, who sees each death himself and so which one came first.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from memexp.plan.plan import Plan
from memexp.results.record import Record
from memexp.results.store import write_record
from memexp.results.strict import read_strictly
from memexp.run.environment import worker_environment
from memexp.run.measured import measured_by_rank, measured_path
from memexp.run.merge import merge_ranks
from memexp.run.process_group import end_group, start_worker
from memexp.run.unmeasured import record_of_a_death

# Where the ranks meet: memexp.run.distributed.
MEETING_VARIABLE = "MEMEXP_MEETING_FILE"
_POLL_SECONDS = 0.02  # a rank takes longer to notice that another is gone, so that the first death is seen as the first


class Ranks:
    """The processes of one cell, like one to whoever waits. When they have ended, `measured.json` is their record."""

    def __init__(self, plan: Plan, plan_path: Path, gpus: Sequence[str] = ()) -> None:
        self._plan, self._plan_path = plan, plan_path
        self._records = [measured_by_rank(plan_path, rank) for rank in range(plan.work.processes)]
        self._remove_records()
        self._folder = tempfile.TemporaryDirectory(prefix="memexp-")
        self._processes: list[subprocess.Popen[bytes]] = []
        environment = worker_environment(plan, os.environ, gpus)
        plan_path.with_name("log.txt").unlink(missing_ok=True)
        try:
            for rank in range(plan.work.processes):
                variables = rank_variables(plan, rank, Path(self._folder.name))
                self._processes.append(start_worker(plan_path, environment | variables))
        except BaseException:
            self.kill()
            raise

    def wait(self, timeout_seconds: float | None) -> int | None:
        """0 where every rank ended well, else the exit code of the first that did not, None for a timeout."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while True:
            codes = [process.poll() for process in self._processes]
            failed = next((rank for rank, code in enumerate(codes) if code), None)
            code = 0 if failed is None else codes[failed]
            if failed is not None or None not in codes:
                self.end()
                if code is not None:
                    write_record(measured_path(self._plan_path), self._record(failed, code))
                self.kill()
                return code
            if deadline is not None and time.monotonic() > deadline:
                self.kill()
                return None
            time.sleep(_POLL_SECONDS)

    def kill(self) -> None:
        self.end()
        for process in self._processes:
            process.wait()
        self._remove_records()
        self._folder.cleanup()

    def end(self) -> None:
        """End them all from another thread than the one that waits."""
        for process in self._processes:
            end_group(process.pid)

    def _record(self, failed: int | None, code: int) -> Record:
        try:
            if failed is None:
                return merge_ranks([read_strictly(Record, path) for path in self._records])
            record = read_strictly(Record, self._records[failed])
        except (OSError, ValueError, TypeError, RecursionError):
            record = record_of_a_death(self._plan, self._plan_path, code)
        # What was ended with it says nothing: a refusal is the same for each, and any other end is this one's own.
        of_rank = record.status != "refused" and failed is not None
        return replace(record, reason=f"rank {failed}: {record.reason}") if of_rank else record

    def _remove_records(self) -> None:
        for path in self._records:
            path.unlink(missing_ok=True)


def rank_variables(plan: Plan, rank: int, folder: Path) -> dict[str, str]:
    """What a rank must know, over the environment of a worker. `folder` is on a disk of this machine."""
    processes = str(plan.work.processes)
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": processes,
        "LOCAL_WORLD_SIZE": processes,
        MEETING_VARIABLE: str(folder / "meeting"),
        "TMPDIR": str(folder),  # what a rank that is ended leaves there goes with the folder
    }
    # DeepSpeed looks for a GPU itself, and would take one that the cell is not to use.
    return variables | ({"DS_ACCELERATOR": "cpu"} if plan.work.backend == "cpu" else {})
