"""The packages that `make gpu-check` takes along to a machine with a GPU where nothing may be installed.

    python -m tools.gpu_wheels collect FOLDER     here: the pure-Python wheels that memexp needs, of this environment
    python -m tools.gpu_wheels unpack FOLDER      there: unpacks them beside the folder, and prints where for PYTHONPATH

What has compiled parts (torch, numpy, pyarrow, tokenizers, …) has to be there already: `collect` names it. Collecting
needs pip and packaging, unpacking the standard library alone.
"""

import argparse
import importlib.metadata
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

PYTHON = "3.12"
# What a cell imports; charts, uploads and launchers are not part of the check.
ROOTS = ("hydra-core", "omegaconf", "transformers", "trl", "peft", "accelerate", "datasets", "rich", "nvidia-ml-py",
         "jinja2", "cloudpickle", "joblib", "hydra-joblib-launcher", "PyYAML", "pyarrow", "torch")  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.gpu_wheels")
    parser.add_argument("action", choices=("collect", "unpack"))
    parser.add_argument("folder", type=Path)
    given = parser.parse_args(arguments)
    if given.action == "unpack":
        print(unpack(given.folder))
        return 0
    compiled = collect(given.folder)
    print(f"{len(list(given.folder.glob('*.whl')))} wheels in {given.folder}; the other machine needs its own "
          f"{', '.join(compiled)}")  # fmt: skip
    return 0


def collect(folder: Path) -> list[str]:
    """Fill `folder` with a wheel of each pure package, at this environment's version. Returns the other packages."""
    folder.mkdir(parents=True, exist_ok=True)
    needed = sorted(set(_needed(ROOTS)))
    pure = {name for name in needed if is_pure(importlib.metadata.distribution(name))}
    for name in sorted(pure):
        _fetch(f"{name}=={importlib.metadata.version(name)}", folder)
    return [name for name in needed if name not in pure]


def unpack(folder: Path) -> str:
    """Unpack every wheel of `folder` into one place beside it; empty text where there is no such folder."""
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        return ""
    place = folder.with_name(f"{folder.name}.unpacked").resolve()
    shutil.rmtree(place, ignore_errors=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(place)
    return str(place)


def is_pure(distribution: importlib.metadata.Distribution) -> bool:
    """Whether its wheel runs on every platform, as its own metadata says."""
    said = (distribution.read_text("WHEEL") or "").splitlines()
    tags = [line for line in said if line.startswith("Tag:")]
    return bool(tags) and all(tag.endswith("-none-any") for tag in tags)


def _needed(names: tuple[str, ...]) -> Iterator[str]:
    """These packages and all that they need here, by their names in lower case with dashes."""
    from packaging.requirements import Requirement

    waiting, seen = list(names), set[str]()
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # needed on another platform or Python
        yield name
        for text in distribution.requires or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)


def _fetch(requirement: str, folder: Path) -> None:
    """The wheel for the other machine's Python; built here where only the source is published."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wanted = ["--no-deps", "--only-binary=:all:", f"--python-version={PYTHON}", "--dest", str(folder), requirement]
    if subprocess.run([*pip, "download", *wanted], capture_output=True, check=False).returncode == 0:
        return
    with tempfile.TemporaryDirectory() as built:
        subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", built, requirement], check=True)
        for wheel in Path(built).glob("*.whl"):
            shutil.copy(wheel, folder)


if __name__ == "__main__":
    sys.exit(main())
