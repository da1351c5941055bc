"""What this machine has, without importing torch. The parent asks here before it plans a cell."""

import functools
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from memexp import nvml
from memexp.frozen import Frozen


@dataclass(frozen=True)
class Machine(Frozen):
    """`gpus` are the names of those that the driver shows and `CUDA_VISIBLE_DEVICES` leaves, `gpu_uuids` what to type
    there for each; `torch_cuda` is the CUDA torch was built for, None on a CPU build; `driver` is its version, if any.

    A GPU that the driver shows while torch is a CPU build is a missing package, not a machine without a GPU.
    """

    gpus: tuple[str, ...] = ()
    torch_cuda: str | None = None
    packages: tuple[str, ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    driver: str | None = None

    @property
    def backend(self) -> str:
        """What `backend=auto` stands for here."""
        return "cuda" if self.gpus else "simulate"

    def has(self, module: str) -> bool:
        return module in self.packages


OPTIONAL_PACKAGES = (
    "bitsandbytes",
    "deepspeed",
    "flash_attn",
    "flash_attn_interface",
    "kernels",
    "liger_kernel",
    "vllm",
    "wandb",
)


@functools.cache
def this_machine() -> Machine:
    """Read once a process: a machine does not change under a sweep."""
    packages = tuple(name for name in OPTIONAL_PACKAGES if importlib.util.find_spec(name) is not None)
    gpus = visible(_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    names, uuids = tuple(name for _, name in gpus), tuple(uuid for uuid, _ in gpus)
    return Machine(names, _torch_cuda(), packages, uuids, _driver())


def visible(gpus: Sequence[tuple[str, str]], asked: str | None) -> tuple[tuple[str, str], ...]:
    """Of (uuid, name) those that `CUDA_VISIBLE_DEVICES` leaves, in its order. None leaves all.

    CUDA's own rules: indices, or UUIDs and their beginnings, up to the first that names none. A part of a GPU (MIG) is
    named by a UUID that the driver does not list here, and goes by the name of the first GPU.
    """
    if asked is None:
        return tuple(gpus)
    left: list[tuple[str, str]] = []
    for word in (part.strip() for part in asked.split(",")):
        if word.startswith("MIG-") and gpus:
            left.append((word, gpus[0][1]))
            continue
        found = [
            gpu
            for index, gpu in enumerate(gpus)
            if word == str(index) or (word[:4] == "GPU-" and gpu[0].startswith(word))
        ]
        if not found:
            break
        left.append(found[0])
    return tuple(left)


def _gpus() -> tuple[tuple[str, str], ...]:
    library = nvml.opened()
    if library is None:
        return ()
    try:
        handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]
        return tuple((library.nvmlDeviceGetUUID(handle), library.nvmlDeviceGetName(handle)) for handle in handles)
    except library.NVMLError:  # whatever the driver says, there is no GPU to be used
        return ()


def _driver() -> str | None:
    library = nvml.opened()
    if library is None:
        return None
    try:
        return str(library.nvmlSystemGetDriverVersion())
    except library.NVMLError:
        return None


def _torch_cuda() -> str | None:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    version = Path(spec.origin).with_name("version.py")
    found = re.search(r"^cuda\b[^=]*=\s*'([\d.]+)'", version.read_text(), re.M) if version.exists() else None
    return found.group(1) if found else None


def version_of(package: str) -> str | None:
    """The installed version, or None. Asks the package's metadata, so that nothing is imported."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
