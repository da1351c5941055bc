"""NVIDIA's management library, NVML: what the driver says, without torch and without a CUDA context."""

from typing import Any


def opened() -> Any | None:
    """The module `pynvml`, ready to be asked; None without the library, a driver, or the right to ask it.

    Nothing needs to be closed: NVML counts how often it was opened. What is asked may raise `NVMLError`.
    """
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
