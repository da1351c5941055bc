"""Live tensor bytes of the op stream: what `allocated` means where no allocator keeps counters, as on the CPU.

A storage counts its exact `nbytes()`, as torch's CPU allocator reports it, from the first op that makes or reads it
until it dies. So what was there before the mode (a model, the memory of an array) counts from its first use.

Left out, because no op shows it: scratch that a kernel takes and gives back within one op; ops of other threads (their
tensors count from the first use in this one); the inside of compiled graphs and higher-order ops; sparse tensors; the
saved state of a random generator (5 KB, of which checkpointing keeps one for each layer).
"""

import sys
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Any, Self

import torch
from torch._C import _disabled_torch_dispatch_impl, _dispatch_has_kernel_for_dispatch_key, _dispatch_key_for_device
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from memexp.measure.reserved import ReservedBytes
from memexp.measure.storage_ledger import StorageLedger, follow_resizes, unfollow_resizes


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A `Counter` for one device. Sees the ops that this thread runs inside `with LiveBytes():`, those of the
    backward pass included; what dies later is still taken off. It adds some 20 microseconds to each op of a training
    step, 15 of which any dispatch mode takes: half as much again for a tiny model, a few percent where ops are large.

    Autograd goes out of place while any dispatch mode is on, which costs a tensor for a moment. Where that can be told
    for sure (gradients that meet, a scatter into fresh zeros) the extra tensor is kept out of the peak.
    """

    supports_higher_order_operators = True

    def __init__(self, device: str = "cpu", alloc_conf: str = "") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._reserved = ReservedBytes(alloc_conf)
        self._ledger = StorageLedger(torch.device(device), self._reserved)
        self._backend_key = _dispatch_key_for_device(torch.device(device).type)
        self._kinds: dict[Any, _Kind] = {}

    def allocated_bytes(self) -> int:
        """Bytes alive now."""
        return self._ledger.now_bytes

    def reserved_bytes(self) -> int | None:
        """What a GPU's allocator would hold for these tensors: a prediction, see `ReservedBytes`."""
        return self._reserved.now_bytes()

    def peak_allocated_bytes(self) -> int:
        """The most bytes alive at once since the last `reset_peak`."""
        return self._ledger.peak_bytes

    def peak_reserved_bytes(self) -> int | None:
        """The most `reserved_bytes` since the last `reset_peak`."""
        return self._reserved.peak_bytes()

    def reset_peak(self) -> None:
        """Start new peaks at what is alive, and reserved, now."""
        self._ledger.reset_peak()
        self._reserved.reset_peak()

    def synchronize(self) -> None:
        """Nothing to wait for: an op is counted as it is issued."""

    def alloc_retries(self) -> int | None:
        """None: nothing retries."""
        return None

    def capacity_bytes(self) -> int | None:
        """None: nothing limits it."""
        return None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else every op goes through two more Python calls, and the first one imports torch._dynamo

    def __enter__(self) -> Self:
        follow_resizes(self._ledger)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        unfollow_resizes(self._ledger)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if types and any(_unwraps_itself(t) for t in types):
            return NotImplemented  # the subclass unwraps itself, and the ops on its parts come back here
        kind = self._kinds.get(func) or self._classify(func)
        ledger = self._ledger
        if ledger.doubtful_bytes:
            ledger.settle()
        if kind is _VIEW:
            self._see(args[:1])
            return func(*args, **kwargs) if kwargs else func(*args)
        if kind is _COMPOSITE:
            with self:
                return func.decompose(*args, **(kwargs or {}))
        self._see(args)
        replaced = self._replaced(kind, args) if kind is _ACCUMULATES or kind is _SCATTERS else None
        if kwargs:
            self._see(kwargs.values())
            out = func(*args, **kwargs)
        else:
            out = func(*args)
        self._see((out,))
        if kind is _RESIZES:
            for tensor in out if isinstance(out, tuple) else (out,):
                ledger.resize(tensor.untyped_storage())
        if replaced is not None:
            ledger.raise_peak_unless_freed(replaced)
        else:
            ledger.raise_peak()
        return out

    def _see(self, values: Iterable[Any]) -> None:
        live = self._ledger.live
        for value in values:
            kind = type(value)
            if kind is torch.Tensor or kind is torch.nn.Parameter:
                try:
                    storage = value.untyped_storage()
                except NotImplementedError:  # a sparse tensor has no storage of its own
                    continue
                if storage._cdata not in live:
                    self._ledger.add(storage)
            elif isinstance(value, (list, tuple)):
                self._see(value)
            elif isinstance(value, torch.Tensor):
                self._see_subclass(value)

    def _see_subclass(self, tensor: torch.Tensor) -> None:
        if is_traceable_wrapper_subclass(tensor):
            self._see([getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]])
            return
        with torch._C.DisableTorchFunctionSubclass():
            storage = tensor.untyped_storage()
            if storage._cdata not in self._ledger.live:
                self._ledger.add(storage)

    def _replaced(self, kind: "_Kind", args: tuple[Any, ...]) -> torch.UntypedStorage | None:
        """The storage that autograd would have written the result into but for the mode, if it dies right after.

        The two places are `accumulate` in torch/csrc/autograd/input_buffer.cpp and the branches on
        `areAnyTensorSubclassLike` in torch/csrc/autograd/FunctionsManual.cpp (torch 2.13). Both call from the engine,
        with no Python frame between; the formula of a custom `autograd.Function` has its own frame.
        """
        called_from = sys._getframe(2).f_code.co_name
        if torch.is_grad_enabled() or called_from != "_engine_run_backward" or args[0]._is_view():
            return None
        first: torch.UntypedStorage = args[0].untyped_storage()
        if kind is _SCATTERS:
            youngest = next(reversed(self._ledger.live), None)
            return first if first._cdata == youngest else None
        second = args[1].untyped_storage() if isinstance(args[1], torch.Tensor) else None
        return first if second is not None and second._cdata != first._cdata else None

    def _classify(self, func: Any) -> "_Kind":
        self._kinds[func] = kind = _Kind.of(func, self._backend_key)
        return kind


