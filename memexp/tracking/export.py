"""The exporting process: `python -m memexp.tracking.export SETTINGS.json`, in which alone a sweep imports wandb.

Reads one JSON line a finished cell from standard input, {"record": path, "config": {…}}, and {"sweep": true} for the
summary of all of them, until an empty line or the end. A run that cannot be written is a line in `wandb/export.log`, to
which standard error goes, and the next run goes on. It never trains, never changes a record, and knows nothing of the
cells that are still running.
"""

import contextlib
import json
import os
import sys
import threading
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from memexp.results.record import Record
from memexp.secrets import secrets_in, without_secrets
from memexp.tracking.contents import exit_code, history, run_name, run_tags
from memexp.tracking.exporter import NO_WANDB, NOT_WRITTEN, Settings
from memexp.tracking.marks import Mark, fingerprint, is_exported, read_mark, run_id, write_mark
from memexp.tracking.runs import start_run
from memexp.tracking.summary import export_summary
from memexp.tracking.time_limit import time_limit

LOWEST_PRIORITY = 19


def main(settings_path: str) -> int:
    """Returns 0, or NO_WANDB where the package cannot be used; whether a run was written is told by its mark."""
    settings, secrets, failed = Settings.read(Path(settings_path)), secrets_in(os.environ), False
    # The cells are what is measured; this process takes what they leave.
    os.nice(LOWEST_PRIORITY)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    lines = _private_stdin()
    try:
        with time_limit(settings.timeout_seconds):
            _import_wandb()
    except Exception as error:
        _log(f"the whole sweep {NOT_WRITTEN} {_one_line(error)}", secrets)
        return NO_WANDB
    for line in lines:
        if not line.strip():
            break
        done = json.loads(line)
        try:
            with time_limit(settings.timeout_seconds):
                if "record" in done:
                    export(Path(done["record"]), done["config"], settings, secrets)
                else:
                    export_summary(settings, secrets)
        except Exception as error:
            failed = True
            what = done.get("record", "the sweep's summary")
            _log(f"{what} {NOT_WRITTEN} {_one_line(error)}\n{traceback.format_exc()}", secrets)
    if not failed:
        _stop_wandb(settings.timeout_seconds)
    return 0


def export(record_path: Path, config: dict[str, Any], settings: Settings, secrets: tuple[str, ...] = ()) -> None:
    """Write one cell's run, in place of an older one; nothing where the record has not changed since.

    Raises what W&B raises. The mark is written last, so a run that broke on the way is written again next time.
    """
    if is_exported(record_path, settings.mode):
        return
    record_json = record_path.read_bytes()
    record = Record.from_json(record_json.decode())
    folder = Path(settings.folder) / "wandb"
    mark = read_mark(record_path)
    identity = mark.id if mark else run_id(folder, record.id)
    run = start_run(
        settings,
        identity,
        job_type="cell",
        name=without_secrets(run_name(record), secrets),
        tags=run_tags(record, settings.tags),
        config=without_secrets(config, secrets),
    )
    try:
        run.define_metric("train/*", step_metric="train/step", summary="none")
        for index, row in enumerate(history(record)):
            run.log(row, step=index)
        run.summary.update(without_secrets(record.to_dict(), secrets))
        url = run.url if settings.mode == "online" else None
    finally:
        run.finish(exit_code=exit_code(record))
    write_mark(record_path, Mark(identity, settings.mode, fingerprint(record_json), url))


def _import_wandb() -> None:
    import wandb

    # Without the package, a folder `wandb/` that earlier runs left in the working directory is imported instead.
    if not hasattr(wandb, "init"):
        raise ImportError("the package wandb is not installed")


def _stop_wandb(timeout_seconds: float) -> None:
    import wandb

    with contextlib.suppress(Exception), time_limit(timeout_seconds):
        wandb.teardown()


def _private_stdin() -> TextIO:
    """The lines, out of reach of W&B and its service, which inherit descriptor 0 and may ask for a key on it."""
    lines = os.fdopen(os.dup(0), encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return lines


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    # W&B's service watches this process in the same way and ends with it.
    os._exit(1)


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _log(text: str, secrets: tuple[str, ...]) -> None:
    print(datetime.now(UTC).isoformat(timespec="seconds"), without_secrets(text, secrets), file=sys.stderr, flush=True)


if __name__ == "__main__":
    status = main(sys.argv[1])
    # Not sys.exit: W&B's exit hook would wait once more for a run that hung.
    os._exit(status)
