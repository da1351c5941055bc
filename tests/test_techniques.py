"""Every technique that a CPU can run, in real sweeps: confirmed by its effect, and harmless where it must be."""

from pathlib import Path
from typing import Any

import pytest
from sweeping import sweep, write_rows

pytestmark = pytest.mark.usefixtures("warm_cells")


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    rows = write_rows(tmp_path_factory.mktemp("rows") / "rows.jsonl")
    return (
        "data=jsonl",
        f"data.path={rows}",
        "max_length=16",
        "batch_size=2",
        "steps=2",
        "unmeasured_steps=1",
        "logger=none",
    )


def cells(results: Path, short: tuple[str, ...], axis: str, *more: str) -> dict[Any, dict[str, Any]]:
    found = sweep(results, "-m", *short, axis, *more).by(axis.partition("=")[0])
    assert {record["status"] for record in found.values()} == {"ok"}
    assert all(record["effective"]["fell_back"] == [] for record in found.values())
    return found


def test_checkpointing_keeps_the_loss_and_is_seen_on_the_model(tmp_path: Path, short: tuple[str, ...]) -> None:
    found = cells(tmp_path, short, "checkpointing=none,full,selective")
    assert [record["effective"]["checkpointing"] for record in found.values()] == ["none", "full", "selective"]
    assert len({tuple(record["loss"]["per_step"]) for record in found.values()}) == 1


def test_full_checkpointing_keeps_less_than_selective_and_that_less_than_none(
    tmp_path: Path, short: tuple[str, ...]
) -> None:
    # Long rows, so that activations and not the weights are what is left at the end of forward.
    long = (
        "data=lengths",
        "data.rows=8",
        "data.distribution=constant",
        "data.length=512",
        "max_length=512",
        *short[3:],
    )
    found = cells(tmp_path, long, "checkpointing=none,full,selective")
    none, full, selective = (record["memory"]["phases"]["forward"]["peak_allocated_bytes"] for record in found.values())
    assert full < selective < none


def test_an_optimizer_is_the_one_that_was_built(tmp_path: Path, short: tuple[str, ...]) -> None:
    found = cells(tmp_path, short, "optimizer=adamw_fused,adamw,adafactor")
    assert [(r["effective"]["optimizer"], r["effective"]["optimizer_class"]) for r in found.values()] == [
        ("adamw_torch_fused", "AdamW"),
        ("adamw_torch", "AdamW"),
        ("adafactor", "Adafactor"),
    ]


def test_adapters_are_all_that_lora_trains(tmp_path: Path, short: tuple[str, ...]) -> None:
    found = cells(tmp_path, short, "peft=none,lora,dora,rslora")
    whole, lora = found["none"]["effective"], found["lora"]["effective"]
    assert whole["trainable_parameters"] == whole["parameters"]
    # Rank 16 on the seven linear layers of two blocks: r * (inputs + outputs) each.
    block = sum(16 * (i + o) for i, o in ((64, 64), (64, 32), (64, 32), (64, 64), (64, 128), (64, 128), (128, 64)))
    assert lora["trainable_parameters"] == 2 * block
    assert lora["parameters"] == whole["parameters"] + 2 * block
    # DoRA learns a length for each of their outputs as well; rsLoRA scales the same adapters by alpha / sqrt(r).
    assert found["dora"]["effective"]["trainable_parameters"] == 2 * (block + 64 + 32 + 32 + 64 + 128 + 128 + 64)
    assert found["rslora"]["effective"]["trainable_parameters"] == 2 * block
    assert [record["effective"]["peft"] for record in found.values()] == ["none", "lora", "dora", "rslora"]


def test_a_scale_that_is_that_of_lora_is_no_rslora(tmp_path: Path, short: tuple[str, ...]) -> None:
    # Of rank 1 the root is 1 as well.
    (record,) = sweep(tmp_path, *short, "peft=rslora", "peft.r=1").records
    assert (record["effective"]["peft"], record["effective"]["fell_back"]) == ("lora", ["peft=rslora"])


def test_precision_is_the_dtype_of_weights_and_arithmetic(tmp_path: Path, short: tuple[str, ...]) -> None:
    found = cells(tmp_path, short, "precision=fp32,bf16,bf16_weights")
    dtypes = [(r["effective"]["weights_dtype"], r["effective"]["autocast_dtype"]) for r in found.values()]
    assert dtypes == [("float32", None), ("float32", "bfloat16"), ("bfloat16", "bfloat16")]
    assert found["bf16_weights"]["effective"]["optimizer_state_dtypes"] == ["bfloat16"]


