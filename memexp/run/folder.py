"""Open the folder of a sweep: a new one, or one of that name to go on with. It never mixes two sweeps."""

import fcntl
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from memexp.invocation import config_flags, resume_command
from memexp.plan import conf
from memexp.plan.make import cell_name
from memexp.plan.plan import Plan, PlanError
from memexp.plan.values import select, show
from memexp.results.store import read_sweep, set_aside, write_plan, write_sweep
from memexp.results.sweep import Axis, Sweep, SweepFolder

# What a sweep that was ended before it had written its sweep.json may have left.
_OURS = (".lock", ".outcomes", "cells", "wandb")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@contextmanager
def open_folder(cfg: DictConfig, plans: Sequence[Plan]) -> Iterator[tuple[Sweep, SweepFolder, list[Plan]]]:
    """The sweep, its folder, and its cells without repeats, each with its plan.json written.

    The folder is held until the block ends. Raises PlanError where another process holds it, or where `sweep=` names no
    possible folder, or one whose sweep was over other axes or other values.
    """
    results = Path(str(cfg.results_dir)).resolve()
    unique = list({plan.id: plan for plan in reversed(plans)}.values())[::-1]
    axes = _axes(plans)
    names = [axis.name for axis in axes]
    flags = tuple(config_flags())
    unique = [replace(plan, name=cell_name(plan, names), flags=flags) for plan in unique]
    baseline = _baseline(cfg.baseline, axes)
    folder = SweepFolder(_choose(results, cfg.sweep))
    with only_run(folder):
        for left in folder.path.glob(".*.tmp"):  # by a sweep that was killed while it wrote
            left.unlink(missing_ok=True)
        sweep = _written(folder, unique, axes, baseline)
        yield sweep, folder, unique


def _written(
    folder: SweepFolder, plans: Sequence[Plan], axes: tuple[Axis, ...], baseline: dict[str, Any] | None
) -> Sweep:
    names = [axis.name for axis in axes]
    sweep = Sweep(
        name=folder.path.name,
        axes=axes,
        cells=tuple(plan.id for plan in plans),
        fixed={key: value for key, value in plans[0].choices.items() if key not in names},
        baseline=baseline,
        command=resume_command(folder.path.name),
    )
    before = _read_sweep(folder)
    if before is not None:
        sweep = _continued(sweep, before, folder, plans)
    write_sweep(folder, sweep)
    _make_newest(folder)
    for plan in plans:
        folder.cell(plan.id).mkdir(parents=True, exist_ok=True)
        write_plan(folder, plan)
    return sweep


def _read_sweep(folder: SweepFolder) -> Sweep | None:
    """None where there is none to go on with. A damaged one beside cells is set aside: their records do not need it."""
    try:
        return read_sweep(folder)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, RecursionError) as error:
        if not _has_cells(folder.path):
            raise PlanError(f"{folder.sweep_json} is damaged ({error}). Type another sweep=NAME.") from error
        set_aside(folder.sweep_json)
        return None


def _has_cells(folder: Path) -> bool:
    return any(folder.glob("cells/*/plan.json"))


def _make_newest(folder: SweepFolder) -> None:
    """`last` is the sweep that was started last, also where the clock was set back since another one was."""
    times = [path.stat().st_mtime_ns for path in folder.path.parent.glob("*/sweep.json") if path != folder.sweep_json]
    if max(times, default=0) >= folder.sweep_json.stat().st_mtime_ns:
        os.utime(folder.sweep_json, ns=(max(times) + 1_000_000, max(times) + 1_000_000))


def in_running_order(plans: Sequence[Plan]) -> list[Plan]:
    """Grid order, but all cells of one seed before those of the next: what drifts while a sweep runs, drifts in every
    configuration alike, and an interrupted sweep has each configuration once before any has it twice.
    """
    seeds = {seed: place for place, seed in enumerate(dict.fromkeys(plan.work.seed for plan in plans))}
    return sorted(plans, key=lambda plan: seeds[plan.work.seed])


def _axes(plans: Sequence[Plan]) -> tuple[Axis, ...]:
    # What was typed and differs between cells. What an axis drags along (model=auto under backend=cpu,cuda) is none.
    typed = dict.fromkeys(override.partition("=")[0].lstrip("+~") for override in plans[0].overrides)
    swept = [key for key in typed if len(_options(plans, key)) > 1]
    return tuple(Axis(key, _options(plans, key), _default(plans, key)) for key in swept)


def _options(plans: Sequence[Plan], key: str) -> tuple[Any, ...]:
    options: list[Any] = []
    for plan in plans:
        value = plan.choices.get(key)
        if value not in options:
            options.append(value)
    return tuple(options)


