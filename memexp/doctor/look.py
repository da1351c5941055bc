"""Look at the machine without importing torch: backends, packages, options, variables and the results folder.

Whether an option runs is asked of the rules that refuse cells, so that both say the same. Left out: whether a model or
a batch fits, which `memexp frontier` finds, and the hub, which is asked only on request.
"""

import os
import platform
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from memexp.plan import Plan, conf, load
from memexp.plan.machine import OPTIONAL_PACKAGES, Machine, version_of
from memexp.plan.plan import Technique
from memexp.plan.preflight import backend_is_here, needs_are_met
from memexp.results.format import bytes_text

CORE_PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "hydra-core", "altair")
_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE", "HF_ENDPOINT")
_HUB_SECONDS = 5
_NAMES = 32  # characters of the options on one line


@dataclass(frozen=True)
class Options:
    """Options of one group that fare alike. `here` and `simulated` are None where they run, else what is missing."""

    names: str
    here: str | None
    simulated: str | None


@dataclass(frozen=True)
class Finding:
    """One line: a name, what was found, and whether that is as it should be."""

    name: str
    value: str
    is_well: bool = True


def hardware(machine: Machine) -> list[Finding]:
    """The host, and each GPU with its driver."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    host = f"{platform.system()} {platform.machine()}, {cores} cores, {_host_memory()} of memory"
    with_driver = f", driver {machine.driver}" if machine.driver else ""
    gpus = [Finding("GPU", f"{name}{with_driver}") for name in machine.gpus]
    return [Finding("host", host), *(gpus or [Finding("GPU", "none that NVIDIA's driver shows", False)])]


def backends(machine: Machine) -> list[Finding]:
    """Which of the three backends run here."""
    refusal = backend_is_here(load("backend=cuda"), machine)
    said = (
        "cells are measured on the GPU" if refusal is None else refusal.reason.removeprefix("backend=cuda").lstrip(": ")
    )
    return [
        Finding("cuda", said, refusal is None),
        Finding("simulate", "memory and speed of a GPU are predicted; needs no GPU"),
        Finding("cpu", "training is real; sized for model=tiny"),
    ]


def packages(machine: Machine) -> list[Finding]:
    """Versions of what memexp rests on, then of what some options need."""
    core = [(name, version_of(name)) for name in CORE_PACKAGES]
    found = [Finding(name, version or "not installed", version is not None) for name, version in core]
    torch = next(finding for finding in found if finding.name == "torch")
    built = f"for CUDA {machine.torch_cuda}" if machine.torch_cuda else "for the CPU only"
    found[found.index(torch)] = replace(torch, value=f"{torch.value}, built {built}") if torch.is_well else torch
    return found + [Finding(name, _version(name, machine), machine.has(name)) for name in OPTIONAL_PACKAGES]


def options(machine: Machine) -> list[Options]:
    """Every technique's options and every launcher's, those of one group together that fare alike."""
    real, simulated = load(f"backend={'cuda' if machine.gpus else 'cpu'}"), load("backend=simulate")
    rows: list[Options] = []
    for group, technique in _techniques():
        here, there = (_missing(technique, plan, machine) for plan in (real, simulated))
        last = rows[-1] if rows else None
        names = f"{last.names},{technique.option}" if last else ""
        alike = last and last.names.startswith(f"{group}=") and (last.here, last.simulated) == (here, there)
        if last and alike and len(names) <= _NAMES:
            rows[-1] = replace(last, names=names)
        else:
            rows.append(Options(f"{group}={technique.option}", here, there))
    return rows


def remedies(machine: Machine) -> list[Finding]:
    """For each package that some option lacks: which options, and what to type, as the refusal of a cell says it."""
    plan = replace(load("backend=cuda"), refusal=None)
    found: dict[str, tuple[str, list[str]]] = {}
    for group, technique in _techniques():
        for need in technique.needs:
            refusal = needs_are_met(_asking(plan, replace(technique, needs=(need,))), machine)
            if refusal is not None and refusal.remedy is not None:
                found.setdefault(need, (refusal.remedy, []))[1].append(f"{group}={technique.option}")
    return [Finding(need, f"{remedy} ({', '.join(names)})", False) for need, (remedy, names) in found.items()]


def surroundings(results: Path, ask_hub: bool) -> list[Finding]:
    """Variables that reach the cells, the results folder and, on request, the hub."""
    found = [Finding(name, f"{os.environ[name]} (in your shell)") for name in _VARIABLES if name in os.environ]
    found = found or [Finding("variables", "none of the allocator's, CUDA's or the hub's is set in your shell")]
    found.append(_folder(results))
    return [*found, _hub()] if ask_hub else [*found, Finding("hub", "not asked; memexp doctor --hub asks it")]


def _techniques() -> Iterator[tuple[str, Technique]]:
    for group, names in conf.groups().items():
        if group in conf.STRUCTURE and group != "launch":
            continue
        for name in sorted(names, key=lambda name: len(conf.option(group, name).get("needs") or ())):
            file = conf.option(group, name)
            if "auto" not in file:
                yield group, Technique(group, name, needs=tuple(file.get("needs") or ()))


def _missing(technique: Technique, plan: Plan, machine: Machine) -> str | None:
    """What the option needs and this backend does not have, in a few words."""
    if technique.group == "launch":  # what processes need is for rules of their own
        asked = load(f"backend={plan.work.backend}", f"launch={technique.option}")
        refusals = [asked.refusal]
    else:
        one_by_one = (replace(technique, needs=(need,)) for need in technique.needs)
        refusals = [needs_are_met(_asking(plan, each), machine) for each in one_by_one]
    missing = (refusal.missing or "another option" for refusal in refusals if refusal is not None)
    return ", ".join(dict.fromkeys(missing)) or None


def _asking(plan: Plan, technique: Technique) -> Plan:
    return replace(plan, techniques=(technique,))


def _version(module: str, machine: Machine) -> str:
    if not machine.has(module):
        return "not installed"
    return version_of(module) or version_of(module.replace("_", "-")) or "installed"


def _folder(results: Path) -> Finding:
    existing = next(folder for folder in (results.absolute(), *results.absolute().parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):  # what access rights say is not the whole truth
            pass
    except OSError as error:
        return Finding(str(results), f"cannot be written to ({error.strerror}). Type results_dir=DIR for a run.", False)
    return Finding(str(results), f"can be written to, {bytes_text(shutil.disk_usage(existing).free)} free")


def _host_memory() -> str:
    try:
        return bytes_text(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):
        return "an unknown amount"


def _hub() -> Finding:
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=_HUB_SECONDS)
    except (OSError, ValueError, urllib.error.URLError) as error:
        return Finding("hub", f"{address} cannot be reached: {getattr(error, 'reason', error)}", False)
    return Finding("hub", f"{address} answers")
