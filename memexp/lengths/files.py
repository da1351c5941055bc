"""Token lengths as files: `lengths.csv`, `max_length.csv` and `lengths.png`. Reads the worker's answer alone."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from memexp.lengths.show import bins
from memexp.results.charts import VEGA_LITE
from memexp.results.format import fraction_text
from memexp.results.theme import theme

_SCALE = 2
_BARS = 40


def write_files(folder: Path, answer: dict[str, Any], title: str) -> tuple[Path, ...]:
    """Write all three, over what is there. Raises OSError where the folder cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    lengths, cuts = folder / "lengths.csv", folder / "max_length.csv"
    _write(lengths, ("tokens", "rows"), answer["lengths"])
    rows = [_flat(cut) for cut in answer["cuts"]]
    _write(cuts, list(rows[0]), [list(row.values()) for row in rows])
    picture = folder / "lengths.png"
    spec = chart(answer["lengths"], answer["cuts"], title).to_dict()
    config = theme("light") | {"background": "white"}
    picture.write_bytes(vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, config=config, scale=_SCALE))
    return lengths, cuts, picture


def chart(lengths: Sequence[tuple[int, int]], cuts: Sequence[dict[str, Any]], title: str) -> Any:
    """The histogram, with a line at each max_length that says what share of the tokens it cuts."""
    parts = bins(lengths, _BARS)
    width = parts[0][1] or 1
    end = len(parts) * width
    heights = [{"from": first - 1, "to": last or end, "rows": rows} for first, last, rows in parts]
    bars = _data(heights).mark_bar(style="bar-of-rows", binSpacing=1)
    name = "tokens in a row" + (f" (the last bar: {parts[-1][0]:,} and more)" if parts[-1][1] is None else "")
    scale, axis = alt.Scale(domain=[0, end], nice=False), alt.Axis(grid=False)
    x = alt.X("from:Q", title=name, bin="binned", scale=scale, axis=axis)
    layers = [bars.encode(x=x, x2="to:Q", y=alt.Y("rows:Q", title="rows"))]
    shown = [cut for cut in cuts if cut["max_length"] <= end]
    if shown:
        marks = [
            {"at": cut["max_length"], "says": f"{cut['max_length']:,}: cuts {_cut(cut['tokens_cut_fraction'])}"}
            for cut in shown
        ]
        lines = _data(marks).encode(x="at:Q")
        says = lines.mark_text(style="limit-name", angle=270, align="right", dx=-4, dy=-9, baseline="middle")
        layers += [lines.mark_rule(style="limit"), says.encode(y=alt.value(0), text="says:N")]
    heading = alt.TitleParams(title, anchor="start", fontSize=14, fontWeight=600, offset=14)
    return alt.layer(*layers).properties(width=720, height=300, title=heading)


def _data(values: list[dict[str, Any]]) -> Any:
    inline: Any = alt.Data
    return alt.Chart(inline(values=values))


def _cut(fraction: float) -> str:
    return f"{fraction_text(fraction)} of tokens" if fraction else "nothing"


def _flat(cut: dict[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in cut.items() if not isinstance(value, dict)}
    padding = {f"none_batch_{size}_empty_fraction": value for size, value in cut["padding"].items()}
    packed = {f"{name}_{key}": value for name, values in cut["packings"].items() for key, value in values.items()}
    return {**plain, **padding, **packed}


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