def _default(plans: Sequence[Plan], key: str) -> Any:
    if key in conf.group_defaults():
        return conf.default_option(key, plans[0].work.backend)
    found, value = select(conf.primary(), key)
    group, _, leaf = key.partition(".")
    if not found and group in plans[0].choices and group in conf.groups():
        value = conf.option(group, plans[0].choices[group]).get(leaf) if "." not in leaf else None
    return value


def _choose(results: Path, name: Any) -> Path:
    if name is None:
        return new_folder(results)
    if name == "last":
        finished = sorted(results.glob("*/sweep.json"), key=lambda path: path.stat().st_mtime_ns)
        if not finished:
            raise PlanError(f"sweep=last: there is no sweep in {results} yet. Leave sweep out to start one.")
        return finished[-1].parent
    if not _NAME.fullmatch(str(name)):
        raise PlanError(
            f"sweep={name}: a name has letters, digits, dots, dashes and underscores. Type for example sweep=friday."
        )
    folder = results / str(name)
    _make(folder)
    is_sweep = (folder / "sweep.json").exists() or _has_cells(folder)
    if not is_sweep and any(path.name not in _OURS for path in folder.iterdir()):
        raise PlanError(f"sweep={name}: {folder} is there and is no sweep. Type another sweep=NAME.")
    return folder


def new_folder(results: Path) -> Path:
    """A folder that is there and nobody else's, named after this second. Raises PlanError where none can be made."""
    _make(results)
    while True:
        folder = results / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
        try:
            folder.mkdir()  # atomic: of two sweeps started in one instant, one gets the name
        except FileExistsError:
            continue
        return folder


@contextmanager
def only_run(folder: SweepFolder) -> Iterator[None]:
    """Hold the sweep's folder while its cells run. Raises PlanError where another process holds it."""
    try:
        lock = open(folder.path / ".lock", "a", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        raise PlanError(f"{folder.path} cannot be written ({error.strerror}). Type results_dir=FOLDER.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PlanError(
                f"sweep={folder.path.name} is being run by another process. Wait for it, or type another name."
            ) from error
        except OSError:
            pass  # a network's file system that knows no locks (ENOLCK, ENOSYS) is no reason to run nothing
        yield


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlanError(f"results_dir: {folder} cannot be made ({error.strerror}). Type results_dir=FOLDER.") from error


def _continued(sweep: Sweep, before: Sweep, folder: SweepFolder, plans: Sequence[Plan]) -> Sweep:
    names, old = [axis.name for axis in sweep.axes], [axis.name for axis in before.axes]
    advice = f"Type another sweep=NAME, or leave sweep out for a new folder ({folder.path} is left as it is)."
    if names != old:
        raise PlanError(
            f"sweep={sweep.name} is a sweep over {', '.join(old) or 'no axis'}, and this one is over "
            f"{', '.join(names) or 'no axis'}. {advice}"
        )
    for key in {**before.fixed, **sweep.fixed}:
        # A technique that memexp did not have yet was at its default, which is off.
        default = _default(plans, key)
        old_value, value = (show(s.fixed.get(key, default)) for s in (before, sweep))
        if old_value != value:
            raise PlanError(
                f"sweep={sweep.name} was run with {key}={old_value}, this command has {key}={value}. {advice}"
            )
    # What was run before stays in the table, beside what is new.
    axes = tuple(
        replace(axis, options=tuple(dict.fromkeys((*earlier.options, *axis.options))))
        for axis, earlier in zip(sweep.axes, before.axes, strict=True)
    )
    return replace(sweep, axes=axes, cells=tuple(dict.fromkeys((*before.cells, *sweep.cells))))


def check_baseline(cfg: DictConfig, plans: Sequence[Plan]) -> None:
    """Raise PlanError where `baseline` names no cell of this sweep."""
    _baseline(cfg.baseline, _axes(plans))


def _baseline(text: Any, axes: tuple[Axis, ...]) -> dict[str, Any] | None:
    if text is None:
        return None
    chosen = {}
    for pair in str(text).split(","):
        name, equals, value = pair.strip().partition("=")
        axis = next((axis for axis in axes if axis.name == name), None)
        if axis is None or not equals:
            swept = ", ".join(axis.name for axis in axes) or "nothing"
            raise PlanError(f"baseline={text}: {pair!r} names no axis of this sweep, which is over {swept}.")
        option = next((option for option in axis.options if show(option) == value), None)
        if option is None and value != "null":
            raise PlanError(f"baseline={text}: {name} is swept over {', '.join(map(show, axis.options))}, not {value}.")
        chosen[name] = option
    return chosen
