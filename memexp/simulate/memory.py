"""Every storage of the simulated device: its block in the caching allocator, what it is used for, and when it dies.

Also the two kinds of memory that no tensor shows: what a kernel takes while it runs, and the workspaces that a handle
takes for good. Knows nothing of ops.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import torch

from memexp.simulate.allocator import CachingAllocator
from memexp.simulate.allocator import OutOfMemoryError as AllocatorOutOfMemoryError
from memexp.simulate.late_streams import LateStreams
from memexp.simulate.tensors import storage_at

WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, LOGITS, WORKSPACES = range(6)
CATEGORIES = ("weights", "gradients", "optimizer", "activations", "logits", "workspaces")

# Above every address of the allocator, and farther apart than tensors are long.
_BEYOND, _APART = 2**62, 2**44


class StorageRecord(weakref.ref[torch.UntypedStorage]):
    """What is known of a storage, kept by a weak reference on it so that one object serves both.

    `values` are the bytes of the tensor's real values on the CPU, where they are known; `rule` says which rule they
    come from, where they are not computed but decided.
    """

    __slots__ = ("address", "block_bytes", "category", "cdata", "nbytes", "rule", "values")
    address: int
    block_bytes: int
    category: int
    cdata: int
    nbytes: int
    rule: str | None
    values: torch.UntypedStorage | None

    def __new__(
        cls,
        storage: torch.UntypedStorage,
        callback: "Callable[[weakref.ref[torch.UntypedStorage]], None]",
    ) -> "StorageRecord":
        record = super().__new__(cls, storage, callback)
        record.cdata = storage._cdata
        record.rule = record.values = None
        return record

    def __init__(self, storage: torch.UntypedStorage, callback: object) -> None:
        super().__init__(storage, callback)  # type: ignore[call-arg]


class DeviceMemory:
    """`category` is what the next storage counts as. `by_category` counts bytes of blocks, as the allocator does.

    `late`, if there is one, follows every allocation.
    """

    def __init__(self, allocator: CachingAllocator, late: LateStreams | None = None) -> None:
        self.allocator, self.late = allocator, late
        self.records: dict[int, StorageRecord] = {}
        self.category = ACTIVATIONS
        self.by_category = [0] * len(CATEGORIES)
        self.at_peak = (0,) * len(CATEGORIES)
        self._allocated = allocator.statistics.allocated_bytes
        self._peak_bytes = 0
        self._busy = False
        self._died_while_busy: list[int] = []
        self._on_death = self._died  # one bound method for all storages
        self._deferring = 0
        self._deferred: torch.OutOfMemoryError | None = None
        self._beyond: set[int] = set()  # addresses given out while an error is deferred: no memory stands behind them

    def new_storage(self, nbytes: int, stream: int, category: int | None = None) -> torch.UntypedStorage:
        """Memory for one tensor. Raises torch.OutOfMemoryError where the card is full."""
        address, block_bytes = self._malloc(nbytes, stream)
        storage = storage_at(address, nbytes)
        record = StorageRecord(storage, self._on_death)
        record.address, record.nbytes, record.block_bytes = address, nbytes, block_bytes
        record.category = self.category if category is None else category
        self.records[record.cdata] = record
        self._count(record.category, block_bytes)
        return storage

    def record_of(self, tensor: torch.Tensor) -> StorageRecord:
        """Raises RuntimeError for a tensor whose memory is not of this simulation."""
        try:
            return self.records[tensor.untyped_storage()._cdata]
        except KeyError:
            raise RuntimeError(
                "this tensor was not made in the simulation that is active: one that has ended takes its tensors along"
            ) from None

    @property
    def has_been_used(self) -> bool:
        """Whether anything was ever on the card."""
        return self._peak_bytes > 0 or bool(self.allocator.segments())

    def workspace(self, nbytes: int, stream: int) -> None:
        """Memory that is never given back."""
        _, block_bytes = self._malloc(nbytes, stream)
        self._count(WORKSPACES, block_bytes)

    def scratch(self, sizes: Iterable[int], stream: int) -> None:
        """Memory that one kernel takes and gives back, all of `sizes` at once."""
        blocks = []
        for nbytes in sizes:
            blocks.append(self._malloc(nbytes, stream))
            self._count(WORKSPACES, blocks[-1][1])
        for address, block_bytes in reversed(blocks):
            self.by_category[WORKSPACES] -= block_bytes
            self._free(address)

    @contextlib.contextmanager
    def deferring_errors(self) -> Iterator[None]:
        """Where no error may be raised: a full card is told by the first allocation after this block instead.

        What is asked for in between is given out and counted nowhere, since a GPU would not have come so far.
        """
        self._deferring += 1
        try:
            yield
        finally:
            self._deferring -= 1

    def record_stream(self, address: int, stream: int) -> None:
        """A second stream uses this storage."""
        if address in self._beyond:
            return
        self.allocator.record_stream(address, stream)
        if self.late is not None:
            self.late.record_stream(address, stream)

    def set_category(self, record: StorageRecord, category: int) -> None:
        if record.category != category:
            self.by_category[record.category] -= record.block_bytes
            self.by_category[category] += record.block_bytes
            record.category = category

    def reset_peak(self) -> None:
        """Start every peak at what is there now."""
        self.allocator.statistics.reset_peak()
        if self.late is not None:
            self.late.reset_peak()
        self._peak_bytes, self.at_peak = self._allocated.current, tuple(self.by_category)

    def close(self) -> None:
        """Forget every storage. Those that still live belong to nobody from here on."""
        self.records.clear()

    def _malloc(self, nbytes: int, stream: int) -> tuple[int, int]:
        if self._deferred is not None:
            return self._malloc_beyond()
        before = self._allocated.current
        self._busy = True
        try:
            address = self.allocator.malloc(nbytes, stream)
        except AllocatorOutOfMemoryError as error:
            if not self._deferring:
                raise _as_torch_error(error) from None
            self._deferred = _as_torch_error(error)
            return self._malloc_beyond()
        finally:
            self._busy = False
        block_bytes = self._allocated.current - before
        if self.late is not None:
            self.late.malloc(address, nbytes, stream)
        while self._died_while_busy:
            self._free(self._died_while_busy.pop())
        return address, block_bytes

    def _malloc_beyond(self) -> tuple[int, int]:
        if not self._deferring:
            error, self._deferred = self._deferred, None
            assert error is not None
            raise error
        address = _BEYOND + len(self._beyond) * _APART
        self._beyond.add(address)
        return address, 0

    def _free(self, address: int) -> None:
        if address in self._beyond:
            return  # its number is not given out again
        self._busy = True
        self.allocator.free(address)
        if self.late is not None:
            self.late.free(address)
        self._busy = False

    def _count(self, category: int, block_bytes: int) -> None:
        self.by_category[category] += block_bytes
        if self._allocated.current > self._peak_bytes:
            self._peak_bytes, self.at_peak = self._allocated.current, tuple(self.by_category)

    def _died(self, ref: "weakref.ref[torch.UntypedStorage]") -> None:
        record = cast(StorageRecord, ref)
        if self.records.pop(record.cdata, None) is None:
            return
        self.by_category[record.category] -= record.block_bytes
        if self._busy:  # the garbage collector ran inside the allocator
            self._died_while_busy.append(record.address)
        else:
            self._free(record.address)


def _as_torch_error(error: AllocatorOutOfMemoryError) -> torch.OutOfMemoryError:
    """Torch's own class and text, with the allocator's figures as attributes."""
    raised: Any = torch.OutOfMemoryError(str(error))
    raised.requested_bytes = error.segment_bytes
    raised.free_bytes = error.free_bytes
    return cast(torch.OutOfMemoryError, raised)
