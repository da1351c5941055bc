"""`backend=simulate` under the whole of memexp: predicted rows, an OOM with its shortfall, and what the rules say."""

from pathlib import Path

import pytest
from sweeping import Swept, sweep, write_rows

from memexp.plan import conf
from memexp.simulate.cards import CARDS

pytestmark = pytest.mark.usefixtures("warm_cells")
GIB = 2**30


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    rows = write_rows(tmp_path_factory.mktemp("rows") / "rows.jsonl", (64, 128, 96, 32, 64, 80, 128, 100))
    return ("backend=simulate", "data=jsonl", f"data.path={rows}", "max_length=128", "batch_size=4", "steps=2",
            "unmeasured_steps=1", "logger=none")  # fmt: skip


@pytest.fixture(scope="module")
def main_job(tmp_path_factory: pytest.TempPathFactory, short: tuple[str, ...]) -> Swept:
    results = tmp_path_factory.mktemp("simulated")
    return sweep(
        results,
        *short,
        "-m",
        "packing=bfd,wrapped",
        "offload=true,false",
        "model=qwen2_5_0_5b",
        "max_length=512",
        "steps=1",
    )


def test_the_main_job_is_four_ok_rows_marked_predicted(main_job: Swept) -> None:
    assert [row["status"] for row in main_job.rows] == ["ok"] * 4
    for record in main_job.records:
        assert "memory.peak_allocated_bytes" in record["predicted"]
        assert "speed.real_tokens_per_second" in record["predicted"]
    assert "predicted by the simulated GPU" in main_job.table


def test_offloading_takes_less_memory_and_is_not_faster(main_job: Swept) -> None:
    for packing in ("bfd", "wrapped"):
        cells = {r["choices"]["offload"]: r for r in main_job.records if r["choices"]["packing"] == packing}
        on, off = cells["true"], cells["false"]
        assert on["effective"]["offload"] is True
        assert (
            on["memory"]["phases"]["forward"]["peak_allocated_bytes"]
            < off["memory"]["phases"]["forward"]["peak_allocated_bytes"]
        )
        assert on["speed"]["median_step_seconds"] >= off["speed"]["median_step_seconds"]


def test_weights_are_those_of_the_published_model(main_job: Swept) -> None:
    # 494,032,768 parameters in fp32, and what the caching allocator rounds up.
    weights = main_job.records[0]["memory"]["peak_categories"]["weights_bytes"]
    assert weights == pytest.approx(494_032_768 * 4, rel=0.005)


def test_categories_add_up_to_the_peak(main_job: Swept) -> None:
    for record in main_job.records:
        assert sum(record["memory"]["peak_categories"].values()) == record["memory"]["peak_allocated_bytes"]


def test_a_simulated_loss_is_unknown_and_tokens_are_not(main_job: Swept) -> None:
    for record in main_job.records:
        assert record["loss"]["per_step"] == [None, None]
        assert record["loss"]["last"] is None
        assert record["data"]["real_tokens"] > 0


def test_below_full_coverage_a_number_is_said_to_be_approximate(main_job: Swept) -> None:
    # On a Hopper card torch prefers cuDNN's attention, whose workspace only cuDNN knows.
    record = main_job.records[0]
    assert record["simulation"]["coverage"] < 1
    assert any("cudnn_attention" in op for op in record["simulation"]["unknown_ops"])
    assert any(note.startswith("approximate") for note in record["notes"])


def test_the_same_job_is_predicted_to_the_same_byte(tmp_path: Path, short: tuple[str, ...]) -> None:
    first, second = (sweep(tmp_path / name, *short, "model=tiny").records[0] for name in ("one", "two"))
    assert first["memory"]["peak_allocated_bytes"] == second["memory"]["peak_allocated_bytes"]
    assert first["memory"]["peak_reserved_bytes"] == second["memory"]["peak_reserved_bytes"]
    assert first["speed"]["step_seconds"] == second["speed"]["step_seconds"]


def test_too_small_a_card_is_an_oom_with_its_shortfall_and_exit_code_0(tmp_path: Path, short: tuple[str, ...]) -> None:
    result = sweep(tmp_path, *short, "gpu=rtx4090_24gb", "model=mistral_7b", "peft=none", "optimizer=adamw")
    (record,) = result.records
    assert result.code == 0
    assert record["status"] == "oom"
    oom = record["memory"]["oom"]
    assert oom["short_bytes"] == oom["requested_bytes"] - oom["free_bytes"] > 0
    assert oom["phase"] == "load"  # 7.2 billion parameters in fp32 are 27 GiB


def test_expandable_segments_change_what_is_reserved(tmp_path: Path, short: tuple[str, ...]) -> None:
    found = sweep(tmp_path, *short, "-m", "allocator=default,expandable", "model=qwen2_5_0_5b", "steps=1").by(
        "allocator"
    )
    default, expandable = found["default"]["memory"], found["expandable"]["memory"]
    assert expandable["peak_reserved_bytes"] < default["peak_reserved_bytes"]
    # Tails are split off at 512 bytes instead of 1 MiB.
    assert expandable["peak_allocated_bytes"] < default["peak_allocated_bytes"]
    assert found["expandable"]["effective"]["fell_back"] == []


def test_every_card_runs_the_default_job(tmp_path: Path, short: tuple[str, ...]) -> None:
    cards = conf.groups()["gpu"]
    assert set(cards) == set(CARDS)
    result = sweep(tmp_path, *short, "-m", f"gpu={','.join(cards)}", "model=tiny", "steps=1")
    assert {record["choices"]["gpu"]: record["status"] for record in result.records} == dict.fromkeys(cards, "ok")


def test_the_card_changes_the_time_and_the_workspaces_alone(tmp_path: Path, short: tuple[str, ...]) -> None:
    found = sweep(tmp_path, *short, "-m", "gpu=a100_80gb,l4_24gb", "model=tiny", "attention=eager").by("gpu")
    fast, slow = found["a100_80gb"], found["l4_24gb"]
    assert fast["memory"]["peak_allocated_bytes"] == slow["memory"]["peak_allocated_bytes"]
    assert fast["speed"]["median_step_seconds"] <= slow["speed"]["median_step_seconds"]
