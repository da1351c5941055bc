"""`memexp lengths data=… model=… max_length=512,1024`: how long the rows are, and what to set max_length to."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from memexp.commands import COMMANDS
from memexp.commands.arguments import Parser
from memexp.lengths.show import show
from memexp.plan import Plan, PlanError, load
from memexp.run.environment import worker_environment

# What a length depends on. Everything else of a run is what the command compares, or beside the point.
_TAKEN = ("data", "model", "trainer.args", "results_dir")
_BATCH_SIZES = [2, 4, 8]


def main(arguments: list[str]) -> int:
    """0, or a PlanError for what was typed and for data that a run would refuse."""
    parser = Parser("lengths", COMMANDS["lengths"])
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="data=…, model=…, as for a run")
    parser.add_argument("--max-length", metavar="N,N", help="as max_length=512,1024; without it, powers of two")
    parser.add_argument("--batch-size", metavar="N,N", help="as batch_size=2,4,8, which is also what is not typed")
    typed = parser.parse_intermixed_args(arguments)
    values = {"max_length": typed.max_length, "batch_size": typed.batch_size}
    overrides = []
    for override in typed.overrides:
        key, _, value = override.partition("=")
        if key in values:
            values[key] = value
        else:
            _check_key(key, override)
            overrides.append(override)
    sizes = _numbers("batch_size", values["batch_size"]) or _BATCH_SIZES
    results = next((o.partition("=")[2] for o in overrides if o.startswith("results_dir=")), "results")
    return _lengths(_plan(overrides), _numbers("max_length", values["max_length"]), sizes, Path(results))


def _lengths(plan: Plan, max_lengths: list[int], batch_sizes: list[int], results: Path) -> int:
    from memexp.lengths.files import write_files

    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    data = plan.work.data
    folder = results / "lengths" / (Path(str(data["path"])).stem if data.get("path") else str(data["kind"]))
    request = {"max_lengths": max_lengths, "batch_sizes": batch_sizes, "cache": str(folder / "tokens")}
    with console.status("Tokenising and packing with TRL …"):
        answer = _count(plan, request, folder)
    if "refused" in answer:
        raise PlanError(answer["refused"])
    model = plan.work.model
    by = f"the tokenizer of {model.path}" if model.path else "the tokenizer that ships with memexp"
    name = f"data={data['kind']}" + (f" data.path={data['path']}" if data.get("path") else "")
    show(answer, f"{name}, {by}", console)
    if model.path is None and data["kind"] != "lengths":
        console.print("For your model's own tokenizer: model.weights=pretrained model.path=…", markup=False)
    console.print(f"\n{'  '.join(str(path) for path in write_files(folder, answer, f'{name}, {by}'))}", markup=False)
    return 0


def _count(plan: Plan, request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What the worker says. Its own process, because TRL and torch are not for this one."""
    with tempfile.TemporaryDirectory(prefix="memexp-") as scratch:
        paths = [Path(scratch) / name for name in ("plan.json", "request.json", "answer.json")]
        paths[0].write_text(plan.to_json(), encoding="utf-8")
        paths[1].write_text(json.dumps(request), encoding="utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "log.txt", "wb") as log:
            command = [sys.executable, "-m", "memexp.lengths.count", *map(str, paths)]
            done = subprocess.run(command, stdout=log, stderr=log, env=worker_environment(plan, os.environ))
        if done.returncode == 0:
            answer: dict[str, Any] = json.loads(paths[2].read_text(encoding="utf-8"))
            return answer
    last = [line for line in (folder / "log.txt").read_text(errors="replace").splitlines() if line.strip()][-1:]
    raise PlanError(f"lengths: the worker ended with code {done.returncode}: {''.join(last)} See {folder}/log.txt.")


def _plan(overrides: list[str]) -> Plan:
    # On the CPU whatever there is: tokenising needs no GPU, and no technique is in use.
    plan = load("backend=cpu", *overrides)
    if plan.refusal is not None:
        raise PlanError(plan.refusal.reason)
    return plan


def _check_key(key: str, override: str) -> None:
    if key.partition(".")[0] in _TAKEN or key.startswith("trainer.args."):
        return
    raise PlanError(
        f"lengths {override}: the lengths of rows do not depend on {key or 'it'}. "
        "Type memexp lengths data=… model=… max_length=512,1024 batch_size=4."
    )


def _numbers(key: str, text: str | None) -> list[int]:
    """A list of whole numbers as typed, with or without brackets; empty where nothing was."""
    parts = [part.strip() for part in (text or "").strip("[]").split(",") if part.strip()]
    if text is not None and (not parts or not all(part.isdecimal() and int(part) > 0 for part in parts)):
        raise PlanError(f"{key}={text}: these are whole numbers of at least 1. Type {key}=512,1024.")
    return sorted({int(part) for part in parts})
