"""All that is replaced in torch and in the libraries while a simulation is active, each with its reason.

A patch is put on an attribute of a module or class and taken off at the end. Modules that are imported later get theirs
when they are imported. `PATCHES` is data, the list of the branches that are taken as on "cuda" included. What cannot be
undone is in `backend`, `kernels` and `autocast`: rules for a device type that no other code uses.
"""

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

from memexp.simulate import library_paths as paths
from memexp.simulate import quantized, torch_paths

if TYPE_CHECKING:
    from memexp.simulate.gpu import SimulatedGPU

_MISSING = object()


@dataclass(frozen=True)
class Patch:
    """`build(gpu, original)` gives what stands in `module` under `name` (dotted for an attribute of a class).

    `is_branch`: the library asks there whether the device is "cuda", and the answer is made that of a GPU. A patch that
    `creates` adds a name that this build of the library lacks.
    """

    module: str
    name: str
    build: Callable[["SimulatedGPU", Any], Any]
    reason: str
    read_against: str
    is_branch: bool = False
    creates: bool = False


TORCH = "torch 2.13"
BITSANDBYTES = "bitsandbytes 0.50"
PATCHES: tuple[Patch, ...] = (
    Patch(
        "torch.nn.functional",
        "scaled_dot_product_attention",
        torch_paths.sdpa,
        "off CUDA it composes the math kernel, which keeps all scores",
        TORCH,
        is_branch=True,
    ),
    Patch(
        "torch", "clear_autocast_cache", torch_paths.clear_autocast_cache, "casts of weights are kept here too", TORCH
    ),
    Patch("torch", "empty", torch_paths.empty, "a CPU build has no pinned memory", TORCH),
    Patch(
        "torch.autograd.graph",
        "saved_tensors_hooks.__init__",
        torch_paths.saved_tensors_hooks,
        "out of memory while a checkpointed layer is recomputed would abort the process",
        TORCH,
    ),
    Patch(
        "torch.amp.grad_scaler",
        "GradScaler._maybe_opt_step",
        torch_paths.optimizer_step_by_rule,
        "what it reads back is a float, which has no value",
        TORCH,
    ),
    Patch("torch.Tensor", "record_stream", torch_paths.record_stream, "the op takes no stream of Python's", TORCH),
    Patch("torch.Tensor", "__deepcopy__", torch_paths.deepcopy_tensor, "it reads the bytes of the storage", TORCH),
    Patch("torch.Tensor", "pin_memory", torch_paths.pin_memory, "a CPU build has no pinned memory", TORCH),
    Patch("torch.Tensor", "is_pinned", torch_paths.is_pinned, "a CPU build has no pinned memory", TORCH),
    Patch(
        "torch.nn.Module",
        "_apply",
        torch_paths.module_apply,
        "parameters cannot change to this device in place, so that each would become a new object",
        TORCH,
    ),
    *(
        Patch("torch.accelerator", name, torch_paths.from_device_module, "its C++ half knows no Python device", TORCH)
        for name in (
            "current_stream",
            "set_stream",
            "synchronize",
            "empty_cache",
            "memory_allocated",
            "memory_reserved",
            "max_memory_allocated",
            "max_memory_reserved",
            "memory_stats",
            "reset_peak_memory_stats",
        )
    ),
    Patch(
        "accelerate.state",
        "PartialState.default_device",
        paths.default_device,
        "it looks for the devices that it knows by name",
        "accelerate 1.12 to 1.14",
        is_branch=True,
    ),
    Patch(
        "accelerate.accelerator",
        "Accelerator.__init__",
        paths.half_precision,
        "it scales gradients on the devices that it knows by name",
        "accelerate 1.12 to 1.14",
        is_branch=True,
    ),
    Patch(
        "transformers.training_args",
        "TrainingArguments._setup_devices",
        paths.setup_devices,
        "it ends in cuda:0 or the CPU; the first call of accelerate's own set-up is kept",
        "transformers 5.24",
        is_branch=True,
    ),
    Patch(
        "transformers.training_args",
        "is_torch_bf16_gpu_available",
        paths.bf16_available,
        "it asks torch.cuda",
        "transformers 5.24",
        is_branch=True,
    ),
    Patch(
        "transformers.modeling_flash_attention_utils",
        "_lazy_imports",
        paths.flash_attention_functions,
        "the flash-attn package needs a GPU; torch has the same kernels",
        "transformers 5.24, flash-attn 2.8, flash-attn 3 of August 2026",
        is_branch=True,
    ),
    Patch(
        "transformers.modeling_flash_attention_utils",
        "_loaded_implementation",
        paths.nothing_loaded,
        "what was loaded in a simulation must not be used after it, nor the other way round",
        "transformers 5.24",
    ),
    Patch(
        "transformers.modeling_utils",
        "PreTrainedModel._flash_attn_can_dispatch",
        paths.can_dispatch,
        "it asks for the package and for torch.cuda",
        "transformers 5.24",
        is_branch=True,
    ),
    Patch(
        "transformers.modeling_utils",
        "is_kernels_available",
        paths.never,
        "else flash_attention_2 is looked up on the hub",
        "transformers 5.24",
        is_branch=True,
    ),
    Patch(
        "trl.kernels.chunked_logprob",
        "_use_triton",
        paths.use_triton,
        "off CUDA the fused loss takes several fp32 copies of each tile of logits",
        "trl 1.16",
        is_branch=True,
    ),
    *(
        Patch(f"trl.kernels.{module}", name, paths.launcher, "kernels write into what is allocated outside", "trl 1.16")
        for module, names in {
            "chunked_logprob": ("_forward_kernel", "_backward_kernel"),
            "chunked_divergence": ("_stats_kernel", "_jsd_kernel", "_backward_kernel"),
        }.items()
        for name in names
    ),
    *(
        Patch(f"trl.kernels.{module}", "triton", paths.triton, "a CPU build has no Triton", "trl 1.16", creates=True)
        for module in ("chunked_logprob", "chunked_divergence")
    ),
    Patch(
        "trl.kernels.chunked_logprob",
        "_addmm_fp32",
        paths.addmm_fp32,
        "off CUDA it makes fp32 copies of both factors",
        "trl 1.16",
        is_branch=True,
    ),
    Patch("trl.kernels.chunked_divergence", "_use_triton", paths.use_triton, "as above", "trl 1.16", is_branch=True),
    Patch("trl.kernels.chunked_divergence", "_addmm_fp32", paths.addmm_fp32, "as above", "trl 1.16", is_branch=True),
    Patch("trl.kernels.chunked_divergence", "_project", paths.project, "as above", "trl 1.16", is_branch=True),
    Patch(
        "trl.trainer.utils",
        "_supports_trl_loss_kernel",
        paths.supports_loss_kernel,
        "off CUDA log-probabilities are taken row by row",
        "trl 1.16",
        is_branch=True,
    ),
    Patch(
        "trl.trainer.utils",
        "is_triton_available",
        paths.always,
        "Triton comes with torch for CUDA",
        "trl 1.16",
        is_branch=True,
    ),
    Patch(
        "trl.trainer.utils",
        "_fused_logprob_entropy",
        paths.fused_logprob_entropy,
        "the module of the kernel cannot be imported without Triton",
        "trl 1.16",
        creates=True,
    ),
    Patch(
        "bitsandbytes.functional",
        "name2qmap",
        quantized.own_tables,
        "tables of codes stay on the device that asked first; its operators are registered here too",
        BITSANDBYTES,
    ),
    *(
        Patch("bitsandbytes.functional", name, build, "managed memory needs a GPU", BITSANDBYTES)
        for name, build in (
            ("get_paged", quantized.get_paged),
            ("fill", quantized.nothing),
            ("prefetch_tensor", quantized.nothing),
        )
    ),
    Patch(
        "bitsandbytes.nn.modules",
        "Int8Params._quantize",
        quantized.quantize_int8,
        "a parameter cannot change to this device in place",
        BITSANDBYTES,
    ),
    Patch(
        "bitsandbytes.optim.optimizer",
        "sync_gpu",
        quantized.synchronize,
        "it asks whether the device is a cuda",
        BITSANDBYTES,
        is_branch=True,
    ),
)


@contextlib.contextmanager
def patched(gpu: "SimulatedGPU") -> Iterator[None]:
    """Put all patches on, and take them off again in reverse order."""
    with contextlib.ExitStack() as stack:
        modules = {patch.module for patch in PATCHES}
        for name in sorted(modules, key=lambda name: (name.split(".")[0] != "torch", name)):
            if name.startswith("torch") or name in sys.modules:
                _put_on(name, gpu, stack)
        stack.enter_context(paths.fresh_accelerate_state())
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
