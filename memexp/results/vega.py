"""Vega's JavaScript as one text to put into a page. It is made from what vl-convert carries; nothing is fetched."""

import os
from importlib.metadata import version
from pathlib import Path

import vl_convert

from memexp.results.store import write_atomically


def vega_bundle(vega_lite: str) -> str:
    """vega-embed as `window.vegaEmbed`, with Vega and Vega-Lite ("6.4"): 0.9 MB, safe inside a <script>.

    Making it takes over a second, and it is the same for every report, so it is kept in the user's cache folder. A
    cache that cannot be read or written costs that second and nothing else.
    """
    kept = _cache() / f"vega-{vega_lite}-{version('vl-convert-python')}.js"
    try:
        return kept.read_text(encoding="utf-8")
    except (OSError, ValueError):
        bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=vega_lite).replace(
            "</script", "<\\/script"
        )
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, bundle)
    except OSError:
        pass
    return bundle


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memexp"
