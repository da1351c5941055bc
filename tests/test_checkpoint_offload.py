"""The offloading checkpoint of transformers: predicted on the simulated GPU, refused where there is no card."""

from pathlib import Path

import pytest
from sweeping import sweep

from memexp.plan import load


@pytest.mark.usefixtures("warm_cells")
def test_the_input_of_each_layer_leaves_the_card(tmp_path: Path) -> None:
    """transformers: it frees layers x tokens x hidden, here 3 x 4 rows of 512 x 512, in bf16."""
    shape = ("model=tiny", "model.config.num_hidden_layers=3", "model.config.hidden_size=512")
    job = (*shape, "packing=wrapped", "max_length=512", "precision=bf16_weights", "steps=1", "unmeasured_steps=0")
    swept = sweep(tmp_path, "-m", "backend=simulate", *job, "checkpointing=full,offload", "logger=none")
    found = swept.by("checkpointing")
    peaks = [found[name]["memory"]["phases"]["forward"]["peak_allocated_bytes"] for name in ("full", "offload")]
    assert peaks[0] - peaks[1] == pytest.approx(3 * 4 * 512 * 512 * 2, rel=0.01)
    for name, record in found.items():
        assert record["effective"]["checkpointing"] == name
        assert record["effective"]["fell_back"] == []


def test_without_a_card_there_is_nothing_to_offload_from() -> None:
    refusal = load("backend=cpu", "checkpointing=offload").refusal
    assert refusal is not None and refusal.kind == "needs_hardware"
