"""GPUs of this machine, lent to one cell at a time, so that cells and whole sweeps run side by side.

A loan is a lock on a file a GPU, which the kernel takes back when its holder ends, however it ends. The files lie where
every user of the machine finds them; a program that is not memexp takes no notice of them.
"""

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from memexp.plan.machine import this_machine
from memexp.plan.plan import Plan
from memexp.run.interrupt import Running
from memexp.run.progress import Progress, write_progress

_POLL_SECONDS = 0.2


@contextmanager
def lent_gpus(plan: Plan, folder: Path, running: Running) -> Iterator[tuple[str, ...]]:
    """As many GPUs as the cell has processes, as `CUDA_VISIBLE_DEVICES` names them. Waits until they are free.

    Empty for a cell that needs none. `folder` is the cell's, which says meanwhile what it waits for.
    """
    if plan.work.backend != "cuda":
        yield ()
        return
    names = this_machine().gpu_uuids or ("0",)
    wanted = min(plan.work.processes, len(names))
    with ExitStack() as held:
        lent = _lend(names, wanted, held)
        if len(lent) < wanted:
            write_progress(folder / "progress.json", Progress.waiting_for("a GPU"))
        while len(lent) < wanted:
            # All or none: two cells that each hold half of what they need would wait for ever.
            running.check()
            running.interrupted.wait(_POLL_SECONDS)
            lent = _lend(names, wanted, held)
        yield lent


def _lend(names: Sequence[str], wanted: int, held: ExitStack) -> tuple[str, ...]:
    with ExitStack() as taken:
        lent: list[str] = []
        for name in names:
            if len(lent) < wanted and _lock(name, taken):
                lent.append(name)
        if len(lent) == wanted:
            held.push(taken.pop_all())
            return tuple(lent)
    return ()


def _lock(name: str, taken: ExitStack) -> bool:
    descriptor = _open(locks_folder() / f"{name.replace('/', '_')}.lock")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return False
    taken.callback(os.close, descriptor)
    return True


def _open(path: Path) -> int:
    # Another user's file is opened and never written: flock asks for no right to write.
    with suppress(FileNotFoundError):
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    os.fchmod(descriptor, 0o644)
    return descriptor


def locks_folder() -> Path:
    """Shared by all users of the machine, and like /tmp itself: nobody removes another's file."""
    folder = Path(tempfile.gettempdir()) / "memexp-gpus"
    with suppress(FileExistsError):
        folder.mkdir()
        folder.chmod(stat.S_ISVTX | 0o777)
    return folder
