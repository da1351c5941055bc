"""What this machine has, without importing torch. The parent asks here before it plans a cell."""

import functools
import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from memexp.frozen import Frozen


@dataclass(frozen=True)
class Machine(Frozen):
    """`gpus` are the names that the driver shows; `torch_cuda` is the CUDA torch was built for, None on a CPU build.

    A GPU that the driver shows while torch is a CPU build is a missing package, not a machine without a GPU.
    """

    gpus: tuple[str, ...] = ()
    torch_cuda: str | None = None
    packages: tuple[str, ...] = ()

    @property
    def backend(self) -> str:
        """What `backend=auto` stands for here."""
        return "cuda" if self.gpus else "simulate"

    def has(self, module: str) -> bool:
        return module in self.packages


OPTIONAL_PACKAGES = ("bitsandbytes", "deepspeed", "flash_attn", "kernels", "vllm", "wandb")


@functools.cache
def this_machine() -> Machine:
    """Read once a process: a machine does not change under a sweep."""
    packages = tuple(name for name in OPTIONAL_PACKAGES if importlib.util.find_spec(name) is not None)
    return Machine(gpus=_gpu_names(), torch_cuda=_torch_cuda(), packages=packages)


def _gpu_names() -> tuple[str, ...]:
    try:
        import pynvml

        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        names = [pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]
        return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)
    except Exception:  # no library, no driver, no permission: whatever the driver says, there is no GPU to be used
        return ()


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
