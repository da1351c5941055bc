"""Several cells at once: the same numbers as one after another, and GPUs that no two of them share."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from made_records import two_by_two
from processes import is_running, times_begin_when, wait_until
from rich.console import Console
from sweeping import sweep, write_rows

from memexp.plan import load
from memexp.plan.machine import Machine, visible
from memexp.plan.plan import Plan
from memexp.results.store import write_plan
from memexp.results.sweep import SweepFolder
from memexp.results.table import make_table
from memexp.run import cells, gpus
from memexp.run.cells import cells_at_once, run_cells
from memexp.run.environment import worker_environment
from memexp.run.interrupt import Interrupted, Running
from memexp.run.progress import Progress, write_progress
from memexp.run.watch import Watch
from memexp.tracking.exporter import Exporter
from tools.quick_cells import quick_server

CARDS = (("GPU-aaaa1111", "NVIDIA A"), ("GPU-bbbb2222", "NVIDIA B"))
EIGHT = Machine(gpus=("NVIDIA",) * 8, gpu_uuids=tuple(f"GPU-{index}" for index in range(8)))


@pytest.mark.usefixtures("warm_cells")
def test_two_at_once_give_the_numbers_of_one_after_another(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl")
    grid = ("-m", "backend=cpu,simulate", "packing=none,bfd", "data=jsonl", f"data.path={rows}", "max_length=16",
            "batch_size=2", "steps=2", "unmeasured_steps=1", "logger=none", "model=tiny")  # fmt: skip
    alone, at_once = (sweep(tmp_path / f"jobs_{jobs}", *grid, f"jobs={jobs}") for jobs in (1, 2))
    for before, after in zip(alone.records, at_once.records, strict=True):
        assert before["status"] == after["status"] == "ok"
        assert before["loss"] == after["loss"]
        assert before["memory"]["phases"] == after["memory"]["phases"]
        assert before["data"]["real_tokens"] == after["data"]["real_tokens"]
        assert before["environment"]["process"] == after["environment"]["process"] == "warm"


@pytest.mark.parametrize("backend", ["cpu", "simulate"])
def test_a_cell_has_the_same_torch_threads_however_many_run(backend: str) -> None:
    for jobs in (1, 8):
        plan = load(f"backend={backend}", f"jobs={jobs}", "threads=3")
        assert worker_environment(plan, {"OMP_NUM_THREADS": "64"})["OMP_NUM_THREADS"] == "3"


def test_cells_at_once_is_a_matter_of_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells, "_available_bytes", lambda: 2**50)
    cell = load("backend=cpu")
    cuda = replace(cell, work=replace(cell.work, backend="cuda"))
    two_gpus = replace(cuda, work=replace(cuda.work, processes=2))
    assert cells_at_once("auto", [cuda] * 20, EIGHT) == 8
    assert cells_at_once("auto", [cuda, *[two_gpus] * 20], EIGHT) == 4
    assert cells_at_once("auto", [cuda] * 3, EIGHT) == 3
    assert cells_at_once("auto", [cell] * 200, EIGHT) == len(os.sched_getaffinity(0))
    assert cells_at_once(5, [cell] * 20, EIGHT) == 5
    assert cells_at_once(5, [cell] * 2, EIGHT) == 2
    assert cells_at_once(5, [], EIGHT) == 1


@pytest.mark.parametrize(("gib", "at_once"), [(1, 1), (8, 2), (15, 4), (500, 64), (None, 64)])
def test_a_laptops_memory_bounds_what_auto_starts(
    gib: int | None, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "_available_bytes", lambda: None if gib is None else gib * 2**30)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    assert cells_at_once("auto", [load("backend=simulate")] * 100, Machine()) == at_once
    assert cells_at_once(7, [load("backend=simulate")] * 100, Machine()) == 7


def test_two_at_once_overlap(tmp_path: Path) -> None:
    plans = [load("backend=cpu", f"seed={seed}", "timeout_seconds=0.1") for seed in (0, 1)]
    paths = [kept(tmp_path / "sweep", plan) for plan in plans]

    def both_have_begun() -> bool:
        return all(path.with_name("child").exists() for path in paths)

    # Neither ends before, so that one after the other they would wait for ever.
    with quick_server({-1: "hangs"}), times_begin_when(both_have_begun):
        run_cells(paths, 2)
    statuses = [json.loads(path.with_name("record.json").read_text())["status"] for path in paths]
    assert statuses == ["timeout"] * 2


def kept(folder: Path, plan: Plan) -> Path:
    paths = SweepFolder(folder)
    paths.cell(plan.id).mkdir(parents=True)
    write_plan(paths, plan)
    return paths.plan(plan.id)


def children_in(results: Path) -> list[int]:
    """What the cells that hang have started; a file that is not written yet is none."""
    return [int(said) for path in results.glob("mine/cells/*/child") if (said := path.read_text())]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_all_that_run_and_none_leaves_a_record(tmp_path: Path, sent: signal.Signals) -> None:
    command = [sys.executable, "-m", "memexp", "-m", "seed=0,1,2,3", "backend=cpu", "logger=none", "jobs=2",
               f"results_dir={tmp_path}", "sweep=mine"]  # fmt: skip
    with quick_server({-1: "hangs"}):
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            preexec_fn=lambda: signal.signal(sent, signal.SIG_DFL),  # what is ignored is inherited
        )
        wait_until(lambda: process.poll() is not None or len(children_in(tmp_path)) == 2)
        process.send_signal(sent)
        out, _ = process.communicate(timeout=300)
        pids = children_in(tmp_path)
        assert len(pids) == 2
        wait_until(lambda: not any(map(is_running, pids)))
    assert process.returncode == 130
    assert "jobs=2" in out.split("Interrupted. To run the rest:")[1]
    assert not list(tmp_path.glob("mine/cells/*/record.json"))


def test_an_interrupt_while_the_runs_of_wandb_are_written_says_that_every_cell_has_its_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(exporter: Exporter) -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Exporter, "close", interrupted)
    with quick_server():
        stopped = sweep(tmp_path, "-m", "seed=0,1", "sweep=mine")
    assert stopped.code == 130
    said, command = stopped.out.splitlines()[-2:]
    assert said.startswith("Interrupted. Every cell has its row.")
    assert command.startswith("python -m memexp ") and command.endswith(" sweep=mine")
    assert len(stopped.records) == 2


def test_what_is_visible_follows_cudas_own_rules() -> None:
    # CUDA C programming guide, environment variables: what stands after a wrong entry is not visible either.
    assert visible(CARDS, None) == CARDS
    assert visible(CARDS, "1,0") == CARDS[::-1]
    assert visible(CARDS, "GPU-bbbb") == CARDS[1:]
    assert visible(CARDS, "1,7,0") == CARDS[1:]
    assert visible(CARDS, "") == visible(CARDS, "-1") == ()
    assert visible(CARDS, "MIG-1/2/3") == (("MIG-1/2/3", "NVIDIA A"),)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """Two GPUs, and a lock folder of their own."""
    two = Machine(gpus=("NVIDIA A", "NVIDIA B"), torch_cuda="13.0", gpu_uuids=tuple(uuid for uuid, _ in CARDS))
    monkeypatch.setattr(gpus, "this_machine", lambda: two)
    (tmp_path / "locks").mkdir()
    monkeypatch.setattr(gpus, "locks_folder", lambda: tmp_path / "locks")
    return two


def on_cuda(processes: int = 1, seed: int = 0) -> Plan:
    plan = load("backend=cpu", f"seed={seed}", "isolation=fresh")
    return replace(plan, work=replace(plan.work, backend="cuda", processes=processes))


def test_cells_at_once_never_share_a_gpu_and_two_sweeps_do_not_either(machine: Machine, tmp_path: Path) -> None:
    held: set[str] = set()
    seen: list[str] = []
    wrong: list[str] = []
    lock = threading.Lock()

    plan = on_cuda()

    def cell() -> None:
        with gpus.lent_gpus(plan, tmp_path, Running()) as lent:
            with lock:
                wrong.extend(held & {*lent})
                held.update(lent)
                seen.extend(lent)
            time.sleep(0.02)
            with lock:
                held.difference_update(lent)

    # The locks are the kernel's and each cell opens its own files: threads here stand for processes just as well.
    threads = [threading.Thread(target=cell) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(seen) == 8
    assert {*seen} == {*machine.gpu_uuids}


def test_a_gpu_lent_to_another_process_is_not_lent_again_until_that_ends(machine: Machine, tmp_path: Path) -> None:
    code = (
        "import fcntl, os, sys, time; fd = os.open(sys.argv[1], os.O_CREAT); fcntl.flock(fd, fcntl.LOCK_EX);"
        "print(flush=True); time.sleep(600)"
    )
    held = tmp_path / "locks" / f"{machine.gpu_uuids[0]}.lock"
    other = subprocess.Popen([sys.executable, "-c", code, str(held)], stdout=subprocess.PIPE)
    assert other.stdout is not None
    other.stdout.readline()
    with gpus.lent_gpus(on_cuda(), tmp_path, Running()) as lent:
        assert lent == machine.gpu_uuids[1:]
    other.kill()
    other.communicate()
    with gpus.lent_gpus(on_cuda(processes=2), tmp_path, Running()) as lent:
        assert lent == machine.gpu_uuids


def test_a_cell_that_waits_for_a_gpu_says_so_and_can_be_interrupted(machine: Machine, tmp_path: Path) -> None:
    running, plan = Running(), on_cuda()
    (tmp_path / "cell").mkdir()
    ended = []

    def cell() -> None:
        with pytest.raises(Interrupted), gpus.lent_gpus(plan, tmp_path / "cell", running):
            pass
        ended.append(True)

    with gpus.lent_gpus(on_cuda(processes=2), tmp_path, Running()):
        thread = threading.Thread(target=cell)
        thread.start()
        wait_until((tmp_path / "cell" / "progress.json").exists)
        assert "waiting for a GPU" in (tmp_path / "cell" / "progress.json").read_text()
        running.end_all()
        thread.join()
    assert ended == [True]


def test_a_worker_sees_the_gpus_that_are_lent_to_it_and_no_other(machine: Machine) -> None:
    plan = on_cuda(processes=2)
    environment = worker_environment(plan, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, machine.gpu_uuids)
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-aaaa1111,GPU-bbbb2222"


def test_cells_on_two_gpus_run_at_once_each_with_its_own(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Workers that report what they see in the place of training, since there is no GPU.
    # The first waits for a second: run one after the other, none would end.
    script = tmp_path / "python"
    script.write_text(
        '#!/bin/sh\ncell=$(dirname "$3")\necho "$CUDA_VISIBLE_DEVICES" > "$cell/saw"\n'
        'until [ "$(ls "$cell"/../*/saw | wc -l)" -ge 2 ]; do sleep 0.05; done\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    paths = [kept(tmp_path / "sweep", on_cuda(seed=seed)) for seed in range(4)]
    run_cells(paths, at_once=2)
    saw = [path.with_name("saw").read_text().strip() for path in paths]
    assert {*saw} == {*machine.gpu_uuids}
    assert all("," not in gpu for gpu in saw)
    records = [json.loads(path.with_name("record.json").read_text()) for path in paths]
    assert {record["status"] for record in records} == {"failed"}  # they left no record of a training


def test_several_running_cells_stand_below_the_bar_one_a_line(tmp_path: Path) -> None:
    plans = [replace(load("backend=cpu", f"seed={seed}"), name=f"seed={seed}") for seed in range(11)]
    paths = SweepFolder(tmp_path)
    for plan in plans:
        paths.cell(plan.id).mkdir(parents=True)
    out = io.StringIO()
    with Watch(paths, plans, Console(file=out, force_terminal=True, width=70, height=40), lambda *_: None):
        for plan in plans[:10]:
            write_progress(paths.progress(plan.id), Progress("measured", 3, 7))
        wait_until(lambda: "10 running" in out.getvalue())
    said = out.getvalue()
    assert "    seed=7: measured step 3/7" in said
    assert "    and 2 more" in said


def test_a_gpu_shared_with_another_program_is_told_below_the_table() -> None:
    sweep, records = two_by_two()
    foreign = {"foreign_processes": [{"pid": 4321, "used_bytes": 2**30}]}
    shared = [
        replace(records[0], environment=foreign),
        *(replace(r, environment={"foreign_processes": []}) for r in records[1:]),
    ]
    (said,) = (line for line in make_table(sweep, shared).remarks if "other processes" in line)
    assert "packing=none offload=false" in said
    assert not any("other processes" in line for line in make_table(sweep, records).remarks)
