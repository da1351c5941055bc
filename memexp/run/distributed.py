"""The ranks of a cell, seen from inside one of them: who it is, and how they meet.

A rank is told what torchrun would tell it (RANK, LOCAL_RANK, WORLD_SIZE, …) and a file to meet at instead of a port, so
that nothing has to be free and two cells at once cannot take each other's. Left out: how ranks are started and ended,
which is the parent's business (`memexp.run.ranks`).
"""

import os
import sys
import warnings
from datetime import timedelta
from typing import NoReturn

import torch
import torch.distributed

from memexp.plan.plan import Plan
from memexp.run.ranks import MEETING_VARIABLE

# A rank that waits this long for another waits for nothing; a rank that died is seen at once, by the parent.
_PATIENCE = timedelta(minutes=30)


def this_rank() -> int:
    """The number of this process among the cell's own, 0 where it is the only one."""
    return int(os.environ.get("RANK", "0")) if MEETING_VARIABLE in os.environ else 0


def meet(plan: Plan) -> None:
    """Join the other ranks of the cell; does nothing in a cell of one process. Before a TRL config is made.

    transformers and DeepSpeed find the group that is there. Left to themselves they disagree on a CPU: the one counts
    two processes, the other one (deepspeed 0.19, transformers 5.24).
    """
    if plan.work.processes == 1:
        return
    backend = "nccl" if plan.work.backend == "cuda" else "gloo"
    torch.distributed.init_process_group(
        backend,
        init_method=f"file://{os.environ[MEETING_VARIABLE]}",
        rank=this_rank(),
        world_size=plan.work.processes,
        timeout=_PATIENCE,
    )
    if plan.work.trainer.args.get("deepspeed"):
        import deepspeed

        # deepspeed 0.19 calls what torch 2.13 has another name for, and says so at every collective.
        warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
        # deepspeed 0.19: for a CPU it would compile all-reduces of its own on first use. That takes a minute and a
        # compiler, and a cell that is ended meanwhile leaves a lock that every later cell waits for. gloo does it all.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed(backend, auto_mpi_discovery=False)


def part(plan: Plan) -> None:
    """Wait for the others and leave the group, once everything is measured: who leaves early breaks their last step."""
    if plan.work.processes > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def give_up() -> NoReturn:
    """End this process at once: an ordinary exit may wait for what the other ranks will never send."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
