"""`memexp doctor`: what it says of an option is what a cell would be told, on machines that are not this one too."""

import subprocess
import sys
from pathlib import Path

import pytest

from memexp.doctor import look
from memexp.plan import conf
from memexp.plan.machine import OPTIONAL_PACKAGES, Machine

BARE = Machine()
WHOLE = Machine(gpus=("NVIDIA H100",), torch_cuda="13.0", packages=OPTIONAL_PACKAGES, gpu_uuids=("GPU-1",))


def named(rows: list[look.Options]) -> dict[str, look.Options]:
    """Each option by itself, taken out of its line."""
    found = {}
    for row in rows:
        group, _, names = row.names.partition("=")
        found.update({f"{group}={name}": row for name in names.split(",")})
    return found


def test_every_option_of_every_technique_is_there_once() -> None:
    expected = {
        f"{group}={name}"
        for group, names in conf.groups().items()
        if group not in conf.STRUCTURE or group == "launch"
        for name in names
        if "auto" not in conf.option(group, name)
    }
    rows = look.options(BARE)
    assert set(named(rows)) == expected
    assert sum(len(row.names.split(",")) for row in rows) == len(expected)


def test_a_machine_without_anything_lacks_what_the_files_say() -> None:
    found = named(look.options(BARE))
    assert found["quantization=nf4"].here == "bitsandbytes"
    assert found["quantization=nf4"].simulated == "bitsandbytes"
    assert found["offload=true"].here == "a GPU"
    assert found["offload=true"].simulated is None
    assert found["attention=flash_attention_2"].here == "a GPU, flash_attn"
    assert found["packing=bfd"].here is None


def test_what_is_missing_says_what_to_type_and_which_options_wait_for_it() -> None:
    found = {finding.name: finding.value for finding in look.remedies(BARE)}
    assert found["bitsandbytes"].startswith("pip install 'memexp[quantization]'")
    assert "quantization=nf4" in found["bitsandbytes"]
    assert look.remedies(WHOLE) == []


def test_a_gpu_without_a_cuda_build_of_torch_is_a_missing_package() -> None:
    machine = Machine(gpus=("NVIDIA L4",), torch_cuda=None, gpu_uuids=("GPU-1",))
    (cuda,) = (finding for finding in look.backends(machine) if finding.name == "cuda")
    assert not cuda.is_well
    assert "built for the CPU only" in cuda.value
    assert all(finding.is_well for finding in look.backends(WHOLE))


def test_a_results_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not look.surroundings(tmp_path / "file", ask_hub=False)[-2].is_well
    assert look.surroundings(tmp_path / "not" / "there", ask_hub=False)[-2].is_well


def test_variables_that_reach_the_cells_are_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert ("PYTORCH_ALLOC_CONF", "expandable_segments:True (in your shell)") in [
        (finding.name, finding.value) for finding in look.surroundings(tmp_path, ask_hub=False)
    ]


def test_the_hub_is_asked_only_on_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    assert look.surroundings(tmp_path, ask_hub=False)[-1].value.startswith("not asked")
    assert "http://127.0.0.1:9 cannot be reached" in look.surroundings(tmp_path, ask_hub=True)[-1].value


def test_the_command_fits_80_columns_imports_no_torch_and_ends_well(tmp_path: Path) -> None:
    code = "import sys, memexp.cli as cli; sys.exit(cli.main(['doctor']) or 3 * ('torch' in sys.modules))"
    environment = {"COLUMNS": "80", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert "quantization=" in done.stdout
    assert list(tmp_path.iterdir()) == []
