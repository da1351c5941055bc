"""`backend=simulate` under the whole of memexp: predicted rows, an OOM with its shortfall, and what the rules say."""

import json
import shutil
from pathlib import Path

import pytest
from sweeping import Swept, sweep, write_rows

import memexp
from memexp.plan import conf
from memexp.simulate.cards import CARDS

pytestmark = pytest.mark.usefixtures("warm_cells")
GIB = 2**30
ONCE = ("model=tiny", "steps=1", "unmeasured_steps=0")
LAYERS = 4
SHALLOW = ("model=qwen2_5_0_5b", f"model.config.num_hidden_layers={LAYERS}")


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
        *SHALLOW,
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
    # Of its 24 layers all but 4 are left out: of 151,936 tokens, width 896, two heads of 64 for keys and values and a
    # middle of 4,864; in fp32, and what the caching allocator rounds up.
    attention = 896 * (896 + 1) + 2 * 128 * (896 + 1) + 896 * 896
    layer = attention + 3 * 896 * 4864 + 2 * 896
    assert 151_936 * 896 + 24 * layer + 896 == 494_032_768  # as published
    weights = main_job.records[0]["memory"]["peak_categories"]["weights_bytes"]
    assert weights == pytest.approx((151_936 * 896 + LAYERS * layer + 896) * 4, rel=0.005)


def test_a_model_of_ones_own_needs_its_config_and_tokenizer_and_no_weights(
    short: tuple[str, ...], tmp_path: Path
) -> None:
    figures = conf.option("model", "tiny")
    shutil.copytree(Path(memexp.__file__).parent / "assets" / "tokenizer", tmp_path / "own")
    config = {"architectures": ["Qwen2ForCausalLM"], "model_type": figures["model_type"], **figures["config"]}
    (tmp_path / "own" / "config.json").write_text(json.dumps(config))
    (own,) = sweep(tmp_path / "a", *short, "model=own", f"model.path={tmp_path / 'own'}").records
    (shipped,) = sweep(tmp_path / "b", *short, "model=tiny").records
    assert own["status"] == "ok"
    assert own["memory"]["peak_allocated_bytes"] == shipped["memory"]["peak_allocated_bytes"]


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
    first, second = (sweep(tmp_path / name, *short, *ONCE).records[0] for name in ("one", "two"))
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
    # What there is are weights, though the first tensor that did not fit was short of less than 0.3 GiB.
    assert "short" not in result.out
    assert "of weights so far and more to come" in result.out.replace("\n", " ").replace("  ", " ")


def test_expandable_segments_change_what_is_reserved(tmp_path: Path, short: tuple[str, ...]) -> None:
    found = sweep(tmp_path, *short, "-m", "allocator=default,expandable", *SHALLOW, "steps=1").by("allocator")
    default, expandable = found["default"]["memory"], found["expandable"]["memory"]
    assert expandable["peak_reserved_bytes"] < default["peak_reserved_bytes"]
    # Tails are split off at 512 bytes instead of 1 MiB.
    assert expandable["peak_allocated_bytes"] < default["peak_allocated_bytes"]
    assert found["expandable"]["effective"]["fell_back"] == []


def test_a_card_of_every_generation_runs_the_default_job(tmp_path: Path, short: tuple[str, ...]) -> None:
    """Cards of one compute capability run the same kernels: they differ in numbers alone."""
    assert set(conf.groups()["gpu"]) == set(CARDS)
    cards = {card.capability: card.name for card in CARDS.values()}.values()
    result = sweep(tmp_path, *short, *ONCE, "-m", f"gpu={','.join(cards)}")
    assert {record["choices"]["gpu"]: record["status"] for record in result.records} == dict.fromkeys(cards, "ok")


def test_the_card_changes_the_time_and_the_workspaces_alone(tmp_path: Path, short: tuple[str, ...]) -> None:
    found = sweep(tmp_path, *short, "-m", "gpu=a100_80gb,l4_24gb", *ONCE, "attention=eager").by("gpu")
    fast, slow = found["a100_80gb"], found["l4_24gb"]
    assert fast["memory"]["peak_allocated_bytes"] == slow["memory"]["peak_allocated_bytes"]
    assert fast["speed"]["median_step_seconds"] <= slow["speed"]["median_step_seconds"]
