"""Effects and interactions, against sums that were done by hand; and which techniques act where a cell peaks."""

import io
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from made_records import GIB, OFFLOAD, PACKING, made, not_ok, swept
from rich.console import Console

from memexp.plan import conf
from memexp.results.compare import compare
from memexp.results.effect_sentences import effect_sentences
from memexp.results.effects import Effect, Effects, effects
from memexp.results.grid import Grid
from memexp.results.matched_pairs import Change
from memexp.results.phases import phase_sentences
from memexp.results.record import CATEGORIES, Memory, Record
from memexp.results.sweep import Axis, Sweep
from memexp.results.table import make_table, print_table

CHECKPOINTING = Axis("checkpointing", ("none", "full"), "none")
# GiB by (checkpointing, offload, packing). Offload saves 5.0 GiB without checkpointing and 0.3 GiB with it, whatever
# the packing; packing adds 2 GiB without checkpointing and 0 with it; speeds multiply: 0.5, 0.8 and 2 times.
PEAKS = {
    ("none", "false", "none"): 10.0,
    ("none", "true", "none"): 5.0,
    ("none", "false", "bfd"): 12.0,
    ("none", "true", "bfd"): 7.0,
    ("full", "false", "none"): 6.0,
    ("full", "true", "none"): 5.7,
    ("full", "false", "bfd"): 6.0,
    ("full", "true", "bfd"): 5.7,
}
AXES = (CHECKPOINTING, OFFLOAD, PACKING)


def cube(**changed: Any) -> tuple[Sweep, list[Record]]:
    """The eight cells as ids a to h; `changed` puts another record in the place of one."""
    records = []
    for name, key in zip("abcdefgh", itertools.product(*(axis.options for axis in AXES)), strict=True):
        rate = (
            1000 * (0.8 if key[0] == "full" else 1) * (0.5 if key[1] == "true" else 1) * (2 if key[2] == "bfd" else 1)
        )
        choices = dict(zip((axis.name for axis in AXES), key, strict=True))
        records.append(changed.get(name, made)(name, PEAKS[key] * GIB, rate=rate, choices=choices))
    return swept(*AXES, cells="abcdefgh"), records


def found(sweep: Sweep, records: Sequence[Record]) -> Effects:
    grid = Grid(sweep, records)
    return effects(grid, compare(grid))


def of(axis: str, all_of: Effects) -> Effect:
    (effect,) = [effect for effect in all_of.effects if effect.axis == axis]
    return effect


def in_gib(change: Change) -> tuple[float | None, ...]:
    return tuple(None if value is None else value / GIB for value in (change.mean, change.least, change.most))


def oom(plan_id: str, peak: float, *, rate: float, choices: dict[str, str]) -> Record:
    return not_ok(plan_id, "oom", choices=choices)


def fell_back(plan_id: str, peak: float, *, rate: float, choices: dict[str, str]) -> Record:
    return made(plan_id, peak / 2, rate=rate, choices=choices, effective={"fell_back": ["offload=true"]})


def test_an_effect_is_the_mean_over_pairs_that_differ_in_nothing_else() -> None:
    all_of = found(*cube())
    # (-5 - 5 - 0.3 - 0.3) / 4
    assert in_gib(of("offload", all_of).changes[0]) == pytest.approx((-2.65, -5.0, -0.3))
    # (-4 + 0.7 - 6 - 1.3) / 4
    assert in_gib(of("checkpointing", all_of).changes[0]) == pytest.approx((-2.65, -6.0, 0.7))
    # (2 + 2 + 0 + 0) / 4
    assert in_gib(of("packing", all_of).changes[0]) == pytest.approx((1.0, 0.0, 2.0))
    rates = [of(axis, all_of).changes[1].mean_percent for axis in ("offload", "checkpointing", "packing")]
    assert rates == pytest.approx([-50, -20, 100])


def test_an_interaction_is_the_same_effect_in_two_places() -> None:
    interactions = {(each.axis, each.beside, each.metric): each for each in found(*cube()).interactions}
    # Offload with packing changes nothing, and speeds that multiply do not interact.
    assert set(interactions) == {
        ("checkpointing", "offload", "peak_allocated_bytes"),
        ("checkpointing", "packing", "peak_allocated_bytes"),
    }
    each = interactions["checkpointing", "offload", "peak_allocated_bytes"]
    assert (each.at_reference / GIB, each.at_option / GIB) == pytest.approx((-5.0, -0.3))
    assert each.settings == 2


