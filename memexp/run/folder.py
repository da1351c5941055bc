"""Open the folder of a sweep: a new one, or one of that name to go on with. It never mixes two sweeps."""

import fcntl
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
from memexp.results.store import read_sweep, write_atomically, write_sweep
from memexp.results.sweep import Axis, Sweep, SweepFolder

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def open_folder(cfg: DictConfig, plans: Sequence[Plan]) -> tuple[Sweep, SweepFolder, list[Plan]]:
    """The sweep, its folder, and its cells without repeats, each with its plan.json written.

    Raises PlanError where `sweep=` names no possible folder, or one whose sweep was over other axes or other values.
    """
    results = Path(str(cfg.results_dir)).resolve()
    unique = list({plan.id: plan for plan in reversed(plans)}.values())[::-1]
    axes = _axes(plans)
    names = [axis.name for axis in axes]
    flags = tuple(config_flags())
    unique = [replace(plan, name=cell_name(plan, names), flags=flags) for plan in unique]
    baseline = _baseline(cfg.baseline, axes)
    folder = SweepFolder(_choose(results, cfg.sweep))
    sweep = Sweep(
        name=folder.path.name,
        axes=axes,
        cells=tuple(plan.id for plan in unique),
        fixed={key: value for key, value in plans[0].choices.items() if key not in names},
        baseline=baseline,
        command=resume_command(folder.path.name),
    )
    if folder.sweep_json.exists():
        sweep = _continued(sweep, read_sweep(folder), folder)
    for plan in unique:
        folder.cell(plan.id).mkdir(parents=True, exist_ok=True)
        write_atomically(folder.plan(plan.id), plan.to_json() + "\n")
    write_sweep(folder, sweep)
    return sweep, folder, unique


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
        return _new_folder(results)
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
    return folder


def _new_folder(results: Path) -> Path:
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
    with open(folder.path / ".lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise PlanError(
                f"sweep={folder.path.name} is being run by another process. Wait for it, or type another name."
            ) from error
        yield


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlanError(f"results_dir: {folder} cannot be made ({error.strerror}). Type results_dir=FOLDER.") from error


def _continued(sweep: Sweep, before: Sweep, folder: SweepFolder) -> Sweep:
    names, old = [axis.name for axis in sweep.axes], [axis.name for axis in before.axes]
    advice = f"Type another sweep=NAME, or leave sweep out for a new folder ({folder.path} is left as it is)."
    if names != old:
        raise PlanError(
            f"sweep={sweep.name} is a sweep over {', '.join(old) or 'no axis'}, and this one is over "
            f"{', '.join(names) or 'no axis'}. {advice}"
        )
    for key in {**before.fixed, **sweep.fixed}:
        old_value, value = (show(s.fixed[key]) if key in s.fixed else "its default" for s in (before, sweep))
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
