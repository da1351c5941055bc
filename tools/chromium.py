"""Debian's Chromium without a window, for tests and screenshots of report.html. Nothing of it reaches a network."""

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

_FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --force-color-profile=srgb"
)


def is_installed() -> bool:
    """Whether Debian's packages chromium and chromium-driver are there."""
    return shutil.which("chromium") is not None and shutil.which("chromedriver") is not None


@contextmanager
def chromium() -> Iterator["Browser"]:
    """A browser with a profile of its own, which goes with it."""
    with tempfile.TemporaryDirectory(prefix="chromium-") as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for flag in (*_FLAGS.split(), f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            yield Browser(driver)
        finally:
            driver.quit()


class Browser:
    """One page at a time. `requested` are the addresses that the page asked for, `said` is what its console said."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.requested: list[str] = []
        self.said: list[str] = []

    def open(self, path: Path, width: int = 1400, scheme: str = "light") -> None:
        """Load a report from disk and wait until its charts are drawn. Raises TimeoutError."""
        self.emulate(width, scheme)
        self.driver.get_log("performance"), self.driver.get_log("browser")  # what an earlier page left
        self.driver.get(path.as_uri())
        self.wait_for("return document.documentElement.dataset.drawn")
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        self.requested = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        self.said = [entry["message"] for entry in self.driver.get_log("browser")]

    def emulate(self, width: int, scheme: str) -> None:
        """A window of this width whose user prefers `light` or `dark`."""
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait_for(self, script: str) -> Any:
        """What the script returns as soon as that is something. Gives up after what no machine needs."""
        end = time.monotonic() + 60
        while not (found := self.run(script)):
            if time.monotonic() > end:
                raise TimeoutError(f"{script}: {self.driver.get_log('browser')}")
            time.sleep(0.02)
        return found
