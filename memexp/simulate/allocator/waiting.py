"""Freed blocks that other streams may still use. Torch records an event on each such stream and asks if it is done."""

from collections import defaultdict
from typing import Literal

from memexp.simulate.allocator.blocks import Block, State

EventTiming = Literal["optimistic", "pessimistic"]


class WaitingBlocks:
    """Holds each block until all its streams are done, which "optimistic" takes to be so at once."""

    def __init__(self, timing: EventTiming) -> None:
        if timing not in ("optimistic", "pessimistic"):
            raise ValueError(f"event_timing is optimistic or pessimistic, not {timing!r}")
        self._done_at_once = timing == "optimistic"
        self._by_stream: defaultdict[int, list[Block]] = defaultdict(list)
        self.ready: list[Block] = []

    def add(self, block: Block) -> None:
        streams, block.stream_uses = block.stream_uses or set(), None
        block.state = State.AWAITING_FREE
        block.event_count = len(streams)
        for stream in streams:
            self._by_stream[stream].append(block)
        if self._done_at_once:
            self.synchronize()

    def synchronize(self, stream: int | None = None) -> None:
        """One stream, or all of them, is done; blocks that wait for no other become ready."""
        for done in list(self._by_stream) if stream is None else [stream]:
            for block in self._by_stream.pop(done, []):
                block.event_count -= 1
                if block.event_count == 0:
                    self.ready.append(block)

    def take_ready(self) -> list[Block]:
        ready, self.ready = self.ready, []
        return ready
