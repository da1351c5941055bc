"""What PyTorch's caching allocator would have reserved of a GPU for the storages of another device: a prediction.

The births and deaths of storages are replayed, in their order, through `memexp.simulate.allocator`. Left out is what no
tensor shows: workspaces and scratch of a GPU's kernels, other streams, and the card's size, which nothing runs into
here. Tensors that only the host would have (batches before they are moved) count, because here all are on one device.
"""

from collections import deque

from memexp.simulate.allocator import AllocatorSettings, CachingAllocator

_DEATH, _TAKES_THE_PLACE = 0, -1
_MOST_WAITING = 4096
_NO_LIMIT_BYTES = 1 << 50


class ReservedBytes:
    """A `Follower` of a `StorageLedger`, under the settings that PYTORCH_ALLOC_CONF would have.

    What happens waits in a queue, so that a death costs one append wherever the garbage collector comes upon it, and is
    replayed when somebody asks. Raises ValueError for settings that torch would not take.
    """

    def __init__(self, alloc_conf: str = "") -> None:
        self._allocator = CachingAllocator(_NO_LIMIT_BYTES, AllocatorSettings.parse(alloc_conf))
        self._reserved = self._allocator.statistics.reserved_bytes
        self._waiting: deque[tuple[int, int]] = deque()
        self._addresses: dict[int, tuple[int, int]] = {}  # of each storage, with its bytes

    def born(self, storage: int, nbytes: int) -> None:
        """A storage of `nbytes`; one that lives already moves to a block of that size, or to none for no bytes."""
        if len(self._waiting) >= _MOST_WAITING:
            self._replay()
        self._waiting.append((storage, nbytes))

    def died(self, storage: int) -> None:
        """Safe at any moment, inside of this class too."""
        self._waiting.append((storage, _DEATH))

    def takes_the_place_of(self, storage: int) -> None:
        """The last one born is written into the block of `storage`, if that dies before the next is born."""
        self._waiting.append((storage, _TAKES_THE_PLACE))

    def now_bytes(self) -> int:
        """Bytes of the segments held now, cached blocks included."""
        self._replay()
        return self._reserved.current

    def peak_bytes(self) -> int:
        """The most `now_bytes` since the last `reset_peak`."""
        self._replay()
        return self._reserved.peak

    def reset_peak(self) -> None:
        """Start a new peak at what is held now."""
        self._replay()
        self._allocator.statistics.reset_peak()

    def _replay(self) -> None:
        waiting = self._waiting
        while waiting:
            storage, nbytes = waiting.popleft()
            if nbytes == _DEATH:
                self._free(storage)
            elif nbytes != _TAKES_THE_PLACE and not (waiting and waiting[0][1] == _TAKES_THE_PLACE):
                self._allocate(storage, nbytes)
            elif nbytes != _TAKES_THE_PLACE:
                self._allocate_in_place(storage, nbytes, waiting.popleft()[0])

    def _allocate(self, storage: int, nbytes: int) -> None:
        address = self._allocator.malloc(nbytes)
        self._free(storage)
        self._addresses[storage] = address, nbytes

    def _allocate_in_place(self, storage: int, nbytes: int, replaced: int) -> None:
        """Deaths that follow at once decide it."""
        while self._waiting and self._waiting[0][1] == _DEATH:
            dead, _ = self._waiting.popleft()
            if dead == replaced and self._addresses.get(dead, (0, 0))[1] == nbytes:
                self._addresses[storage] = self._addresses.pop(dead)
                return
            self._free(dead)
        self._allocate(storage, nbytes)

    def _free(self, storage: int) -> None:
        address, _ = self._addresses.pop(storage, (0, 0))
        self._allocator.free(address)
