"""A sweep's folder, opened for reading: every command beside a run begins here."""

from pathlib import Path

from memexp.plan.plan import PlanError
from memexp.results.store import read_sweep
from memexp.results.sweep import Sweep, SweepFolder


def open_sweep(path: Path, command: str = "report") -> tuple[SweepFolder, Sweep]:
    """The folder of one sweep and its axes. Raises PlanError with what to type where `path` is none."""
    folder = SweepFolder(path)
    try:
        return folder, read_sweep(folder)
    except (FileNotFoundError, NotADirectoryError):
        raise PlanError(_no_sweep(path, command)) from None
    except (ValueError, TypeError, RecursionError) as error:
        raise PlanError(f"{folder.sweep_json} is damaged ({error}): run the sweep again in a new folder.") from None


def _no_sweep(path: Path, command: str) -> str:
    """What was given, why it is no sweep, and what to type."""
    above = next((parent for parent in path.absolute().parents if SweepFolder(parent).sweep_json.is_file()), None)
    if above is not None:
        return f"{path} is part of a sweep, not its folder. Type: memexp {command} {above}"
    if not path.exists():
        return f"{path} does not exist. Type: memexp {command} results/NAME, with the name of a sweep."
    below = sorted(path.glob("*/sweep.json"), key=lambda file: file.stat().st_mtime)
    if below:
        count = f"{len(below):,} {'sweep' if len(below) == 1 else 'sweeps'}"
        return f"{path} is no sweep itself but holds {count}. Type, for the newest: memexp {command} {below[-1].parent}"
    return f"{path} is no sweep: it has no sweep.json. Type: memexp {command} results/NAME, with the name of a sweep."