def test_padding_free_has_no_padding_and_the_same_loss(tmp_path: Path, short: tuple[str, ...]) -> None:
    found = cells(tmp_path, short, "padding_free=false,true", "max_length=null")
    padded, free = found["false"], found["true"]
    assert free["effective"]["padding_free"] is True
    assert free["data"]["padding_fraction"] == 0 < padded["data"]["padding_fraction"]
    assert free["data"]["real_tokens"] == padded["data"]["real_tokens"]
    assert free["loss"]["per_step"] == pytest.approx(padded["loss"]["per_step"], abs=1e-4)


def test_padding_to_a_multiple_is_padding_and_no_work(tmp_path: Path, short: tuple[str, ...]) -> None:
    # TRL's own num_tokens would count the pads of a padding-free batch.
    found = cells(tmp_path, short, "pad_to_multiple_of=null,64", "padding_free=true", "max_length=null")
    assert len({record["data"]["real_tokens"] for record in found.values()}) == 1
    assert found[64]["data"]["padding_fraction"] > 0.5
    assert found[None]["data"]["padding_fraction"] == 0


def test_gradient_accumulation_is_one_step_of_several_batches(tmp_path: Path, short: tuple[str, ...]) -> None:
    found = cells(tmp_path, short, "gradient_accumulation=1,2", "budget.epochs=1")
    assert [record["data"]["steps"] for record in found.values()] == [4, 2]
    assert len({record["data"]["real_tokens"] for record in found.values()}) == 1


def test_attention_is_the_models_own_answer(tmp_path: Path, short: tuple[str, ...]) -> None:
    found = cells(tmp_path, short, "attention=sdpa,eager")
    assert [record["effective"]["attention"] for record in found.values()] == ["sdpa", "eager"]
    assert found["eager"]["loss"]["per_step"] == pytest.approx(found["sdpa"]["loss"]["per_step"], abs=1e-4)


def test_packed_documents_do_not_see_each_other_and_wrapped_ones_do(tmp_path: Path) -> None:
    # All documents in one batch: only what a token may attend to differs between the three.
    rows = write_rows(tmp_path / "rows.jsonl", (7, 9, 5, 11))
    found = cells(
        tmp_path / "results",
        (
            "data=jsonl",
            f"data.path={rows}",
            "logger=none",
            "max_length=32",
            "batch_size=4",
            "steps=1",
            "unmeasured_steps=0",
        ),
        "packing=none,bfd,wrapped",
    )
    none, bfd, wrapped = (record["loss"]["first"] for record in found.values())
    assert bfd == pytest.approx(none, abs=1e-5)
    assert abs(wrapped - none) > 1e-4


def test_the_worst_case_is_a_full_batch_of_the_longest_rows(tmp_path: Path) -> None:
    # Short rows first: a run of one step never meets the long ones, the worst case does.
    rows = write_rows(tmp_path / "rows.jsonl", (4, 4, 4, 4, 256, 256))
    args = ("data=jsonl", f"data.path={rows}", "logger=none", "batch_size=2", "steps=1", "unmeasured_steps=1")
    (short_first,) = sweep(tmp_path / "a", *args).records
    rows_long = write_rows(tmp_path / "long.jsonl", (256, 256))
    (long_only,) = sweep(tmp_path / "b", *args, f"data.path={rows_long}").records
    worst = short_first["memory"]["worst_case_peak_allocated_bytes"]
    assert worst > short_first["memory"]["peak_allocated_bytes"]
    assert worst == pytest.approx(long_only["memory"]["peak_allocated_bytes"], rel=0.01)
    assert short_first["data"]["real_tokens"] == 16
    assert len(short_first["loss"]["per_step"]) == 2


def test_rates_are_sums_over_sums(tmp_path: Path, short: tuple[str, ...]) -> None:
    (record,) = sweep(tmp_path, *short).records
    speed = record["speed"]
    # Steps 2 and 3 are measured: rows of 13+3 and 7+11 tokens, padded to 13 and 11.
    seconds = sum(speed["step_seconds"])
    assert speed["real_tokens_per_second"] == pytest.approx((16 + 18) / seconds)
    assert speed["slot_tokens_per_second"] == pytest.approx((26 + 22) / seconds)
    assert speed["loss_tokens_per_second"] == pytest.approx((14 + 16) / seconds)
    assert speed["samples_per_second"] == pytest.approx(4 / seconds)
    assert len(speed["step_seconds"]) == 2
    assert record["data"]["hours_per_epoch"] == pytest.approx(56 / speed["real_tokens_per_second"] / 3600)
