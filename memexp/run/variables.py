"""Variables of an environment that are set together: for a process that is started, or for a while in this one."""

import os
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager


def change_variables(environment: MutableMapping[str, str], changes: Mapping[str, str | None]) -> None:
    """Set each, and unset those that are None, whether they were there or not."""
    for name, value in changes.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value


@contextmanager
def changed_variables(changes: Mapping[str, str | None]) -> Iterator[None]:
    """Those of this process, which all its threads share; afterwards each is what it was."""
    before = {name: os.environ.get(name) for name in changes}
    change_variables(os.environ, changes)
    try:
        yield
    finally:
        change_variables(os.environ, before)
