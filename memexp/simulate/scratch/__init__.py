"""Memory that CUDA's kernels take beside their outputs, which no tensor shows.

Each correction has a switch of its own: `SWITCHES["embedding_backward"] = False` shows what it is worth. Sizes are
functions of shapes, layouts and dtypes alone, read in the named sources of torch 2.11 to 2.13 and written anew. What is
missing is named by `is_memory_known`. The fused optimizers and the other `_foreach_` ops take none: their lists travel
as arguments of the kernel.
"""

from memexp.simulate.scratch import attention, norms, reductions, sorting
from memexp.simulate.scratch.call import KernelCall

_FUNCTIONS = {**attention.SCRATCH, **norms.SCRATCH, **reductions.SCRATCH, **sorting.SCRATCH}
SWITCHES = {"cublas_workspaces": True} | {switch: True for switch, _ in _FUNCTIONS.values()}

_MATMULS = frozenset(
    {
        "mm",
        "addmm",
        "addmm_",
        "bmm",
        "baddbmm",
        "baddbmm_",
        "addmv",
        "addmv_",
        "mv",
        "dot",
        "_scaled_mm",
        "_addmm_activation",
    }
)
# Ops that take a workspace whose size cuDNN's plan alone knows, whatever else of them is modelled.
_NOT_MODELLED = frozenset(
    {
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_cudnn_attention_backward",
        "convolution",
        "convolution_backward",
        "cudnn_convolution",
        "native_batch_norm",
        "native_batch_norm_backward",
    }
)
_KNOWN_NAMESPACES = ("aten", "prims", "memexp")
# The caching allocator itself lets a block be larger by so much: what is less cannot be told from it.
_NEGLIGIBLE_BYTES = 1 << 20


def scratch_bytes(call: KernelCall) -> tuple[int, ...]:
    """The blocks that the kernel takes while it runs, all at once."""
    switch, function = _FUNCTIONS.get(call.name, (None, None))
    if function is None or not SWITCHES[str(switch)]:
        return ()
    return tuple(size for size in function(call) if size)


def takes_workspace(call: KernelCall) -> bool:
    """Whether the op runs on cuBLAS, whose handle keeps a workspace for each thread and stream."""
    return SWITCHES["cublas_workspaces"] and call.name in _MATMULS and call.func.namespace == "aten"


def is_memory_known(call: KernelCall) -> bool:
    """Whether all that this call takes on a GPU is modelled. Operators of other libraries are not known."""
    if call.func.namespace not in _KNOWN_NAMESPACES or call.name in _NOT_MODELLED:
        return False
    guessed = sorting.GUESSED.get(call.name)
    return guessed is None or guessed(call) <= _NEGLIGIBLE_BYTES


__all__ = ["SWITCHES", "KernelCall", "is_memory_known", "scratch_bytes", "takes_workspace"]
