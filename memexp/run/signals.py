"""Signals handled otherwise for a while. Python lets the main thread alone do that; in any other nothing changes."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def handling(handler: Callable[[int, Any], None], *numbers: signal.Signals) -> Iterator[None]:
    """`handler` for these signals within the block, and afterwards what was there before.

    One that is ignored stays so: nohup and a shell's background job ask for that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in heard}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
