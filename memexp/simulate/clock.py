"""Virtual time: a clock for the host and one for each stream. Streams and events order them as CUDA's do.

An op is issued when the host gets to it and starts when its stream is free; the host goes on at once and waits only
where it must (a blocking copy, a value read back, `synchronize`). Left out: contention between streams for the card's
units, so that work on two streams overlaps in full.
"""

from typing import Any


class Clock:
    """All times are in seconds since the start of the simulation. Stream 0 is the default stream."""

    def __init__(self, launch_seconds: float) -> None:
        self.launch_seconds = launch_seconds
        self.host_seconds = 0.0
        self.free_at: list[float] = [0.0]
        self.current = 0

    def run(self, seconds: float) -> None:
        """Put work of this duration on the current stream. Costs the host one launch."""
        self.host_seconds += self.launch_seconds
        self.free_at[self.current] = max(self.free_at[self.current], self.host_seconds) + seconds

    def new_stream(self) -> int:
        self.free_at.append(0.0)
        return len(self.free_at) - 1

    def wait_until(self, stream: int, seconds: float) -> None:
        """Later work on the stream starts no earlier than that time."""
        self.free_at[stream] = max(self.free_at[stream], seconds)

    def synchronize(self, stream: int | None = None) -> None:
        """Let the host wait for one stream, or for all."""
        reached = max(self.free_at) if stream is None else self.free_at[stream]
        self.host_seconds = max(self.host_seconds, reached)

    @property
    def elapsed_seconds(self) -> float:
        """The time at which all that was issued so far is done."""
        return max(self.host_seconds, *self.free_at)


class Stream:
    """What `torch.cuda.Stream` offers, on the clock of the active simulation."""

    def __init__(self, device: Any = None, priority: int = 0, *, clock: Clock, stream_id: int | None = None) -> None:
        self.device = device
        self.priority = priority
        self.clock = clock
        self.stream_id = clock.new_stream() if stream_id is None else stream_id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.clock, self.stream_id) == (other.clock, other.stream_id)

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def wait_stream(self, stream: "Stream") -> None:
        self.clock.wait_until(self.stream_id, self.clock.free_at[stream.stream_id])

    def wait_event(self, event: "Event") -> None:
        event.wait(self)

    def record_event(self, event: "Event | None" = None) -> "Event":
        event = event or Event(clock=self.clock)
        event.record(self)
        return event

    def query(self) -> bool:
        return self.clock.free_at[self.stream_id] <= self.clock.host_seconds

    def synchronize(self) -> None:
        self.clock.synchronize(self.stream_id)


class Event:
    """What `torch.cuda.Event` offers. Not recorded yet, it is done, as in CUDA."""

    def __init__(self, *_: Any, clock: Clock, **__: Any) -> None:
        self.clock = clock
        self.seconds: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        stream_id = self.clock.current if stream is None else stream.stream_id
        self.seconds = max(self.clock.free_at[stream_id], self.clock.host_seconds)

    def wait(self, stream: Stream | None = None) -> None:
        if self.seconds is not None:
            self.clock.wait_until(self.clock.current if stream is None else stream.stream_id, self.seconds)

    def query(self) -> bool:
        return self.seconds is None or self.seconds <= self.clock.host_seconds

    def synchronize(self) -> None:
        if self.seconds is not None:
            self.clock.host_seconds = max(self.clock.host_seconds, self.seconds)

    def elapsed_time(self, end: "Event") -> float:
        """Milliseconds, as in CUDA. Raises RuntimeError for an event that was not recorded."""
        if self.seconds is None or end.seconds is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end.seconds - self.seconds) * 1e3
