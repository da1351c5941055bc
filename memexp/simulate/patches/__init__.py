"""All that is replaced in torch and in the libraries while a simulation is active, each with its reason.

A patch is put on an attribute of a module or class and taken off at the end. Modules that are imported later get theirs
when they are imported. `PATCHES` is data, the list of the branches that are taken as on "cuda" included; what a library
gets is beside what it is replaced with, in a module for each. What cannot be undone is in `backend`, `kernels` and
`autocast`: rules for a device type that no other code uses.
"""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

from memexp.simulate.patches import of_bitsandbytes, of_cuda, of_torch, of_transformers, of_trl, of_unmodelled
from memexp.simulate.patches.of_transformers import fresh_accelerate_state
from memexp.simulate.patches.patch import Patch

if TYPE_CHECKING:
    from memexp.simulate.gpu import SimulatedGPU

_MISSING = object()
PATCHES: tuple[Patch, ...] = (
    *of_torch.PATCHES,
    *of_unmodelled.PATCHES,
    *of_cuda.PATCHES,
    *of_transformers.PATCHES,
    *of_trl.PATCHES,
    *of_bitsandbytes.PATCHES,
)


@contextlib.contextmanager
def patched(gpu: "SimulatedGPU") -> Iterator[None]:
    """Put all patches on, and take them off again in reverse order."""
    with contextlib.ExitStack() as stack:
        modules = {patch.module for patch in PATCHES}
        for name in sorted(modules, key=lambda name: (name.split(".")[0] != "torch", name)):
            if name.startswith("torch") or name in sys.modules:
                _put_on(name, gpu, stack)
        stack.enter_context(fresh_accelerate_state())
        finder = _LaterModules(gpu, stack, modules)
        sys.meta_path.insert(0, finder)
        stack.callback(sys.meta_path.remove, finder)
        yield


def _put_on(module: str, gpu: "SimulatedGPU", stack: contextlib.ExitStack) -> None:
    for patch in PATCHES:
        if patch.module == module:
            _apply(patch, gpu, stack)


def _apply(patch: Patch, gpu: "SimulatedGPU", stack: contextlib.ExitStack) -> None:
    owner = _resolve(patch.module)
    *path, name = patch.name.split(".")
    for part in path:
        owner = getattr(owner, part)
    original = vars(owner).get(name, _MISSING)
    inherited = getattr(owner, name, _MISSING)
    if inherited is _MISSING and not patch.creates:
        raise AttributeError(
            f"{patch.module} has no {patch.name}: memexp.simulate was written against {patch.read_against}"
        )
    setattr(owner, name, patch.build(gpu, inherited if original is _MISSING else original))
    if original is _MISSING:
        stack.callback(delattr, owner, name)
    else:
        stack.callback(setattr, owner, name, original)


def _resolve(path: str) -> Any:
    """A module, or a class in one: `torch.Tensor` is patched as `torch.nn.functional` is."""
    module, _, name = path.rpartition(".")
    if path not in sys.modules and module in sys.modules:
        return getattr(sys.modules[module], name)
    return importlib.import_module(path)


class _LaterModules(MetaPathFinder):
    """Puts patches on a module right after its import."""

    def __init__(self, gpu: "SimulatedGPU", stack: contextlib.ExitStack, modules: set[str]) -> None:
        self.gpu, self.stack, self.modules = gpu, stack, modules

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname not in self.modules:
            return None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(fullname, path, target)) is not None:
                break
        else:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            _put_on(fullname, self.gpu, self.stack)

        loader.exec_module = exec_module
        return spec


__all__ = ["PATCHES", "Patch", "patched"]
