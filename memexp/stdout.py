"""Standard output as a sweep needs it: in any encoding, and no reason to end when nobody reads it any more."""

import codecs
import os
import sys
from io import TextIOWrapper
from typing import IO, Any, cast

_LOOKALIKES = "memexp_lookalikes"
_ASCII = {"─": "-", "━": "-", "│": "|", "█": "#", "…": "...", "±": "+-", "·": "."} | {
    spark: str(height) for height, spark in enumerate("▁▂▃▄▅▆▇", start=1)
}


def print_in_any_encoding() -> None:
    """Rules, bars and the like become what looks most like them where the terminal's encoding has none, and what else
    it has not becomes `?`, instead of an error.
    """
    codecs.register_error(_LOOKALIKES, _lookalike)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors=_LOOKALIKES)


def _lookalike(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_ASCII.get(character, "?") for character in error.object[error.start : error.end]), error.end


def lasting_stdout() -> IO[str]:
    """Standard output, from which nothing is raised: what a terminal that was closed, or `| head`, does not take is
    dropped. The cells that run are worth more than the lines that tell of them.
    """
    return cast(IO[str], _Lasting(sys.stdout))


class _Lasting:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except OSError:
            self._drop()
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._drop()

    def _drop(self) -> None:
        # Under the stream, which keeps what it could not write and flushes it once more when Python ends.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
