"""The main job on a real GPU: measured by torch's counters and NVML. Skipped by name where there is none."""

from pathlib import Path

import pytest
from sweeping import Swept, sweep

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    results = tmp_path_factory.mktemp("cuda")
    return sweep(results, "backend=cuda", "-m", "packing=bfd,wrapped", "offload=true,false", "steps=2", "logger=none")


def test_the_main_job_is_four_ok_rows_that_nobody_predicted(measured: Swept) -> None:
    assert measured.code == 0
    assert [record["status"] for record in measured.records] == ["ok"] * 4
    assert all(record["predicted"] == [] for record in measured.records)
    assert all(record["environment"]["process"] == "fresh" for record in measured.records)


def test_reserved_holds_allocated_and_the_device_holds_reserved(measured: Swept) -> None:
    for record in measured.records:
        memory = record["memory"]
        assert memory["peak_allocated_bytes"] <= memory["peak_reserved_bytes"] <= memory["device_used_peak_bytes"]
        assert memory["device_used_peak_bytes"] <= memory["capacity_bytes"]


def test_offloading_is_confirmed_by_its_hooks_and_takes_less_memory(measured: Swept) -> None:
    for packing in ("bfd", "wrapped"):
        cells = {r["choices"]["offload"]: r for r in measured.records if r["choices"]["packing"] == packing}
        assert cells["true"]["effective"]["offload"] is True
        peaks = [cells[offload]["memory"]["peak_allocated_bytes"] for offload in ("true", "false")]
        assert peaks[0] < peaks[1]


def test_the_phases_of_a_step_fit_into_it(measured: Swept) -> None:
    for record in measured.records:
        phases = sum(phase["median_seconds"] for phase in record["speed"]["phases"].values())
        assert 0 < phases <= 1.05 * record["speed"]["median_step_seconds"]


def test_expandable_segments_are_seen_in_the_allocator(tmp_path: Path) -> None:
    found = sweep(tmp_path, "backend=cuda", "-m", "allocator=default,expandable", "steps=1", "logger=none").by(
        "allocator"
    )
    assert [record["effective"]["fell_back"] for record in found.values()] == [[], []]
    assert found["expandable"]["memory"]["peak_reserved_bytes"] <= found["default"]["memory"]["peak_reserved_bytes"]


def test_the_simulated_gpu_predicts_what_is_measured(measured: Swept, tmp_path: Path) -> None:
    predicted = sweep(
        tmp_path, "backend=simulate", "-m", "packing=bfd,wrapped", "offload=true,false", "steps=2", "logger=none"
    )
    for ours, truth in zip(predicted.records, measured.records, strict=True):
        assert ours["memory"]["peak_allocated_bytes"] == pytest.approx(
            truth["memory"]["peak_allocated_bytes"], rel=0.01
        )
