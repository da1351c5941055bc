"""Which storages of one device are alive, how many bytes they hold, and the most they held at once.

Knows nothing of ops; its follower is told of every birth and death in their order. A storage is known by the address of
its C++ half, which is free for the next one only after the weak reference on this one has fired.
"""

import weakref
from typing import Any, Protocol, cast

import torch


class Follower(Protocol):
    """Hears what happens to each storage, by its address. `died` may come at any moment, out of the garbage collector:
    it may note it down and no more.
    """

    def born(self, storage: int, nbytes: int) -> None:
        """A storage of another size under a known address is the same one, resized: its content moves."""
        ...

    def died(self, storage: int) -> None: ...

    def takes_the_place_of(self, storage: int) -> None:
        """The last one born does so, if that storage dies before the next is born."""
        ...


class StorageLedger:
    """Counts each storage once, at its exact `nbytes()`, from `add` until it dies.

    `add` does not touch the peak: end what makes storages with `raise_peak` or, where the growth may not have been
    real, with `raise_peak_unless_freed`.
    """

    def __init__(self, device: torch.device, follower: Follower) -> None:
        self._device = device
        self._follower = follower
        self.live: dict[int, _StorageRef] = {}
        self.now_bytes = 0
        self.doubtful_bytes = 0
        self._peak_bytes = 0
        self._replaced: int | None = None
        self._on_death = self._died  # one bound method for all storages

    @property
    def peak_bytes(self) -> int:
        """The most bytes alive at once since the last `reset_peak`."""
        return max(self._peak_bytes, self.doubtful_bytes)

    def reset_peak(self) -> None:
        """Start a new peak at what is alive now."""
        self._peak_bytes, self.doubtful_bytes = self.now_bytes, 0

    def add(self, storage: torch.UntypedStorage) -> None:
        """Count a storage that is not in `live`. One that is empty or on another device is left out."""
        nbytes = storage.nbytes()
        if nbytes and storage.device == self._device:
            ref = _StorageRef(storage, self._on_death)
            ref.cdata, ref.nbytes = storage._cdata, nbytes
            self.live[ref.cdata] = ref
            self.now_bytes += nbytes
            self._follower.born(ref.cdata, nbytes)

    def resize(self, storage: torch.UntypedStorage) -> None:
        """Follow a storage whose size may have changed. Old and new bytes coexist while the content is copied."""
        ref = self.live.get(storage._cdata)
        if ref is None:
            self.add(storage)
        elif (nbytes := storage.nbytes()) != ref.nbytes:
            self._peak_bytes = max(self._peak_bytes, self.now_bytes + nbytes)
            self.now_bytes += nbytes - ref.nbytes
            ref.nbytes = nbytes
            self._follower.born(ref.cdata, nbytes)
        self.raise_peak()

    def raise_peak(self) -> None:
        """Let the peak be at least what is alive now."""
        if self.now_bytes > self._peak_bytes:
            self._peak_bytes = self.now_bytes

    def raise_peak_unless_freed(self, storage: torch.UntypedStorage) -> None:
        """As `raise_peak`, but if `storage` dies before the next `settle`, what was added took its place all along."""
        self._replaced, self.doubtful_bytes = storage._cdata, self.now_bytes
        self._follower.takes_the_place_of(storage._cdata)

    def settle(self) -> None:
        """Close the time that `raise_peak_unless_freed` opened. Call before anything else is added."""
        self._peak_bytes, self.doubtful_bytes = self.peak_bytes, 0

    def _died(self, ref: "weakref.ref[torch.UntypedStorage]") -> None:
        ref = cast(_StorageRef, ref)
        del self.live[ref.cdata]
        self.now_bytes -= ref.nbytes
        self._follower.died(ref.cdata)
        if self.doubtful_bytes and ref.cdata == self._replaced:
            self.doubtful_bytes -= ref.nbytes
            self._replaced = None


class _StorageRef(weakref.ref[torch.UntypedStorage]):
    """A weak reference that still knows its storage when that is gone; `weakref.finalize` costs some ten times more."""

    __slots__ = ("cdata", "nbytes")
    cdata: int
    nbytes: int


_following: list[StorageLedger] = []
_resize_storage = torch.UntypedStorage.resize_


def follow_resizes(ledger: StorageLedger) -> None:
    """Let `ledger` see `untyped_storage().resize_(…)`, which is no op. Replaces that method for the whole process."""
    _following.append(ledger)
    torch.UntypedStorage.resize_ = _resize_and_tell  # type: ignore[method-assign, assignment]


def unfollow_resizes(ledger: StorageLedger) -> None:
    """Undo one `follow_resizes`; the last one puts torch's own method back."""
    _following.remove(ledger)
    if not _following:
        torch.UntypedStorage.resize_ = _resize_storage  # type: ignore[method-assign]


def _resize_and_tell(storage: torch.UntypedStorage, nbytes: int) -> Any:
    resized = _resize_storage(storage, nbytes)
    for ledger in _following:
        ledger.resize(storage)
    return resized
