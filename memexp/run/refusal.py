"""How the worker's stages say that a cell cannot run. Not an error: a row with its reason."""


class Refused(Exception):
    """Raised by a stage of the worker; `kind` is one of `memexp.results.record.REASON_KINDS`."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason
