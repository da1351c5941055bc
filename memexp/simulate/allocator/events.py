"""What the allocator did, in order, in the terms of PyTorch's memory history."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

Action = Literal[
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
]


class Event(NamedTuple):
    """`size` is what was requested for alloc and free, else the bytes of the segment or of the pages.

    For "oom", `address` holds the device's free bytes instead, as it does in torch.
    """

    action: Action
    address: int
    size: int
    stream: int
    time_us: int


class EventLog:
    """The latest `max_entries` events; older ones are forgotten, as in `torch.cuda.memory._record_memory_history`.

    `clock` gives the time of an event in microseconds, for a simulation that keeps its own time.
    """

    def __init__(self, max_entries: int = 1_000_000, clock: Callable[[], int] = lambda: 0) -> None:
        self._events: deque[Event] = deque(maxlen=max_entries)
        self._clock = clock

    def record(self, action: Action, address: int, size: int, stream: int) -> None:
        self._events.append(Event(action, address, size, stream, self._clock()))

    def clear(self) -> None:
        self._events.clear()

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)

    def device_trace(self) -> list[dict[str, Any]]:
        """The events as one list of `device_traces` in a memory snapshot, without stack frames."""
        return [_trace_entry(event) for event in self._events]


def _trace_entry(event: Event) -> dict[str, Any]:
    return {
        "action": event.action,
        "device_free" if event.action == "oom" else "addr": event.address,
        "size": event.size,
        "stream": event.stream,
        "time_us": event.time_us,
        "frames": [],
    }
