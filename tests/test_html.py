"""report.html in a real browser, over a sweep whose names try to be markup: it shows, sorts, filters, asks for nothing.

Expected orders and texts come from the records that the page was made of, not from the page.
"""

import json
import os
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from made_records import GIB, folder_of, made, not_ok
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from memexp.cli import main
from memexp.results.record import Memory, Oom, Record
from memexp.results.sweep import Axis, Sweep
from tools.chromium import Browser, chromium, is_installed

HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 2'>",
    "\"quotes' & &lt;b&gt; {{ page.name }}",
)
REASON = "RuntimeError: <svg onload=window.hacked=3> is no tensor"
PEAKS = {"a": 8.0, "b": 6.0, "c": 10.0, "e": 7.0}
SPEEDS = {"a": 1000.0, "b": 900.0, "c": 1500.0, "e": 800.0}
ON_THE_FRONT = ["b", "a", "c"]  # e needs more than b and is slower
REPLAY = "python -m memexp 'data.path=<b>'"


def cell(plan_id: str, packing: str, offload: str) -> Record:
    choices = {"packing": packing, "offload": offload, "max_length": 64}
    environment = {"versions": {"torch": "2.13.0"}, "replay": REPLAY, "gpu": "card <i>"}
    if plan_id == "d":
        oom = Oom("backward", 1, int(37.1 * GIB), int(34.5 * GIB), int(2.6 * GIB))
        return not_ok(plan_id, "oom", "CUDA out of memory", oom, choices=choices, environment=environment)
    if plan_id == "f":
        return not_ok(plan_id, "failed", REASON, choices=choices, environment=environment)
    peak = int(PEAKS[plan_id] * GIB)
    record = made(plan_id, peak, rate=SPEEDS[plan_id], step=0.2, choices=choices, environment=environment)
    memory = Memory(
        peak_allocated_bytes=peak,
        peak_categories={"weights_bytes": 4 * GIB, "activations_bytes": peak - 4 * GIB},
        phases={"load": {"peak_allocated_bytes": 4 * GIB}, "backward": {"peak_allocated_bytes": peak}},
    )
    return Record.from_dict({**record.to_dict(), "memory": memory.to_dict(), "predicted": ["memory", "speed"]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    packing, offload = Axis("packing", HOSTILE, HOSTILE[0]), Axis("offload", ("false", "true"), "false")
    grid = [(text, off) for text in HOSTILE for off in ("false", "true")]
    records = [cell(plan_id, *options) for plan_id, options in zip("abcdef", grid, strict=True)]
    sweep = Sweep(name=HOSTILE[0], axes=(packing, offload), cells=tuple("abcdef"), command=f"memexp {HOSTILE[1]}")
    path = folder_of(tmp_path_factory.mktemp("html") / "made", sweep, records).path
    (path / "tokens").mkdir()
    lengths = {"data": HOSTILE[2], "rows_by_length": {"5": 2, "60": 1, "100": 1}}
    (path / "tokens" / "t.lengths.json").write_text(json.dumps(lengths))
    with redirect_stdout(StringIO()) as out:
        assert main(["report", str(path), "--charts"]) == 0
    assert "report.html" in out.getvalue()
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not is_installed():
        missing = "no Chromium here: apt-get install chromium chromium-driver"
        if os.environ.get("MEMEXP_REQUIRE_CHROMIUM"):
            pytest.fail(missing)
        pytest.skip(missing)
    with chromium() as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, folder: Path) -> Browser:
    browser.open(folder / "report.html")
    return browser


def rows(page: Browser) -> list[str]:
    """The ids of the rows that are shown, told by their options."""
    ids = dict(zip([(text, off) for text in HOSTILE for off in ("false", "true")], "abcdef", strict=True))
    options = page.run(
        "return [...document.querySelectorAll('#cells tbody tr')]"
        ".map(row => [row.cells[0].textContent, row.cells[1].textContent])"
    )
    return [ids[whole(shown), offload] for shown, offload in options]


def whole(shown: str) -> str:
    """The option behind a name that was shortened, by the letters that are left of it."""
    return next(text for text in HOSTILE if text.startswith(shown.partition("…")[0]))


def header(page: Browser, name: str) -> object:
    return page.driver.find_element(By.XPATH, f"//table[@id='cells']//th[button='{name}']")


def test_the_page_asks_for_nothing_but_itself_and_says_nothing_on_the_console(page: Browser, folder: Path) -> None:
    asked = [url for url in page.requested if not url.startswith("data:")]
    assert asked == [(folder / "report.html").as_uri()]
    assert page.said == []


def test_the_page_cannot_ask_for_anything_either(page: Browser) -> None:
    page.run("window.loaded = []; for (const tag of ['img', 'script']) { const made = document.createElement(tag);"
             " made.onload = () => loaded.push('loaded'); made.onerror = () => loaded.push('refused');"
             " made.src = 'report.html'; document.body.append(made); }")  # fmt: skip
    page.wait_for("return loaded.length === 2")
    assert page.run("return loaded") == ["refused", "refused"]


def test_what_records_say_is_shown_as_text(page: Browser) -> None:
    assert page.run("return window.hacked") is None
    assert page.run("return document.querySelectorAll('img, main script, iframe').length") == 0
    assert page.run("return document.querySelector('h1').textContent") == HOSTILE[0]
    assert page.run("return document.getElementById('command').textContent") == f"memexp {HOSTILE[1]}"
    text = page.run("return document.querySelector('main').textContent")
    assert REASON in text and "card <i>" in text and HOSTILE[2] in text
    drawn = page.run("return document.getElementById('chart-category').textContent")
    assert "<img" in drawn


def test_what_a_chart_says_under_the_pointer_is_text_too(page: Browser) -> None:
    bar = page.driver.find_element(By.CSS_SELECTOR, "#chart-category .mark-rect path[aria-label*='img']")
    ActionChains(page.driver).scroll_to_element(bar).move_to_element(bar).perform()
    shown = page.wait_for("return document.querySelector('#vg-tooltip-element.visible')?.textContent")
    assert "<img src=x on" in shown and "GiB" in shown
    assert page.run("return window.hacked") is None
    assert page.run("return document.querySelectorAll('img').length") == 0


def test_every_cell_has_a_row_and_those_that_did_not_run_say_why(page: Browser) -> None:
    assert rows(page) == list("abcdef")
    reasons = page.run("return [...document.querySelectorAll('#cells td.reason')].map(cell => cell.textContent)")
    assert "37.1" in reasons[0] and "2.6 GiB short" in reasons[0]
    assert REASON in reasons[1]
    assert page.run("return document.querySelector('#cells tbody tr td.n').textContent").startswith("~8.00 GiB")


def test_numbers_sort_by_value_both_ways_with_unknown_ones_last(page: Browser) -> None:
    by_peak = sorted(PEAKS, key=PEAKS.__getitem__)
    button = page.driver.find_element(By.XPATH, "//table[@id='cells']//th/button[.='peak allocated']")
    for expected, direction in ((by_peak, "ascending"), (by_peak[::-1], "descending")):
        button.send_keys(Keys.ENTER)
        assert rows(page) == [*expected, "d", "f"]
        assert header(page, "peak allocated").get_attribute("aria-sort") == direction  # type: ignore[attr-defined]
    button.click()
    assert rows(page) == list("abcdef")
    assert header(page, "peak allocated").get_attribute("aria-sort") == "none"  # type: ignore[attr-defined]


def test_words_and_options_filter_the_rows_and_the_count_says_how_many_are_left(page: Browser) -> None:
    page.driver.find_element(By.CSS_SELECTOR, "input[type=search]").send_keys("tensor failed")
    assert rows(page) == ["f"]
    assert page.run("return document.querySelector('[role=status]').textContent") == "1 of 6 cells"
    page.driver.find_element(By.CSS_SELECTOR, "input[type=search]").send_keys(Keys.BACKSPACE * len("tensor failed"))
    page.driver.find_element(By.XPATH, "//label[contains(., 'offload')]//option[.='true']").click()
    assert rows(page) == ["b", "d", "f"]
    page.driver.find_element(By.XPATH, "//label[contains(., 'status')]//option[.='ok']").click()
    assert rows(page) == ["b"]


def test_the_front_is_numbered_in_the_table_and_listed_below_the_chart(page: Browser) -> None:
    tagged = page.run(
        "return [...document.querySelectorAll('.tag.front')].map(tag => [tag.textContent, tag.closest('tr').rowIndex])"
    )
    assert sorted(tagged) == [[f"front {n}", "abcdef".index(plan_id) + 1] for n, plan_id in enumerate(ON_THE_FRONT, 1)]
    listed = page.run("return [...document.querySelectorAll('ol.notes li')].map(item => item.textContent)")
    assert [re.findall(r"~(\S+) GiB, ~(\S+) tokens/s", line) for line in listed] == [
        [("6.00", "900")], [("8.00", "1,000")], [("10.00", "1,500")]
    ]  # fmt: skip


def test_every_chart_is_drawn_and_has_words_and_a_table_beside_it(page: Browser) -> None:
    keys = page.run("return [...document.querySelectorAll('.chart')].map(chart => chart.id)")
    assert keys == [f"chart-{key}" for key in ("speed", "category", "phase", "effects", "lengths")]
    for key in keys:
        assert page.run("return document.querySelectorAll(`#${arguments[0]} svg path, svg rect`).length", key) > 3
        words = page.run("return document.querySelector(`figure:has(#${arguments[0]}) .about`).textContent", key)
        assert page.run("return document.getElementById(arguments[0]).getAttribute('aria-label')", key) == words
    page.run("document.querySelectorAll('figure details').forEach(details => { details.open = true; })")
    page.wait_for("return document.querySelectorAll('figure details table').length === 5")
    shown = page.run("return document.querySelector('details[data-figure=category] tbody').textContent")
    assert shown.count("weights4") == len(PEAKS)


def test_the_charts_are_there_as_pictures_for_who_asks(folder: Path) -> None:
    names = {f"{key}.png" for key in ("speed", "category", "phase", "effects", "lengths")}
    assert {path.name for path in (folder / "charts").iterdir()} == names


def test_the_command_of_a_cell_is_copied_as_it_is_typed(page: Browser) -> None:
    page.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    page.driver.find_element(By.CSS_SELECTOR, "#cells tbody .copy").click()
    assert page.wait_for("return window.copied") == REPLAY
    assert page.wait_for("return document.querySelector('#cells tbody .copy').textContent === 'Copied'")


def test_a_change_to_a_dark_screen_turns_page_and_charts_dark(page: Browser) -> None:
    def colours() -> list[str]:
        found: list[str] = page.run(
            "return [getComputedStyle(document.body).backgroundColor, "
            "document.querySelector('#chart-speed text').getAttribute('fill')]"
        )
        return found

    def lightness(colour: str) -> float:
        digits = re.findall(r"[0-9a-f]{2}", colour) if colour.startswith("#") else []
        return sum(int(n, 16) for n in digits) / 3 if digits else sum(map(int, re.findall(r"\d+", colour))) / 3

    paper, ink = map(lightness, colours())
    assert paper > 200 > ink
    page.emulate(1400, "dark")
    page.wait_for("return document.documentElement.dataset.drawn === 'dark'")
    paper, ink = map(lightness, colours())
    assert paper < 60 < ink


def test_on_a_phone_nothing_but_the_table_itself_is_wider_than_the_screen(browser: Browser, folder: Path) -> None:
    browser.open(folder / "report.html", width=400)
    assert browser.run("return document.documentElement.scrollWidth") == 400
    wide = "return [...document.querySelectorAll('.chart svg')].every(svg => svg.getBoundingClientRect().right <= 400)"
    assert browser.run(wide)


def test_a_page_of_thousands_of_cells_draws_a_hundred_rows_and_bounded_charts(browser: Browser, tmp_path: Path) -> None:
    count = 3000
    seeds = tuple(range(count))
    records = [
        made(f"{n}", (2 + n % 977) * 2**20, rate=1000.0 + n % 883, step=0.2, choices={"batch_size": n}) for n in seeds
    ]
    sweep = Sweep(name="large", axes=(Axis("batch_size", seeds, 0),), cells=tuple(record.id for record in records))
    path = folder_of(tmp_path / "large", sweep, records).path
    with redirect_stdout(StringIO()):
        main(["report", str(path)])
    browser.open(path / "report.html")
    assert browser.run("return document.querySelectorAll('#cells tbody tr').length") == 100
    assert browser.run("return document.querySelectorAll('#chart-speed svg path').length") < 2100
    browser.driver.find_element(By.ID, "more").click()
    assert browser.run("return document.querySelectorAll('#cells tbody tr').length") == 600
    one_cell_bytes = 1000
    assert (path / "report.html").stat().st_size < 1.5e6 + count * one_cell_bytes
