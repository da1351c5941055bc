"""What Hydra's launchers for clusters lack: a job that was cancelled ends, and is noticed, and the others go on.

- submitit has its jobs ignore SIGTERM, so that what `scancel` was told to end trained on and counted as ok.
- submitit asks sacct alone whether a job still lives; without accounting it waits for a cancelled one for ever.
- One lost job is an exception that leaves the sweep while the other jobs run, and so does Ctrl-C.
- A job that waits, perhaps for ever, says nothing of what it waits for.

Read against submitit 1.5.4, hydra-submitit-launcher 1.2.0 and hydra-ray-launcher 1.2.2. Nothing here is imported
before a sweep chooses one of them.
"""

import importlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from memexp.plan.plan import PlanError
from memexp.run.progress import Progress, read_progress, write_progress
from memexp.run.signals import handling

_SOON_SECONDS = 20  # how often squeue is asked at most
_NO_REASON = "None"  # as squeue has it for a job that it has only just taken


def scheduler_job(environment: Mapping[str, str] = os.environ) -> str | None:
    """The cluster job that this process belongs to, as `slurm 12_3`, or None outside of one."""
    job = environment.get("SLURM_JOB_ID")
    if job is None:
        return None
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    return f"slurm {array}_{task}" if array and task else f"slurm {job}"


@contextmanager
def sigterm_ends_the_job() -> Iterator[None]:
    """In a process that submitit runs: SIGTERM, which `scancel` sends, ends the cell's worker and then the process.

    The cell leaves no record, and its parent, who finds the job gone, writes that of a killed one.
    """
    with handling(_exit, signal.SIGTERM) if "SUBMITIT_EXECUTOR" in os.environ else nullcontext():
        yield


def _exit(number: int, _: object) -> None:
    # No Exception: submitit would file it as the job's result.
    raise SystemExit(128 + number)


@contextmanager
def lost_jobs_are_results(launcher: str, plan_paths: Sequence[Path]) -> Iterator[None]:
    """While `launcher` (the class that Hydra instantiates) runs: a lost job is a result, of type `Lost`, and no end.

    The jobs are those of `plan_paths`, in that order. One that SLURM lets wait says why where its cell's progress is.
    Raises PlanError where there is no SLURM, and where it takes no job.
    """
    if launcher.endswith("SlurmLauncher") and shutil.which("srun") is None:
        raise PlanError("hydra/launcher: there is no SLURM here (no srun). Type it on a cluster, or leave it out.")
    with ExitStack() as patches:
        if "submitit" in launcher:
            patches.enter_context(_submitit_loses_jobs(plan_paths))
        if "ray" in launcher:
            patches.enter_context(_ray_loses_jobs())
        yield


class Lost:
    """In the place of a job's return value: the job left none. `return_value` is what Hydra's results have."""

    return_value = None

    def __init__(self, said: str) -> None:
        self.said = said


@contextmanager
def _submitit_loses_jobs(plan_paths: Sequence[Path]) -> Iterator[None]:
    # On the class, since an array's jobs are made in several places.
    core: Any = importlib.import_module("submitit.core.core")
    from submitit.core.utils import FailedJobError, UncompletedJobError
    from submitit.slurm.slurm import SlurmJob

    before, watcher = core.Job.results, SlurmJob.watcher

    def results(job: Any) -> list[Any]:
        try:
            found: list[Any] = before(job)
        except (UncompletedJobError, FailedJobError):
            state = job.state.lower().replace("unknown", "gone")
            where = f"its output is in {job.paths.folder}"
            return [Lost(f"its job {job.job_id} is {state} and left no record; {where}")]
        return found

    watching = _watcher(plan_paths)
    core.Job.results, SlurmJob.watcher = results, watching
    try:
        yield
    except KeyboardInterrupt:  # the sweep is over: resuming it submits them again
        _cancel(watching.registered)
        raise
    except FailedJobError as error:  # of sbatch itself: what a job raises is a result by now
        said = str(error).strip().partition("\n")[0].removeprefix("sbatch: error: ")
        raise PlanError(f"SLURM took no job: {said}. Type other values of hydra.launcher.") from error
    finally:
        core.Job.results, SlurmJob.watcher = before, watcher


@contextmanager
def _ray_loses_jobs() -> Iterator[None]:
    core: Any = importlib.import_module("hydra_plugins.hydra_ray_launcher._core")
    before = core.ray
    core.ray = _PatientRay(before)
    try:
        yield
    finally:
        core.ray = before


class _PatientRay:
    """The module `ray` to the launcher that waits for its results one by one."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ray, name)

    def get(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            return Lost(f"its Ray task was lost: {said}")


def _watcher(plan_paths: Sequence[Path]) -> Any:
    from submitit.slurm.slurm import SlurmInfoWatcher

    class Watcher(SlurmInfoWatcher):  # type: ignore[misc]
        """sacct where there is accounting, else squeue: what it no longer lists has ended."""

        @property
        def registered(self) -> frozenset[str]:
            return frozenset(self._registered)

        def update(self) -> None:
            alive = _listed(self._registered)
            for job_id, job in (alive or {}).items():
                if job.state == "PENDING":
                    _say_why_it_waits(_plan_of(job_id, plan_paths), job.reason)
            if _has_accounting():
                super().update()
                return
            if alive is not None:
                # One that has been listed and is no longer has ended; submitit then looks for its result.
                for job_id in self._registered:
                    ended = "GONE" if job_id in self._info_dict else "UNKNOWN"
                    self._info_dict[job_id] = {
                        "JobID": job_id,
                        "State": alive[job_id].state if job_id in alive else ended,
                    }
            self._last_status_check = time.time()
            self._finished |= {j for j in self._registered if self.is_done(j, mode="cache")}

    return Watcher(delay_s=_SOON_SECONDS)


def _has_accounting() -> bool:
    asked = subprocess.run(["sacct", "--noheader", "-X", "-n", "-j", "0"], capture_output=True, check=False)
    return asked.returncode == 0


def _cancel(job_ids: Collection[str]) -> None:
    if job_ids:
        subprocess.run(["scancel", *sorted(job_ids)], capture_output=True, check=False)


class _Listed(NamedTuple):
    """A job as squeue lists it. `reason` is SLURM's own word for why it waits: Resources, Priority, JobHeldUser, …"""

    state: str
    reason: str


def _listed(job_ids: set[str]) -> dict[str, _Listed] | None:
    """Each of these jobs that squeue knows; None where squeue does not answer."""
    asked = subprocess.run(
        ["squeue", "--noheader", "--array", "--format=%i|%T|%r", "--states=all", "--me"],
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode != 0:
        return None
    rows = (line.strip().split("|") for line in asked.stdout.splitlines())
    jobs = {row[0]: _Listed(*row[1:]) for row in rows if len(row) == 3}
    return {job_id: jobs[job_id] for job_id in job_ids if job_id in jobs}


def _plan_of(job_id: str, plan_paths: Sequence[Path]) -> Path:
    # The launcher makes one array of all cells, and of a single one a job without a task.
    return plan_paths[int(job_id.partition("_")[2] or 0)]


def _say_why_it_waits(plan_path: Path, reason: str) -> None:
    path = plan_path.with_name("progress.json")
    before = read_progress(path)
    if before is None or before.is_waiting:  # else it has begun since squeue was asked
        write_progress(path, Progress.waiting_for("SLURM" if reason == _NO_REASON else f"SLURM ({reason})"))
