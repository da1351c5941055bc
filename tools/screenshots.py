"""The pictures of report.html in docs/: a real sweep on the simulated GPU, opened in Debian's Chromium.

python -m tools.screenshots [FOLDER]     FOLDER: a sweep that was run before, else one of twelve cells is run first

Needs chromium and chromium-driver, looks as README shows it with fonts-inter, and is smaller with pngquant: Debian's
packages all of them.
"""

import base64
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from memexp.cli import main as memexp
from tools.chromium import Browser, chromium

DOCS = Path(__file__).parents[1] / "docs"
SWEEP = (
    "-m packing=none,bfd,wrapped offload=false,true checkpointing=none,full backend=simulate gpu=l4_24gb "
    "max_length=2048 baseline=checkpointing=full logger=none sweep=packing-offload-checkpointing"
)
# The name, the width, the scheme, and the first and last element that the picture shows.
PICTURES = (
    ("report-light.png", 1400, "light", "header", "#cells"),
    ("report-dark.png", 1400, "dark", ".pair figure", ".pair:last-of-type"),
    ("report-narrow.png", 400, "light", "header", "ol.notes"),
)
_MARGIN = 40


def main() -> None:
    with tempfile.TemporaryDirectory() as results:
        if len(sys.argv) > 1:
            folder = Path(sys.argv[1])
        else:
            memexp([*SWEEP.split(), f"results_dir={results}"])
            folder = Path(results) / "packing-offload-checkpointing"
        memexp(["report", str(folder)])
        DOCS.mkdir(exist_ok=True)
        with chromium() as browser:
            for name, width, scheme, first, last in PICTURES:
                browser.open(folder.absolute() / "report.html", width, scheme)
                (DOCS / name).write_bytes(_picture(browser, width, first, last))
                if shutil.which("pngquant"):
                    subprocess.run(["pngquant", "--force", "--ext", ".png", "--speed", "1", DOCS / name], check=True)
                print(f"{DOCS / name}: {(DOCS / name).stat().st_size / 1000:.0f} kB")


def _picture(browser: Browser, width: int, first: str, last: str) -> bytes:
    top, bottom = browser.run(
        "return [[0, 'top'], [1, 'bottom']].map(([n, side]) => "
        "[...document.querySelectorAll(arguments[n])].at(-n || 0).getBoundingClientRect()[side] + scrollY)",
        first,
        last,
    )
    start = max(0, top - _MARGIN)
    clip = {"x": 0, "y": start, "width": width, "height": bottom + _MARGIN - start, "scale": 1}
    taken = browser.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    return base64.b64decode(taken["data"])


if __name__ == "__main__":
    main()
