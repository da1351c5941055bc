"""An end to what W&B may take."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError inside the block. Main thread only, and not for code that swallows every exception."""

    def interrupt(*_: object) -> None:
        raise TimeoutError(f"W&B took longer than {seconds:g} s")

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
