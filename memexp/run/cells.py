"""Run the planned cells of a sweep from one process: one after another, or N at once.

Each cell is a process of its own already, so a thread that waits for it is all that running several takes.
"""

import os
import re
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

from memexp.plan.machine import Machine
from memexp.plan.plan import Plan
from memexp.run.interrupt import Running
from memexp.run.launch import run_cell

# A process of a cell without a GPU: the most that one of the reference sweeps held was 3.3 GiB, offloading included. A
# large model that really trains on the CPU takes more, and who starts that sets `jobs`.
_PROCESS_BYTES = 7 * 2**29


def run_cells(plan_paths: Sequence[Path], at_once: int = 1) -> None:
    """Run every cell in the order given. Raises KeyboardInterrupt, after which none is running and those that ran have
    no record, and the first OSError, after which those that were running have theirs.
    """
    if at_once == 1:
        for path in plan_paths:
            run_cell(path)
        return
    running = Running()
    with ThreadPoolExecutor(at_once, "memexp-cell") as pool:
        futures = [pool.submit(run_cell, path, running) for path in plan_paths]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            pool.shutdown(wait=True, cancel_futures=True)
        except BaseException:
            running.end_all()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
        for future in futures:
            if not future.cancelled():
                future.result()


def cells_at_once(jobs: int | str, plans: Sequence[Plan], machine: Machine) -> int:
    """What `jobs` comes to: `auto` is as many as the machine has room for, GPUs, or cores and memory. Never more than
    `plans`.
    """
    if not plans:
        return 1
    if jobs != "auto":
        return min(int(jobs), len(plans))
    room = min(_room(plan, machine) for plan in plans)
    return max(1, min(room, len(plans)))


def _room(plan: Plan, machine: Machine) -> int:
    if plan.work.backend == "cuda":
        return len(machine.gpus) // plan.work.processes
    cores = len(os.sched_getaffinity(0)) // (plan.work.threads * plan.work.processes)
    available = _available_bytes()
    return cores if available is None else min(cores, available // (_PROCESS_BYTES * plan.work.processes))


def _available_bytes() -> int | None:
    """What the kernel thinks it could give to new processes (proc(5)); None where it does not say."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
