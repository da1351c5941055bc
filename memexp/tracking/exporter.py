"""The parent's side of W&B: one exporting process a sweep, fed with finished cells. wandb is never imported here.

Runs are made from records that are already on disk, so a hang, a crash or a missing network cannot touch a cell, and
whatever was not written is written when the sweep is started again.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from memexp.frozen import Frozen
from memexp.results.store import write_atomically
from memexp.secrets import secrets_in, without_secrets
from memexp.tracking.marks import is_exported, is_summarised, read_mark, read_summary_mark

NO_WANDB = 3
NOT_WRITTEN = "was not written:"
_MODES = {
    "offline": "offline",
    "dryrun": "offline",
    "online": "online",
    "run": "online",
    "shared": "online",
    "disabled": "disabled",
}
# Each would make W&B put a cell's data into another run, or take a run's values from elsewhere.
_MISLEADING = {
    f"WANDB_{name}"
    for name in ("CONFIG_PATHS", "FORK_FROM", "LAUNCH", "RESUME", "RESUME_FROM", "RUN_ID", "SERVICE", "SWEEP_ID")
}


@dataclass(frozen=True)
class Settings(Frozen):
    """`folder` is the sweep's; runs land in its `wandb/`. Holds no key: W&B finds that itself."""

    folder: str
    mode: str = "offline"
    project: str = "memexp"
    entity: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    timeout_seconds: float = 60

    def resolved(self, environment: Mapping[str, str]) -> "Settings":
        """With the user's own variables: WANDB_MODE wins over `mode` unless that is "disabled", WANDB_RUN_GROUP stands
        in for a missing group, and the sweep's name where there is neither. Raises ValueError for an unknown mode.
        """
        asked = environment.get("WANDB_MODE") or self.mode
        if asked not in _MODES or self.mode not in _MODES:
            wrong = asked if asked not in _MODES else self.mode
            raise ValueError(f"mode {wrong!r} is not one of offline, online, disabled")
        folder = Path(self.folder).absolute()
        secrets = secrets_in(environment)
        return dataclasses.replace(
            self,
            folder=str(folder),
            mode="disabled" if self.mode == "disabled" else _MODES[asked],
            group=without_secrets(self.group or environment.get("WANDB_RUN_GROUP") or folder.name, secrets),
            tags=tuple(without_secrets(self.tags, secrets)),
        )


class Exporter:
    """Starts the exporting process at once, so that importing wandb does not wait for the first cell. Never raises."""

    def __init__(self, settings: Settings) -> None:
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        self._records: dict[Path, None] = {}
        self._problems: list[str] = []
        self._wants_summary = False
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._settings = settings.resolved(os.environ)
            if self._settings.mode != "disabled":
                self._start()
        except (OSError, ValueError) as error:
            self._problems.append(f"W&B: no run will be written, because the exporter could not start: {error}")

    def cell_done(self, record_path: Path, config: Mapping[str, Any]) -> None:
        """Hand over a cell whose record.json is on disk, and return at once. Handing it over again is harmless."""
        if self._process is None:
            return
        path = record_path.absolute()
        self._records[path] = None
        try:
            line = json.dumps({"record": str(path), "config": config}, default=_plain)
        except Exception as error:  # whatever a foreign object raises while it is read must not reach the sweep
            self._problems.append(f"W&B: the run of {path.parent.name} has no config, which is not plain data: {error}")
            line = json.dumps({"record": str(path), "config": {}})
        self._lines.put(line.encode() + b"\n")

    def sweep_done(self) -> None:
        """Ask for the summary run, when every record and report.html are on disk."""
        if self._process is not None:
            self._wants_summary = True
            self._lines.put(b'{"sweep": true}\n')

    def close(self) -> list[str]:
        """Wait for the runs that are left, at most `timeout_seconds`, then end the process. Returns lines for the user.

        No line means that nothing is wrong; an online export always gets one that says where its runs are.
        """
        if self._process is not None:
            in_time = self._end(self._process)
            self._problems += self._report(in_time, self._process.returncode == NO_WANDB)
            self._process = None
        return list(self._problems)

    def _start(self) -> None:
        folder = Path(self._settings.folder) / "wandb"
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "export.log"
        settings_json = folder / "export.json"
        write_atomically(settings_json, self._settings.to_json(), durable=False)
        with self._log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "memexp.tracking.export", str(settings_json)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=_environment(self._settings.mode),
                # Ctrl-C is for the sweep, which then closes this process in order.
                start_new_session=True,
            )
        threading.Thread(target=_feed, args=(self._lines, self._process.stdin), daemon=True).start()

    def _end(self, process: subprocess.Popen[bytes]) -> bool:
        """False when it had to be killed, with the group that it leads, which keeps its id until it is reaped."""
        # An empty line and not only the end of the pipe: a process forked from this one would hold that open.
        self._lines.put(b"\n")
        try:
            process.wait(self._settings.timeout_seconds)
            return True
        except subprocess.TimeoutExpired:
            return False
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _report(self, in_time: bool, no_wandb: bool) -> list[str]:
        folder, mode = self._log.parent, self._settings.mode
        missing = [path for path in self._records if not is_exported(path, mode)]
        runs, unwritten = len(self._records) + self._wants_summary, len(missing)
        if self._wants_summary:
            unwritten += not is_summarised(folder.parent, mode)
        lines = []
        if unwritten or not in_time:
            late = "" if in_time else f" W&B did not end within {self._settings.timeout_seconds:g} s and was stopped."
            help_ = " Type `pip install wandb`, or logger=none to do without." if no_wandb else ""
            outcome = f"{unwritten} of {runs} runs were not" if unwritten else "every run was"
            lines.append(f"W&B: {outcome} written (see {self._log}).{self._first_error()}{late}{help_}")
        if mode == "online":
            marks = [read_mark(path) for path in self._records if path not in missing]
            marks += [read_summary_mark(folder.parent)] if self._wants_summary else []
            urls = [mark.url for mark in marks if mark and mark.url]
            if urls:
                lines.append(f"W&B: {len(urls)} of {runs} runs are online, the last one at {urls[-1]}")
            if unwritten and any(folder.glob("*run-*")):
                lines.append(f"W&B: to upload what is on disk, type `wandb sync {folder}/*run-*`")
        return lines

    def _first_error(self) -> str:
        try:
            text = self._log.read_bytes()[self._log_start :].decode(errors="replace")
        except OSError:
            return ""
        errors = (line.partition(NOT_WRITTEN)[2] for line in text.splitlines() if NOT_WRITTEN in line)
        return next((f"{error.rstrip('.')}." for error in errors), "")


def _feed(lines: "SimpleQueue[bytes]", pipe: IO[bytes]) -> None:
    """A thread of its own, because a pipe that nobody reads blocks its writer once it is full."""
    with suppress(OSError), pipe:
        line = b""
        while line != b"\n":
            line = lines.get()
            pipe.write(line)
            pipe.flush()


def _environment(mode: str) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in _MISLEADING}
    if mode == "offline":
        # Otherwise W&B sends reports about itself once a minute, in offline mode too.
        environment["WANDB_ERROR_REPORTING"] = "false"
    # `-m` must find this package even where it is not installed and the working directory has changed.
    here = str(Path(__file__).parents[2])
    environment["PYTHONPATH"] = os.pathsep.join(part for part in (os.environ.get("PYTHONPATH"), here) if part)
    return environment


def _plain(value: Any) -> Any:
    """For json.dumps: mappings and sequences of other kinds stay nested, everything else is text."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Iterable) else str(value)
