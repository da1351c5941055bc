"""The error that a training job has to expect of an allocator."""


class OutOfMemoryError(RuntimeError):
    """No memory for a request, even after the cache was emptied. The allocator stays usable, as torch's does.

    `requested_bytes` is what the caller asked for; `segment_bytes` is what the device was asked for on its behalf, and
    what torch's message calls "Tried to allocate". `free_bytes` is the capacity less the reserved bytes. The text is
    that of torch, because libraries look in it for "CUDA out of memory." when they choose a smaller batch.
    """

    def __init__(
        self,
        *,
        requested_bytes: int,
        segment_bytes: int,
        capacity_bytes: int,
        allowed_bytes: int | None,
        allocated_bytes: int,
        reserved_bytes: int,
    ) -> None:
        self.requested_bytes = requested_bytes
        self.segment_bytes = segment_bytes
        self.capacity_bytes = capacity_bytes
        self.allowed_bytes = allowed_bytes
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes
        self.free_bytes = capacity_bytes - reserved_bytes
        allowed = "" if allowed_bytes is None else f"{_readable(allowed_bytes)} allowed; "
        super().__init__(
            f"CUDA out of memory. Tried to allocate {_readable(segment_bytes)}. GPU 0 has a total capacity of "
            f"{_readable(capacity_bytes)} of which {_readable(self.free_bytes)} is free. {allowed}"
            f"Of the allocated memory {_readable(allocated_bytes)} is allocated by PyTorch, and "
            f"{_readable(reserved_bytes - allocated_bytes)} is reserved by PyTorch but unallocated."
        )


def _readable(size: int) -> str:
    """The size as torch prints it."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size > unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} bytes"
