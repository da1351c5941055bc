"""What `memexp report` says of each cell's peak."""

from typing import Any

from made_records import GIB

from memexp.results.grid import Grid
from memexp.results.peak import peak_lines
from memexp.results.record import Memory, Record
from memexp.results.sweep import Axis, Sweep


def lines(memory: Memory, **fields: Any) -> list[str]:
    sweep = Sweep("s", axes=(Axis("packing", ("bfd",)),), cells=("a",))
    record = Record("a", "s", "ok", choices={"packing": "bfd"}, memory=memory, **fields)
    return list(peak_lines(Grid(sweep, [record])))


def test_the_peak_is_taken_apart_into_what_was_on_the_card_largest_first() -> None:
    categories = {"weights_bytes": GIB, "optimizer_bytes": 2 * GIB, "gradients_bytes": 0}
    said = lines(Memory(peak_allocated_bytes=3 * GIB, peak_phase="optimizer", peak_categories=categories))
    assert said[1] == "packing=bfd: peaks at 3.00 GiB in optimizer"
    assert [line.split()[0] for line in said[2:]] == ["optimizer", "weights"]
    assert said[2].count("█") == 2 * said[3].count("█") == 20


def test_a_predicted_peak_is_marked() -> None:
    said = lines(Memory(peak_allocated_bytes=GIB), predicted=("memory.peak_allocated_bytes",))
    assert "~1.00 GiB" in said[1]


def test_the_timeline_shows_steps_that_grow() -> None:
    steps = tuple({"step": n, "peak_allocated_bytes": n * GIB} for n in (1, 2, 3))
    said = lines(Memory(peak_allocated_bytes=3 * GIB, per_step=steps))
    assert "▁▄█  1.00 GiB to 3.00 GiB" in said[-1]


def test_phases_stand_in_the_order_of_a_run() -> None:
    phases = {
        name: {"peak_allocated_bytes": GIB} for name in ("worst_case", "optimizer", "load", "backward", "forward")
    }
    said = lines(Memory(peak_allocated_bytes=GIB, phases=phases))[-1]
    order = [said.index(name) for name in ("load", "forward", "backward", "optimizer", "worst case")]
    assert order == sorted(order)


def test_a_cell_without_a_peak_has_no_block() -> None:
    assert lines(Memory()) == []
