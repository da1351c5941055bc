"""Which cell is the baseline, what the differences are, and which cells do not compare."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from made_records import GIB, OFFLOAD, PACKING, made, not_ok, swept, two_by_two

from memexp.results.compare import METRICS, Compared, compare
from memexp.results.grid import Grid
from memexp.results.record import Data, Record
from memexp.results.remarks import remarks
from memexp.results.sweep import Axis, Sweep


def compared(sweep: Sweep, records: Sequence[Record]) -> dict[str, Compared]:
    return {cell.record.id: cell for cell in compare(Grid(sweep, records)).cells}


def peaks(sweep: Sweep, records: Sequence[Record]) -> dict[str, float | None]:
    return {key: cell.vs_baseline["peak_allocated_bytes"] for key, cell in compared(sweep, records).items()}


def said(sweep: Sweep, records: Sequence[Record], missing: Sequence[str] = ()) -> list[str]:
    grid = Grid(sweep, records)
    return list(remarks(grid, compare(grid), missing))


def one_axis(axis: Axis, peak_of: dict[str, float], **choices: str) -> list[Record]:
    return [made(name[0], peak * GIB, choices={axis.name: name, **choices}) for name, peak in peak_of.items()]


def test_differences_are_percent_of_the_cell_with_every_axis_at_its_default() -> None:
    cells = compared(*two_by_two())
    assert [key for key, cell in cells.items() if cell.is_baseline] == ["a"]
    offload = cells["b"].vs_baseline
    assert offload["peak_allocated_bytes"] == -25.0  # 6 of 8 GiB
    assert offload["real_tokens_per_second"] == pytest.approx(-10.0)  # 900 of 1,000
    assert offload["median_step_seconds"] == pytest.approx(25.0)  # 0.25 s of 0.2 s
    assert cells["c"].vs_baseline["peak_allocated_bytes"] == 25.0
    assert cells["a"].vs_baseline["peak_allocated_bytes"] == 0.0


def test_an_unknown_number_has_no_difference() -> None:
    assert compared(*two_by_two())["b"].vs_baseline["peak_reserved_bytes"] is None


def test_nothing_against_nothing_is_no_change_and_something_against_nothing_is_unknown() -> None:
    records = [
        made("a", 0, choices={"packing": "none"}),
        made("b", 0, choices={"packing": "bfd"}),
        made("c", 5, choices={"packing": "wrapped"}),
    ]
    assert peaks(swept(PACKING, cells="abc"), records) == {"a": 0.0, "b": 0.0, "c": None}


def test_a_cell_that_is_not_ok_has_no_differences() -> None:
    assert compared(*two_by_two())["d"].vs_baseline == dict.fromkeys(METRICS)


def test_without_its_default_in_the_grid_an_axis_starts_at_the_first_option_listed() -> None:
    axis = Axis("packing", ("wrapped", "bfd"), "none")
    assert peaks(swept(axis), one_axis(axis, {"bfd": 3, "wrapped": 4})) == {"b": -25.0, "w": 0.0}


def test_the_default_is_found_wherever_it_is_listed() -> None:
    axis = Axis("packing", ("bfd", "none"), "none")
    assert peaks(swept(axis), one_axis(axis, {"bfd": 3, "none": 4})) == {"b": -25.0, "n": 0.0}


def test_a_default_of_null_is_an_option_like_any_other() -> None:
    axis = Axis("pad_to_multiple_of", (64, None), None)
    records = [made("a", 3, choices={axis.name: 64}), made("b", 4, choices={axis.name: None})]
    assert peaks(swept(axis, cells="ab"), records) == {"a": -25.0, "b": 0.0}


@pytest.mark.parametrize("axis_name", ["model", "data", "trainer", "gpu"], ids="{}_axis".format)
def test_every_model_data_trainer_and_gpu_has_its_own_baseline(axis_name: str) -> None:
    big = Axis(axis_name, ("small", "big"), "small")
    records = [
        made("a", 4, choices={axis_name: "small", "packing": "none"}),
        made("b", 3, choices={axis_name: "small", "packing": "bfd"}),
        made("c", 40, choices={axis_name: "big", "packing": "none"}),
        made("d", 50, choices={axis_name: "big", "packing": "bfd"}),
    ]
    assert peaks(swept(big, PACKING, cells="abcd"), records) == {"a": 0.0, "b": -25.0, "c": 0.0, "d": 25.0}


def test_each_combination_of_model_and_trainer_has_its_own_baseline() -> None:
    axes = Axis("model", ("m", "n"), "m"), Axis("trainer", ("sft", "dpo"), "sft"), PACKING
    choices = [(m, t, p) for m in "mn" for t in ("sft", "dpo") for p in ("none", "bfd")]
    records = [
        made(str(n), 100 * (n + 1), choices=dict(zip(("model", "trainer", "packing"), options, strict=True)))
        for n, options in enumerate(choices)
    ]
    assert peaks(swept(*axes), records) == pytest.approx(
        {"0": 0, "1": 100, "2": 0, "3": 100 / 3, "4": 0, "5": 20, "6": 0, "7": 100 / 7}
    )


def test_an_explicit_baseline_overrides_the_axes_that_it_names() -> None:
    sweep, records = two_by_two()
    found = peaks(replace(sweep, baseline={"packing": "bfd"}), records)
    assert found == {"a": -20.0, "b": -40.0, "c": 0.0, "d": None}


@pytest.mark.parametrize("typed", [True, "true"])
def test_an_explicit_baseline_may_be_typed_as_a_truth_value(typed: object) -> None:
    sweep, records = two_by_two()
    found = peaks(replace(sweep, baseline={"offload": typed}), records[:2])
    assert found == {"a": pytest.approx(100 / 3), "b": 0.0}


def test_an_explicit_baseline_can_name_one_model_for_all() -> None:
    model = Axis("model", ("small", "big"), "small")
    records = one_axis(model, {"small": 4, "big": 5})
    assert peaks(swept(model), records) == {"s": 0.0, "b": 0.0}
    assert peaks(swept(model, baseline={"model": "small"}), records) == {"s": 0.0, "b": 25.0}


SEEDS = Axis("seed", (0, 1, 2), 0)


def repeats(*peak: float, packing: str = "none") -> list[Record]:
    return [made(f"{packing}{seed}", p, choices={"seed": seed, "packing": packing}) for seed, p in enumerate(peak)]


def test_repeats_share_the_median_of_their_baselines() -> None:
    found = peaks(swept(SEEDS, PACKING), [*repeats(90, 100, 140), *repeats(80, 120, packing="bfd")])
    assert found == pytest.approx({"none0": -10, "none1": 0, "none2": 40, "bfd0": -20, "bfd1": 20})


def test_a_repeat_that_failed_is_not_in_the_median() -> None:
    failed = made("none2", 5000, status="failed", choices={"seed": 2, "packing": "none"})
    found = peaks(swept(SEEDS, PACKING), [*repeats(90, 110), failed, *repeats(50, packing="bfd")])
    assert found["bfd0"] == -50.0


def test_an_explicit_seed_is_the_only_baseline() -> None:
    found = peaks(swept(SEEDS, PACKING, baseline={"seed": 1}), [*repeats(90, 100), *repeats(80, packing="bfd")])
    assert found == pytest.approx({"none0": -10, "none1": 0, "bfd0": -20})


@pytest.mark.parametrize("status", ["oom", "refused", "failed", "timeout", "killed"])
def test_a_baseline_that_is_not_ok_leaves_no_differences_and_a_line_that_names_it(status: str) -> None:
    sweep, records = two_by_two()
    records[0] = not_ok("a", status, "it broke", choices=records[0].choices)
    assert set(peaks(sweep, records).values()) == {None}
    line = said(sweep, records)[0]
    assert line.startswith("No differences: the baseline packing=none offload=false is not ok:")
    assert "it broke" in line


def test_a_baseline_that_has_not_run_is_named_and_nothing_is_compared_with_another_cell() -> None:
    sweep, records = two_by_two()
    assert set(peaks(sweep, records[1:]).values()) == {None}
    line = said(sweep, records[1:], missing=["a"])[0]
    assert line == "No differences: the baseline packing=none offload=false has not run yet"


def test_a_baseline_outside_the_grid_is_said_to_be_no_cell_of_the_sweep() -> None:
    sweep, records = two_by_two()
    line = said(replace(sweep, baseline={"packing": "wrapped"}), records, missing=["z"])[0]
    assert line == "No differences: the baseline packing=wrapped offload=false is no cell of this sweep"


def test_only_the_model_whose_baseline_broke_has_no_differences() -> None:
    model = Axis("model", ("small", "big"), "small")
    records = [
        made("a", 4, choices={"model": "small", "packing": "none"}),
        made("b", 3, choices={"model": "small", "packing": "bfd"}),
        not_ok("c", "oom", choices={"model": "big", "packing": "none"}),
        made("d", 50, choices={"model": "big", "packing": "bfd"}),
    ]
    sweep = swept(model, PACKING, cells="abcd")
    assert peaks(sweep, records) == {"a": 0.0, "b": -25.0, "c": None, "d": None}
    assert said(sweep, records)[0] == "No differences for model=big: the baseline packing=none is not ok: OOM"


def test_a_single_cell_has_nothing_said_about_its_baseline() -> None:
    assert said(swept(cells="a"), [not_ok("a", "oom")]) == []


def worked(plan_id: str, packing: str, tokens: int | None, epochs: float | None = None, **fields: Any) -> Record:
    data = Data(real_tokens=tokens, epochs=epochs, kept_fraction=1.0)
    return made(plan_id, choices={"packing": packing}, data=data, **fields)


def flagged(*records: Record) -> list[str]:
    cells = compared(swept(Axis("packing", ("none", "bfd", "wrapped"), "none")), records)
    return [key for key, cell in cells.items() if cell.flags == ("different work",)]


def test_over_one_percent_more_or_fewer_tokens_is_different_work() -> None:
    assert flagged(worked("a", "none", 1000), worked("b", "bfd", 1010), worked("c", "wrapped", 990)) == []
    assert flagged(worked("a", "none", 1000), worked("b", "bfd", 1011), worked("c", "wrapped", 989)) == ["b", "c"]


def test_work_is_held_against_the_baseline_wherever_it_stands() -> None:
    assert flagged(worked("a", "bfd", 125), worked("b", "none", 50), worked("c", "wrapped", 125)) == ["a", "c"]


def test_as_many_tokens_are_the_same_work_where_an_epoch_has_fewer() -> None:
    assert flagged(worked("a", "none", 1000, 1.0), worked("b", "bfd", 1000, 1.1)) == []


def test_a_token_budget_is_the_same_work_within_a_batch() -> None:
    assert flagged(worked("a", "none", 112), worked("b", "bfd", 125)) == ["b"]
    budget = {"budget.tokens": 112}
    cells = [
        made(i, choices={"packing": p, **budget}, data=Data(real_tokens=n))
        for i, p, n in (("a", "none", 112), ("b", "bfd", 125))
    ]
    assert flagged(*cells) == []


def test_other_token_budgets_are_different_work() -> None:
    cells = [
        made(i, choices={"packing": p, "budget.tokens": n}, data=Data(real_tokens=n))
        for i, p, n in (("a", "none", 100), ("b", "bfd", 37))
    ]
    assert flagged(*cells) == ["b"]


def test_simulated_cells_sample_steps_and_are_never_different_work() -> None:
    cells = [worked(i, p, n, backend="simulate") for i, p, n in (("a", "none", 50), ("b", "bfd", 125))]
    assert flagged(*cells) == []


def test_unknown_token_counts_are_not_different_work() -> None:
    assert flagged(worked("a", "none", None), worked("b", "bfd", 125)) == []


def test_without_an_ok_baseline_cells_are_still_held_against_each_other() -> None:
    refused = not_ok("a", "refused", choices={"packing": "none"})
    assert flagged(refused, worked("b", "bfd", 125), worked("c", "wrapped", 50)) == ["c"]


def test_different_work_is_said_in_tokens_and_epochs() -> None:
    axis = Axis("packing", ("none", "bfd", "wrapped"), "none")
    records = [worked("a", "none", 50, 0.22), worked("b", "bfd", 125, 0.56), worked("c", "wrapped", 128, 0.57)]
    assert said(swept(axis), records) == [
        "Different work: packing=bfd,wrapped trained on 125 to 128 real tokens in 0.56 to 0.57 epochs, "
        "the baseline on 50 real tokens in 0.22 epochs; with budget.tokens=N every cell trains on as many"
    ]


PADDING_FREE = Axis("padding_free", ("false", "true"), "false")


def fell_back(*names: str) -> dict[str, Any]:
    return {"effective": {"fell_back": list(names)}}


@pytest.mark.parametrize("name", ["padding_free", "padding_free=true"])
def test_a_technique_that_fell_back_is_never_a_saving(name: str) -> None:
    records = [
        made("a", 8, choices={"padding_free": "false"}),
        made("b", 4, choices={"padding_free": "true"}, **fell_back(name)),
    ]
    sweep = swept(PADDING_FREE, cells="ab")
    assert compared(sweep, records)["b"].vs_baseline == dict.fromkeys(METRICS)
    assert said(sweep, records) == [
        f"padding_free=true asked for {name}, which fell back: trained without it, so no differences are shown"
    ]


def test_a_technique_that_fell_back_in_every_cell_does_not_hide_what_another_one_saves() -> None:
    records = [
        made("a", 8, choices={"packing": "none", "padding_free": "true"}, **fell_back("padding_free=true")),
        made("b", 4, choices={"packing": "bfd", "padding_free": "true"}, **fell_back("padding_free=true")),
    ]
    assert peaks(swept(PACKING, cells="ab"), records) == {"a": 0.0, "b": -50.0}
    assert said(swept(PACKING), records) == [
        "Every cell asked for padding_free=true, which fell back: trained without it"
    ]


def test_a_technique_that_fell_back_in_one_cell_only_is_no_saving_of_another_technique() -> None:
    records = [
        made("a", 8, choices={"packing": "none", "padding_free": "true"}),
        made("b", 4, choices={"packing": "bfd", "padding_free": "true"}, **fell_back("padding_free")),
    ]
    assert peaks(swept(PACKING, cells="ab"), records) == {"a": 0.0, "b": None}


def test_a_baseline_whose_technique_fell_back_is_no_baseline() -> None:
    records = [
        made("a", 8, choices={"padding_free": "false"}),
        made("b", 4, choices={"padding_free": "true"}, **fell_back("padding_free")),
    ]
    sweep = swept(PADDING_FREE, cells="ab", baseline={"padding_free": True})
    assert peaks(sweep, records) == {"a": None, "b": None}
    assert said(sweep, records)[0] == (
        "No differences: the baseline padding_free=true asked for padding_free, which fell back"
    )


def test_a_fall_back_is_found_where_only_a_field_of_the_technique_is_swept() -> None:
    axis = Axis("peft.r", (8, 16), 8)
    records = [made(i, 8, choices={"peft.r": r}, **fell_back("peft=lora")) for i, r in (("a", 8), ("b", 16))]
    assert set(peaks(swept(axis), records).values()) == {None}


def behaving(
    plan_id: str, effective: dict[str, Any], kept: int | None = 85, peak: float = 100, **choices: Any
) -> Record:
    data = Data(real_tokens=85, kept_tokens=kept, kept_fraction=1.0)
    return made(plan_id, peak, choices=choices, effective={**effective, "fell_back": []}, data=data)


def test_equal_settings_on_equal_tokens_are_said_to_act_alike() -> None:
    flat = {"padding_free": True}
    records = [behaving("a", flat, padding_free="true"), behaving("b", flat, padding_free="false")]
    assert said(swept(PADDING_FREE), records) == ["padding_free=true and padding_free=false act alike here"]


def test_acting_alike_names_the_other_options_with_which_it_is_so() -> None:
    records = [
        behaving("a", {"padding_free": False}, packing="none", padding_free="false"),
        behaving("b", {"padding_free": True}, packing="none", padding_free="true"),
        behaving("c", {"packing": True, "padding_free": True}, packing="bfd", padding_free="false"),
        behaving("d", {"packing": True, "padding_free": True}, packing="bfd", padding_free="true"),
    ]
    sweep = swept(PACKING, PADDING_FREE, cells="abcd")
    assert said(sweep, records) == ["padding_free=false and padding_free=true act alike here (packing=bfd)"]


ACTS = {
    "other settings": [behaving("a", {"x": 1}, offload="false"), behaving("b", {"x": 2}, offload="true")],
    "other tokens": [behaving("a", {"x": 1}, 85, offload="false"), behaving("b", {"x": 1}, 84, offload="true")],
    "unknown tokens": [behaving("a", {"x": 1}, None, offload="false"), behaving("b", {"x": 1}, None, offload="true")],
    "other peaks": [behaving("a", {"x": 1}, 85, 10, offload="false"), behaving("b", {"x": 1}, 85, 9, offload="true")],
    "settings unknown": [
        made("a", choices={"offload": "false"}),
        made("b", choices={"offload": "true"}),
    ],
}


@pytest.mark.parametrize("records", ACTS.values(), ids=ACTS.keys())
def test_cells_that_may_differ_are_not_said_to_act_alike(records: list[Record]) -> None:
    assert not [line for line in said(swept(OFFLOAD), records) if "alike" in line]


@pytest.mark.parametrize(
    ("axis", "options"),
    [("seed", (0, 1)), ("batch_size", (2, 4)), ("model", "mn"), ("gpu", "xy"), ("backend", "xy"), ("peft.name", "ab")],
)
def test_repeats_sizes_and_other_jobs_are_not_said_to_act_alike(axis: str, options: Sequence[Any]) -> None:
    records = [behaving(str(option), {"packing": False}, **{axis: option}) for option in options]
    assert said(swept(Axis(axis, tuple(options), options[0])), records) == []


def test_tokens_that_a_technique_cut_are_said_with_both_counts() -> None:
    records = [
        made("a", data=Data(kept_tokens=2022, kept_fraction=1.0), choices={"packing": "none"}),
        made("b", data=Data(kept_tokens=85, kept_fraction=85 / 2022), choices={"packing": "bfd"}),
    ]
    assert said(swept(PACKING), records) == ["packing=bfd cut 96% of the tokens (85 of 2,022 kept)"]


def test_a_cut_in_every_cell_is_said_once() -> None:
    cut = Data(kept_tokens=50, kept_fraction=0.5)
    records = [made(i, data=cut, choices={"packing": p}) for i, p in (("a", "none"), ("b", "bfd"))]
    assert said(swept(PACKING), records) == ["Every cell cut 50% of the tokens (50 of 100 kept)"]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        # As the three trainers leave 12 rows: reward filters, DPO cuts and drops some, SFT cuts.
        ({"rows_kept": 4, "cut_rows": 8}, "dropped 8 of 12 rows longer than max_length, and with them {}"),
        ({"rows_kept": 11, "cut_rows": 8}, "cut {}, and dropped 1 of 12 rows"),
        ({"rows_kept": 12, "cut_rows": 8}, "cut {}"),
        ({"rows_kept": 11, "cut_rows": 1, "rows_packed": 5}, "cut {}"),
        ({"rows_kept": None, "cut_rows": None}, "cut {}"),
    ],
)
def test_rows_that_were_dropped_are_not_said_to_be_cut(rows: dict[str, Any], line: str) -> None:
    records = [made("a", data=Data(rows_in=12, kept_tokens=32, kept_fraction=0.32, **rows))]
    assert said(swept(cells="a"), records) == ["This cell " + line.format("68% of the tokens (32 of 100 kept)")]


@pytest.mark.parametrize(("kept", "is_said"), [(0.949, True), (0.95, False), (1.0, False), (None, False)])
def test_a_cut_is_said_below_95_percent_kept(kept: float | None, is_said: bool) -> None:
    assert bool(said(swept(cells="a"), [made("a", data=Data(kept_fraction=kept))])) is is_said


def test_almost_everything_cut_is_not_rounded_to_everything() -> None:
    records = [made("a", data=Data(kept_tokens=2, kept_fraction=0.002))]
    assert said(swept(cells="a"), records) == ["This cell cut >99% of the tokens (2 of 1,000 kept)"]


def test_cells_of_different_library_versions_are_said_to_be() -> None:
    records = [
        made("a", choices={"packing": "none"}, environment={"versions": {"trl": "1.15.0", "torch": "2.13.0"}}),
        made("b", choices={"packing": "bfd"}, environment={"versions": {"trl": "1.16.0", "torch": "2.13.0"}}),
    ]
    assert said(swept(PACKING), records) == [
        "Cells ran on different versions, and may not compare: trl 1.15.0 and 1.16.0"
    ]


def test_notes_of_cells_are_said_once_for_all_the_cells_that_have_them() -> None:
    sweep, records = two_by_two()
    notes = {"a": ("x",), "b": ("x", "y"), "c": ("x",), "d": ("x", "y")}
    records = [replace(record, notes=notes[record.id]) for record in records]
    assert said(sweep, records) == ["Every cell: x", "offload=true: y"]


def test_many_different_cuts_are_said_as_a_range() -> None:
    axis = Axis("packing", tuple(f"p{n}" for n in range(100)), "p0")
    records = [made(str(n), data=Data(kept_fraction=n / 100), choices={"packing": f"p{n}"}) for n in range(100)]
    assert said(swept(axis), records) == ["95 of 100 cells cut 6% to 100% of the tokens: compare what they kept"]


def test_many_remarks_of_a_kind_end_in_a_count() -> None:
    axis = Axis("packing", tuple(f"p{n}" for n in range(100)), "p0")
    records = [made(str(n), notes=(f"note {n}",), choices={"packing": f"p{n}"}) for n in range(100)]
    lines = said(swept(axis), records)
    assert lines[5:] == ["packing=p5: note 5", "… and 94 more like it"]
