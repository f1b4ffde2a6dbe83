"""A real browser for tests of pages: headless Chromium, driven by playwright."""

import dataclasses
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


def find_chromium() -> str | None:
    """Return the path of an installed browser."""
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return next((path for path in found if path), None)


@contextmanager
def running_browser() -> Iterator[Any]:
    """Run a browser, or skip the test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs the package playwright")
    path = find_chromium()
    if path is None:
        missing = "needs a browser: apt-get install chromium"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)  # CI is to see the pages
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


@dataclasses.dataclass
class Page:
    """An open page, with all that went wrong on it and all that it asked for."""

    tab: Any
    errors: list[str]
    requests: list[str]


def open_page(browser: Any, path: Path, width: int, phone: bool = False) -> Page:
    """Open a file in a window of some width and wait until all panels are drawn."""
    size = {"width": width, "height": 850}
    tab = browser.new_context(viewport=size, has_touch=phone, is_mobile=phone).new_page()
    page = Page(tab, [], [])
    tab.on("console", lambda said: page.errors.append(said.text) if said.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: page.errors.append(str(error)))
    tab.on("request", lambda request: page.requests.append(request.url))
    tab.goto(path.absolute().as_uri())
    tab.wait_for_function("[...document.querySelectorAll('.plot')].every((plot) => plot.querySelector('.xtick, .xy'))")
    # Plotly lays out once more when it knows the size of its texts.
    tab.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page


def check_page(page: Page) -> dict[str, Any]:
    """Measure a page; `problems` is empty if it is as it should be."""
    measured = page.tab.evaluate(
        """() => {
            const size = (part) => { const box = part.getBoundingClientRect(); return [box.width, box.height]; };
            const shown = (part) => getComputedStyle(part).display !== "none";
            return {
                plots: [...document.querySelectorAll(".plot")].map(size),
                drawings: [...document.querySelectorAll(".plot .main-svg:first-child")].map(size),
                width: document.documentElement.scrollWidth,
                window: innerWidth,
                figures: [...document.querySelectorAll("figure")].map((part) => part.id),
                captions: [...document.querySelectorAll("figcaption")].map((part) => part.innerText),
                buttons: [...document.querySelectorAll(".modebar-btn")].map((part) => part.dataset.title),
                panels: [...document.querySelectorAll(".panels")].map(shown),
                pictures: [...document.querySelectorAll(".static")].map(shown),
            };
        }"""
    )
    outside = [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))]
    problems = [f"console: {error}" for error in page.errors] + [f"request: {url}" for url in outside]
    for what in ("plots", "drawings"):
        problems += [f"one of the {what} is {size}" for size in measured[what] if min(size) <= 100]
    if len(measured["plots"]) != len(measured["drawings"]):
        problems.append(f"{len(measured['drawings'])} drawings for {len(measured['plots'])} panels")
    if measured["width"] > measured["window"]:
        problems.append(f"the page is {measured['width']} px wide in a window of {measured['window']} px")
    if not all(measured["panels"]) or any(measured["pictures"]):
        problems.append("a picture for print is on the screen")
    problems += [f"button: {title}" for title in measured["buttons"] if re.search("share|cloud", title or "", re.I)]
    return measured | {"problems": problems}


def printed(page: Page) -> tuple[list[bool], list[bool]]:
    """Return which interactive figures and which pictures are shown in print, then go back to the screen."""
    page.tab.emulate_media(media="print")
    measured = page.tab.evaluate(
        """() => [".panels", ".static"].map((what) => [...document.querySelectorAll(what)].map((part) => {
            const box = part.getBoundingClientRect(); return box.width > 100 && box.height > 100; }))"""
    )
    page.tab.emulate_media(media="screen")
    return measured[0], measured[1]


def hover(page: Page, panel: int = 0, curve: str = "") -> list[str]:
    """Move the mouse over the middle point of a curve (or of a picture) of a panel and return the hover's texts."""
    plot = page.tab.locator(".plot").nth(panel)
    plot.evaluate("(plot) => plot.scrollIntoView({ block: 'center' })")
    place = plot.evaluate(
        """(plot, name) => {
            const trace = plot._fullData.find((one) => one.hoverinfo !== "skip" && one.name.includes(name));
            const layout = plot._fullLayout, box = plot.getBoundingClientRect();
            const axis = (id) => layout[id[0] + "axis" + id.slice(1)];
            const x = axis(trace.xaxis || "x"), y = axis(trace.yaxis || "y"), middle = Math.floor(trace.x.length / 2);
            const height = trace.type === "heatmap" ? trace.y[Math.floor(trace.y.length / 2)] : trace.y[middle];
            return [box.x + x._offset + x.d2p(trace.x[middle]), box.y + y._offset + y.d2p(height)];
        }""",
        curve,
    )
    page.tab.mouse.move(place[0] - 3, place[1])
    page.tab.mouse.move(*place)
    label = plot.locator(".hoverlayer .hovertext")
    label.first.wait_for(state="attached", timeout=5000)
    return list(label.all_text_contents())


def click_legend(page: Page, panel: int = 0, entry: int = 0) -> list[Any]:
    """Click a legend entry of a panel and return, for each of its curves and bands, whether it is then shown."""
    plot = page.tab.locator(".plot").nth(panel)
    plot.evaluate("(plot) => plot.scrollIntoView({ block: 'center' })")
    before = plot.evaluate("(plot) => JSON.stringify(plot._fullData.map((one) => one.visible))")
    box = plot.locator(".legendtoggle").nth(entry).bounding_box()
    page.tab.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.tab.wait_for_function(
        "([plot, before]) => JSON.stringify(plot._fullData.map((one) => one.visible)) !== before",
        arg=[plot.element_handle(), before],
    )
    return [shown is True for shown in plot.evaluate("(plot) => plot._fullData.map((one) => one.visible)")]


def swipe(page: Page, panel: int = 0) -> float:
    """Swipe a finger up over a panel and return by how many pixels the page scrolled."""
    plot = page.tab.locator(".plot").nth(panel)
    plot.evaluate("(plot) => plot.scrollIntoView({ block: 'center' })")
    box, before = plot.bounding_box(), page.tab.evaluate("scrollY")
    x, y = box["x"] + box["width"] / 2, box["y"] + 150
    session = page.tab.context.new_cdp_session(page.tab)
    for kind, places in (("touchStart", [0]), ("touchMove", range(10, 110, 10)), ("touchEnd", [None])):
        for up in places:
            points = [] if up is None else [{"x": x, "y": y - up}]
            session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
            page.tab.wait_for_timeout(16)
    page.tab.wait_for_timeout(200)
    return float(page.tab.evaluate("scrollY") - before)