def test_an_interaction_is_said_in_a_sentence_that_can_be_read_either_way() -> None:
    axes = (OFFLOAD, CHECKPOINTING)
    records = [
        made(f"{offload}{checkpointing}", PEAKS[checkpointing, offload, "none"] * GIB,
             choices={"offload": offload, "checkpointing": checkpointing})
        for offload, checkpointing in itertools.product(OFFLOAD.options, CHECKPOINTING.options)
    ]  # fmt: skip
    said = effect_sentences(found(swept(*axes), records))
    assert "offload=true saves 5.00 GiB with checkpointing=none, saves 307 MiB with checkpointing=full" in said


def test_a_mean_that_holds_nowhere_comes_behind_the_range_and_the_axis_that_decides() -> None:
    # Offload saves 5.0 or 0.3 GiB: 4.7 apart, more than their mean of 2.65. Packing adds 2 or 0, checkpointing takes
    # 4, 6, -0.7 or 1.3 off; speed is multiplied by the same everywhere.
    all_of = found(*cube())
    assert [change.decided_by for change in of("offload", all_of).changes] == ["checkpointing", None]
    said = effect_sentences(all_of)
    assert (
        "offload=true: peak allocated -5.00 GiB to -307 MiB by checkpointing (mean -2.65 GiB), real tokens/s -50.0%"
        in said
    )
    assert any(
        line.startswith("packing=bfd: peak allocated 0 to +2.00 GiB by checkpointing (mean +1.00") for line in said
    )


def test_a_strong_mean_with_a_weak_interaction_stays_in_front() -> None:
    records = [
        made(name, peak * GIB, rate=1000.0, choices={"offload": offload, "packing": packing})
        for name, offload, packing, peak in (
            ("a", "false", "none", 10.0),
            ("b", "true", "none", 4.0),
            ("c", "false", "bfd", 12.0),
            ("d", "true", "bfd", 4.5),
        )
    ]
    all_of = found(swept(OFFLOAD, PACKING, cells="abcd"), records)
    assert of("offload", all_of).changes[0].decided_by is None
    assert any("offload=true: peak allocated -6.75 GiB (-7.50 GiB to -6.00 GiB)" in s for s in effect_sentences(all_of))


def test_what_decides_is_only_read_off_settings_that_each_option_has() -> None:
    # Offloading is left with packing=none without checkpointing, with packing=bfd with it: which decides is not known.
    sweep, records = cube()
    left = [record for record in records if record.id not in ("d", "g")]
    assert of("offload", found(sweep, left)).changes[0].decided_by is None


def test_a_cell_without_a_partner_counts_for_nothing() -> None:
    # h is full, true, bfd: offload loses one pair of -0.3, checkpointing one of -1.3, packing one of 0.
    all_of = found(*cube(h=oom))
    assert of("offload", all_of).changes[0].pairs == 3
    assert of("offload", all_of).possible == 4
    assert in_gib(of("offload", all_of).changes[0]) == pytest.approx(((-5 - 5 - 0.3) / 3, -5.0, -0.3))
    assert in_gib(of("packing", all_of).changes[0]) == pytest.approx((4 / 3, 0.0, 2.0))
    assert any(sentence.endswith(", over 3 of 4 pairs") for sentence in effect_sentences(all_of))


def test_a_cell_that_fell_back_is_no_effect_of_what_it_did_not_do() -> None:
    assert found(*cube(h=fell_back)).effects == found(*cube(h=oom)).effects


def test_an_interaction_needs_all_four_corners() -> None:
    # Without d and h no pair with offload and packing is left.
    interactions = found(*cube(d=oom, h=oom)).interactions
    assert all({each.axis, each.beside} != {"offload", "packing"} for each in interactions)
    assert [each.settings for each in interactions if each.beside == "offload"] == [1]


def test_an_option_without_any_pair_is_unknown_and_said_to_be() -> None:
    # Nothing with offload finished.
    all_of = found(*cube(c=oom, d=oom, g=oom, h=oom))
    assert of("offload", all_of).changes[0] == Change("peak_allocated_bytes", 0)
    assert any(sentence.startswith("offload=true: unknown, since no ok cell") for sentence in effect_sentences(all_of))


def test_repeats_are_one_cell_with_their_median() -> None:
    seeds = Axis("seed", (0, 1, 2), 0)
    records = [
        made(f"{seed}{packing}{offload}", peak * GIB, choices={"seed": seed, "packing": packing, "offload": offload})
        for packing, offload, peaks in (("none", "false", (9, 10, 30)), ("none", "true", (3, 4, 5)),
                                        ("bfd", "false", (10, 10, 10)), ("bfd", "true", (8, 8, 8)))
        for seed, peak in enumerate(peaks)
    ]  # fmt: skip
    offload = of("offload", found(swept(seeds, PACKING, OFFLOAD), records))
    assert in_gib(offload.changes[0]) == pytest.approx((-4.0, -6.0, -2.0))
    assert offload.changes[0].pairs == 2


