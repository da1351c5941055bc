"""What charts look like: Vega's config, with a colour on light and on dark paper for each style that a mark names."""

from typing import Any

FONT = "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_INK = {
    "light": {"text": "#1f2328", "soft": "#656d76", "grid": "#e6e8eb", "accent": "#0b6bcb", "rest": "#8c959f"},
    "dark": {"text": "#e6edf3", "soft": "#9198a1", "grid": "#2a3038", "accent": "#58a6ff", "rest": "#6e7681"},
}
# Apart from each other in lightness too, so that they differ for the colour-blind and in print.
_CATEGORY = {
    "light": ["#0b4f8a", "#5aa2d8", "#f0a33a", "#c8553d", "#7a5195", "#9aa1a8"],
    "dark": ["#3d83c4", "#8cc4ec", "#f2b155", "#e07a62", "#a884c4", "#8b949e"],
}


def theme(scheme: str) -> dict[str, Any]:
    """Vega's config for `light` or `dark` paper."""
    ink = _INK[scheme]
    text = {"labelColor": ink["soft"], "titleColor": ink["soft"], "labelFontSize": 12, "titleFontSize": 12}
    return {
        "background": "transparent",
        "font": FONT,
        "padding": 4,
        "view": {"stroke": None},
        "axis": text
        | {"titleFontWeight": "normal", "titlePadding": 10, "labelPadding": 6, "tickCount": 6}
        | {"gridColor": ink["grid"], "domain": False, "ticks": False},
        "legend": text
        | {"labelColor": ink["text"], "orient": "top", "title": None, "columnPadding": 14, "offset": 18}
        | {"symbolType": "square", "symbolSize": 110, "symbolStrokeWidth": 0},
        "range": {"category": _CATEGORY[scheme]},
        "style": _styles(ink),
    }


def _styles(ink: dict[str, str]) -> dict[str, Any]:
    return {
        "dominated": {"color": ink["rest"], "strokeWidth": 1.5, "size": 60, "opacity": 0.9},
        "best": {"color": ink["accent"], "size": 130, "opacity": 1},
        "stairs": {"color": ink["accent"], "strokeWidth": 1.5, "opacity": 0.5},
        "place": {"color": ink["accent"], "fontWeight": 600, "fontSize": 12, "dx": 9, "dy": -10, "align": "left"},
        "limit": {"color": ink["soft"], "strokeDash": [4, 4], "strokeWidth": 1},
        "limit-name": {"color": ink["soft"], "fontSize": 11, "align": "right", "dx": -6, "baseline": "top"},
        "bar-of-rows": {"color": ink["accent"]},
        "span": {"color": ink["grid"], "strokeWidth": 3},
        "wide": {"strokeWidth": 6, "opacity": 0.35, "strokeCap": "round"},
        "zero": {"color": ink["rest"], "strokeWidth": 1, "opacity": 0.6},
        "dot": {"size": 110, "opacity": 1},
        "tick": {"thickness": 3, "size": 20, "opacity": 1},
    }
