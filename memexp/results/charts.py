"""Figures as charts: Vega-Lite for report.html and PNG files, both made by Altair. Import it only where one is drawn.

A chart holds no colour: marks name a style, and `memexp.results.theme` says what each style is.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from memexp.results.figures.figure import Figure
from memexp.results.record import CATEGORIES
from memexp.results.theme import theme

VEGA_LITE = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
_ROWS = "rows"
_PNG_WIDTH = 760
_PNG_SCALE = 2
_ROW = 40
_TALL_ROW = 58
_LABEL_AT = -17


def vega_lite(figure: Figure) -> dict[str, Any]:
    """The chart of one figure, as wide as what holds it, without colours. Raises KeyError for an unknown figure.

    Not validated, which takes Altair longer than all else here: the tests hold each chart against the schema.
    """
    chart = _CHARTS[figure.key](figure).properties(width="container", description=figure.about)
    spec = {name: value for name, value in chart.to_dict(validate=False).items() if name != "config"}
    return {**spec, "datasets": {**spec.get("datasets", {}), _ROWS: figure.values()}}


def write_pngs(figures: Sequence[Figure], folder: Path) -> list[str]:
    """Each chart as it looks on white paper, by the key of its figure. Returns the names. Raises OSError."""
    folder.mkdir(exist_ok=True)
    for figure in figures:
        _write_png(figure, folder / f"{figure.key}.png")
    return [f"{figure.key}.png" for figure in figures]


def _write_png(figure: Figure, path: Path) -> None:
    spec = {**vega_lite(figure), "width": _PNG_WIDTH, "config": {**theme("light"), "background": "white"}}
    path.write_bytes(vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=_PNG_SCALE))


def _speed(figure: Figure) -> alt.TopLevelMixin:
    points = alt.Chart(alt.NamedData(_ROWS)).encode(
        x=alt.X("memory:Q", title=figure.fields["memory"], scale=_wide(figure, "memory")),
        y=alt.Y("speed:Q", title=figure.fields["speed"], scale=_wide(figure, "speed")),
        tooltip=_tooltip(figure, ("cell", "memory", "speed")),
    )
    best = points.transform_filter("isValid(datum.place)")
    layers: list[alt.Chart] = [
        best.mark_line(style="stairs", interpolate="step-after").encode(detail="job:N", order="place:Q")
    ]
    if any(value["place"] is None for value in figure.values()):
        layers.append(points.transform_filter("!isValid(datum.place)").mark_point(style="dominated"))
    layers += [best.mark_circle(style="best"), best.mark_text(style="place").encode(text="numbers:N")]
    return alt.layer(*layers, *_rules(figure)).properties(height=340)


def _wide(figure: Figure, field: str) -> alt.Scale:
    """Not from zero, and a tenth of the values at least: what differs by a thousandth must not look far apart."""
    values = [value[field] for value in figure.values()]
    middle = (min(values) + max(values)) / 2
    if max(values) - min(values) >= 0.1 * middle:
        return alt.Scale(zero=False, nice=True, padding=24)
    ends = [*values, *(figure.rules.values() if field == "memory" else ())]
    return alt.Scale(nice=True, domainMin=min(*ends, 0.95 * middle), domainMax=max(*ends, 1.05 * middle))


def _category(figure: Figure) -> alt.TopLevelMixin:
    order = [name.removesuffix("_bytes") for name in CATEGORIES]
    bars = (
        alt.Chart(alt.NamedData(_ROWS))
        .transform_calculate(order=f"indexof({order}, datum.category)")
        .mark_bar(height=13)
        .encode(
            x=alt.X("sum(size):Q", title="GiB"),
            y=_cells(),
            color=_colour(figure, "category", order),
            order=alt.Order("order:Q"),
            tooltip=_tooltip(figure, ("cell", "category", "size")),
        )
    )
    return alt.layer(bars, *_rules(figure)).properties(height=_ROW * len(figure.names("cell")))


def _phase(figure: Figure) -> alt.TopLevelMixin:
    base = alt.Chart(alt.NamedData(_ROWS)).encode(y=_cells())
    span = base.mark_rule(style="span").encode(x="min(size):Q", x2="max(size):Q")
    marks = base.encode(
        x=alt.X("size:Q", title="GiB", scale=alt.Scale(zero=False, padding=12)),
        # The optimizer has the colour that its states have among the categories.
        color=_colour(figure, "phase", ["backward", "forward", "optimizer", "worst case", "", "load"]),
        tooltip=_tooltip(figure, ("cell", "phase", "size")),
    )
    layers: list[alt.Chart] = [span]
    # The worst case is often within a hair of a phase, and a tick is seen behind its dot.
    if "worst case" in figure.names("phase"):
        layers.append(marks.transform_filter("datum.phase == 'worst case'").mark_tick(style="tick"))
    if figure.names("phase") != ["worst case"]:
        layers.append(marks.transform_filter("datum.phase != 'worst case'").mark_circle(style="dot"))
    return alt.layer(*layers, *_rules(figure)).properties(height=_ROW * len(figure.names("cell")))


def _effects(figure: Figure) -> alt.TopLevelMixin:
    base = alt.Chart(alt.NamedData(_ROWS)).encode(
        y=_cells("effect", label_at=-20),
        color=_colour(figure, "measure", ["memory", "", "speed"]),
        tooltip=_tooltip(figure, tuple(figure.fields)),
    )
    layers: list[alt.Chart] = [alt.Chart(alt.InlineData(values=[{"at": 0}])).mark_rule(style="zero").encode(x="at:Q")]
    for measure, below in (("memory", -2), ("speed", 13)):
        if measure not in figure.names("measure"):  # Vega warns of a layer without data
            continue
        half = base.transform_filter(f"datum.measure == '{measure}'")
        span = half.mark_rule(style="wide", yOffset=below, y2Offset=below)
        layers.append(span.encode(x=alt.X("least:Q", title="change, %"), x2="most:Q"))
        layers.append(half.mark_circle(style="dot", yOffset=below).encode(x="mean:Q"))
    return alt.layer(*layers).properties(height=_TALL_ROW * len(figure.names("effect")))


def _lengths(figure: Figure) -> alt.TopLevelMixin:
    bars = (
        alt.Chart(alt.NamedData(_ROWS))
        .mark_bar(style="bar-of-rows", binSpacing=1)
        .encode(
            x=alt.X("start:Q", bin="binned", title="tokens in a row", axis=alt.Axis(grid=False)),
            x2="end:Q",
            y=alt.Y("rows:Q", title="rows"),
            tooltip=_tooltip(figure, tuple(figure.fields)),
        )
    )
    return alt.layer(bars, *_rules(figure)).properties(height=220)


def _colour(figure: Figure, field: str, domain: list[str]) -> alt.Color:
    """One colour a name whatever is in the figure; its legend has what is."""
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=domain), legend=alt.Legend(values=figure.names(field)))


def _cells(field: str = "cell", label_at: int = _LABEL_AT) -> alt.Y:
    """A name stands above its marks, where a phone has room for it too. Rows are drawn as a figure has them."""
    as_wide = alt.ExprRef("width")
    axis = alt.Axis(labelAlign="left", labelPadding=0, labelOffset=label_at, labelLimit=as_wide, grid=False)
    return alt.Y(f"{field}:N", sort=None, title=None, axis=axis)


def _rules(figure: Figure) -> list[alt.Chart]:
    if not figure.rules:
        return []
    lines = alt.Chart(alt.InlineData(values=[{"at": at, "says": says} for says, at in figure.rules.items()]))
    lines = lines.encode(x="at:Q")
    return [lines.mark_rule(style="limit"), lines.mark_text(style="limit-name").encode(text="says:N", y=alt.value(2))]


def _tooltip(figure: Figure, fields: tuple[str, ...]) -> list[alt.Tooltip]:
    numbers = {field for row in figure.values()[:1] for field, value in row.items() if isinstance(value, float)}
    return [
        alt.Tooltip(f"{field}:Q", title=figure.fields[field], format=",.4r")
        if field in numbers
        else alt.Tooltip(f"{field}:N", title=figure.fields[field])
        for field in fields
    ]


_CHARTS: dict[str, Callable[[Figure], alt.TopLevelMixin]] = {
    "speed": _speed,
    "category": _category,
    "phase": _phase,
    "effects": _effects,
    "lengths": _lengths,
}
