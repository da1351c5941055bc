"""The environment of a worker: what is set before its Python starts, and what is recorded about where it ran."""

import functools
import hashlib
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import memexp
from memexp.invocation import replay_command
from memexp.measure import trace
from memexp.plan.machine import version_of
from memexp.plan.plan import Plan
from memexp.plan.trusted import check_environment
from memexp.run.variables import change_variables
from memexp.secrets import is_secret

QUIET = {"TOKENIZERS_PARALLELISM": "false", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1"}
_HUB = ("HF_", "HUGGING_FACE_", "HUGGINGFACE_", "AWS_")  # hubs, and buckets that datasets reads
ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers", "hydra-core")


def worker_changes(plan: Plan, gpus: Sequence[str] = ()) -> dict[str, str | None]:
    """Variables to set, and to unset where None, over whatever the parent has. `gpus` are those lent to the cell.

    Raises PlanError for a plan from elsewhere that sets what no option sets.
    """
    check_environment(plan.work.env)
    # Without this every cell asks the hub for names that random weights do not need, and waits for the network.
    offline = {"HF_HUB_OFFLINE": "1"} if not plan.work.needs_hub else {}
    threads = {"OMP_NUM_THREADS": str(plan.work.threads)} if plan.work.backend != "cuda" else {}
    # With several in sight and no launcher, transformers wraps the model in DataParallel, which TRL refuses.
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
    # A warm server has the environment of whoever started it.
    traces = {trace.VARIABLE: os.environ.get(trace.VARIABLE)}
    return {**QUIET, **offline, **threads, **visible, **traces, **plan.work.env}


def worker_environment(plan: Plan, parent: Mapping[str, str], gpus: Sequence[str] = ()) -> dict[str, str]:
    """The whole environment of a fresh worker."""
    environment = without_keys(parent, keep=_HUB if plan.work.needs_hub else ())
    change_variables(environment, worker_changes(plan, gpus))
    return environment


def without_keys(environment: Mapping[str, str], keep: tuple[str, ...] = ()) -> dict[str, str]:
    """The environment without the user's keys, which no cell needs: what is not there, no library prints.

    `keep` are beginnings of names: a cell that asks the hub needs the hub's token.
    """
    return {name: value for name, value in environment.items() if name.startswith(keep) or not is_secret(name)}


def allocator_note(parent: Mapping[str, str]) -> str | None:
    """A line where the shell's two names for the allocator's settings disagree, saying which one torch would take."""
    values = {name: parent[name] for name in ALLOCATOR_VARIABLES if name in parent}
    if len(set(values.values())) < 2:
        return None
    said = " and ".join(f"{name}={value}" for name, value in values.items())
    # torch 2.13, c10/core/AllocatorConfig: the CUDA-named variable is read first.
    return f"Your shell has {said}; torch takes {ALLOCATOR_VARIABLES[0]}. Each cell sets both from its own option."


def describe_worker(process: str) -> dict[str, Any]:
    """What this process is, for the record. `process` is warm or fresh."""
    return {"python": platform.python_version(), "platform": platform.platform(), "process": process}


def describe_cell(plan: Plan) -> dict[str, Any]:
    """What ran, and the command that runs it again."""
    return {**describe_code(), "replay": replay_command(plan.overrides, plan.flags)}


@functools.cache
def describe_code() -> dict[str, Any]:
    """Versions and commit of the code, read once a process and by the parent: they are the same for every cell."""
    status = _git("status", "--porcelain", "--untracked-files=no")
    return {
        "memexp": memexp.__version__,
        "versions": {name: version_of(name) for name in _PACKAGES},
        "commit": _git("rev-parse", "HEAD"),
        "code": _code_hash(),
        "dirty": None if status is None else bool(status),
        "cpu_count": os.cpu_count(),
    }


def _code_hash() -> str:
    """12 hexadecimal digits over memexp's own files: a commit says nothing of what is not committed."""
    digest = hashlib.sha256()
    package = Path(memexp.__file__).parent
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def _git(*arguments: str) -> str | None:
    """What git says of memexp's own checkout, None for an installed wheel (or where git is not there)."""
    root = Path(memexp.__file__).parents[1]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