def test_models_are_not_averaged_with_each_other() -> None:
    model = Axis("model", ("small", "big"), "small")
    records = [
        made(f"{m}{p}{o}", size * (2 if p == "bfd" else 1) * (0.5 if o == "true" else 1),
             choices={"model": m, "packing": p, "offload": o})
        for m, size in (("small", GIB), ("big", 100 * GIB))
        for p, o in itertools.product(PACKING.options, OFFLOAD.options)
    ]  # fmt: skip
    packing = [effect for effect in found(swept(model, PACKING, OFFLOAD), records).effects if effect.axis == "packing"]
    assert [(effect.group, effect.changes[0].mean_percent) for effect in packing] == [
        ({"model": "small"}, 100.0),
        ({"model": "big"}, 100.0),
    ]
    assert packing[1].changes[0].mean == 75 * GIB


def test_effects_that_a_sweep_does_not_print_at_its_end_are_said_to_be_in_table_md() -> None:
    out = io.StringIO()
    table = replace(make_table(*cube()), effects=tuple(f"the effect of {number}" for number in range(7)))
    print_table(table, Console(file=out, width=200))
    assert "7 lines at the end of table.md" in out.getvalue()
    assert "the effect of 0" not in out.getvalue()


def test_one_axis_has_a_table_and_no_effects() -> None:
    records = [made("a", 8, choices={"packing": "none"}), made("b", 4, choices={"packing": "bfd"})]
    assert found(swept(PACKING), records) == Effects()


# ---- which phase sets the peak

ACTS_ON = {"packing": ["activations"], "optimizer": ["optimizer"], "peft": ["gradients", "optimizer"]}


def peaking(plan_id: str, phase: str | None, packing: str = "none", **categories: int) -> Record:
    known = {f"{name}_bytes": size for name, size in categories.items()} or dict.fromkeys(CATEGORIES)
    memory = Memory(peak_allocated_bytes=100, peak_phase=phase, peak_categories=known)
    return Record(plan_id, "made", "ok", memory=memory, choices={"packing": packing})


def said(*records: Record) -> list[str]:
    return phase_sentences(Grid(swept(PACKING), records), ACTS_ON)


def test_a_peak_in_the_optimizers_step_has_no_activations_to_save() -> None:
    assert said(peaking("a", "optimizer"), peaking("b", "optimizer", "bfd")) == [
        "Every cell peaks in optimizer, which holds weights, gradients and the optimizer's state: "
        "optimizer and peft act on that, packing does not"
    ]


def test_where_the_categories_are_known_the_largest_decides_and_what_was_not_tried_is_not_dismissed() -> None:
    cells = (
        peaking("a", "backward", activations=70, optimizer=30),
        peaking("b", "backward", "bfd", activations=60, weights=40),
    )
    assert said(*cells) == [
        "Every cell peaks in backward, when the largest part is activations (60% to 70%): packing acts on that"
    ]


def test_nothing_is_said_of_a_peak_that_every_technique_may_act_on() -> None:
    cells = peaking("a", "backward"), peaking("b", "optimizer", "bfd")
    (line,) = said(*cells)
    assert line.startswith("packing=bfd peaks in optimizer")
    known = peaking("a", "backward", weights=9)
    everything = {name: ["weights"] for name in ACTS_ON}
    assert phase_sentences(Grid(swept(PACKING), [known]), everything)[0].endswith("every technique acts on that")


def test_cells_that_peak_elsewhere_have_a_sentence_of_their_own() -> None:
    first, second = said(peaking("a", "forward", activations=9), peaking("b", "optimizer", "bfd", optimizer=9))
    assert first.startswith("packing=none peaks in forward")
    assert second.startswith("packing=bfd peaks in optimizer")


def test_a_peak_whose_phase_is_unknown_is_not_explained() -> None:
    assert said(peaking("a", None), peaking("b", "measured", "bfd")) == []


@pytest.mark.parametrize(
    ("group", "name"),
    [(group, name) for group, names in conf.groups().items() for name in names if group not in conf.STRUCTURE],
)
def test_an_option_acts_on_categories_that_a_record_has(group: str, name: str) -> None:
    known = {category.removesuffix("_bytes") for category in CATEGORIES}
    file = conf.option(group, name)
    assert set(file.get("acts_on") or ()) <= known
    assert not (file.get("is_off") and file.get("acts_on"))