def _unwraps_itself(tensor_type: Any) -> bool:
    dispatches = tensor_type.__torch_dispatch__ is not _disabled_torch_dispatch_impl
    return dispatches and not issubclass(tensor_type, FakeTensor)  # a fake one needs its mode, and holds no bytes


class _Kind(Enum):
    """What an op asks of the mode."""

    PLAIN = auto()
    VIEW = auto()  # no new storage
    RESIZES = auto()  # its output may be an old storage of another size
    COMPOSITE = auto()  # reaches the mode whole in inference mode, and would hide its temporaries
    ACCUMULATES = auto()  # `add_` but for the mode, when gradients of several consumers meet
    SCATTERS = auto()  # in place but for the mode, when the gradient of indexing fills fresh zeros

    @classmethod
    def of(cls, func: Any, backend_key: str) -> "_Kind":
        if not isinstance(func, torch._ops.OpOverload):
            return cls.PLAIN
        name: str = func.name()  # type: ignore[no-untyped-call]
        if name == "aten::add.Tensor":
            return cls.ACCUMULATES
        if name in _SCATTER_OPS:
            return cls.SCATTERS
        if func.is_view:
            return cls.VIEW
        if name.startswith("aten::resize_") or any(argument.is_out for argument in func._schema.arguments):
            return cls.RESIZES
        has_own_kernel = _dispatch_has_kernel_for_dispatch_key(name, backend_key)
        return cls.COMPOSITE if func._can_decompose() and not has_own_kernel else cls.PLAIN


_SCATTER_OPS = frozenset(
    {"aten::scatter_add", "aten::scatter.src", "aten::index_put", "aten::index_add", "aten::_index_put_impl"}
)
_PLAIN, _VIEW, _RESIZES, _COMPOSITE, _ACCUMULATES, _SCATTERS = _Kind  # members are slow to look up on the class
