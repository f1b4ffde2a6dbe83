"""Read the whole site in a browser, as on a desk and on a phone: `python .ci/read_site.py site [pictures]`.

Every page has to load without a word in the console and without a request that leaves the machine, to fit its window,
to have all its pictures and formulas drawn, and links that lead somewhere. With a second argument, pictures of all
pages are written there.
"""

import sys
import urllib.parse
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.browser import running_browser

WIDTHS = {"desk": (1280, 900), "phone": (390, 844)}
MEASURED = """() => ({
    width: document.documentElement.scrollWidth,
    window: innerWidth,
    links: [...document.querySelectorAll("a[href], link[href]")].map((part) => part.href),
    pictures: [...document.images].filter((part) => !part.complete || !part.naturalWidth).map((part) => part.src),
    formulas: [...document.querySelectorAll("math")].filter((part) => !part.getBoundingClientRect().width).length,
    raw: [...document.querySelectorAll("article p, article li, article td")].map((part) => {
        const text = part.cloneNode(true);
        text.querySelectorAll("code, math").forEach((inside) => inside.remove());
        return text.textContent.match(/\\\\(frac|sum|mathrm|lVert)|\\$[^$\\n]{1,80}\\$/)?.[0];
    }).filter(Boolean),
    ids: [...document.querySelectorAll("[id], a[name]")].map((part) => part.id || part.name),
})"""


class Reader:
    """A window of some width, and what went wrong in it since it was last asked."""

    def __init__(self, browser, name: str) -> None:
        width, height = WIDTHS[name]
        window = browser.new_context(viewport={"width": width, "height": height}, is_mobile=name == "phone")
        self.name, self.tab, self.problems = name, window.new_page(), []
        self.tab.on("console", lambda said: self.problems.append(f"console: {said.text}"))
        self.tab.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.tab.on("requestfailed", self.failed)
        self.tab.on("request", lambda request: self.asked(request.url))

    def asked(self, url: str) -> None:
        """Nothing is to be asked for that is not on this machine."""
        if not url.startswith(("file:", "data:", "blob:")):
            self.problems.append(f"asked for {url}")

    def failed(self, request) -> None:
        """All is to be found; what the next page cut short does not count."""
        if request.failure != "net::ERR_ABORTED":
            self.problems.append(f"not loaded: {request.url}")

    def look(self, path: Path, folder: Path | None) -> tuple[list[str], dict]:
        """Open a page, and return what is wrong with it and what it has."""
        self.problems.clear()
        self.tab.goto(path.absolute().as_uri())
        found = self.tab.evaluate(MEASURED)
        problems = list(self.problems)
        if found["width"] > found["window"]:
            problems.append(f"{found['width']} px wide in a window of {found['window']} px")
        problems += [f"picture missing: {source}" for source in found["pictures"]]
        problems += ["a formula is not drawn"] * bool(found["formulas"])
        problems += [f"LaTeX in the text: {text}" for text in found["raw"]]
        if folder:
            name = "-".join((*path.with_suffix("").parts[-2:], self.name))
            self.tab.screenshot(path=folder / f"{name}.png", full_page=True)
        return problems, found


def searched(browser, path: Path) -> list[str]:
    """Search the site from a page opened from disk."""
    tab = browser.new_page()
    tab.goto(path.absolute().as_uri())
    try:
        tab.locator("input[name=query]").fill("bandwidth")
        tab.locator(".md-search-result__item").first.wait_for(state="attached", timeout=20_000)
    except Exception as failure:
        return [f"the search finds nothing: {failure}"]
    return []


def dead(pages: dict[Path, dict], root: Path) -> list[str]:
    """Return links that lead nowhere: to a file that is not there, or to a place that a page does not have."""
    places = {path.resolve(): set(found["ids"]) for path, found in pages.items()}
    wrong = []
    for path, found in pages.items():
        for link in set(found["links"]):
            parts = urllib.parse.urlsplit(link)
            if parts.scheme != "file":
                continue
            target = Path(urllib.parse.unquote(parts.path)).resolve()
            place = urllib.parse.unquote(parts.fragment)
            missing = place and not place.startswith("__") and target in places and place not in places[target]
            if not target.exists() or missing:
                wrong.append(f"{path.relative_to(root)}: dead link {link}")
    return wrong


def main() -> None:
    """Read all pages, and say what is wrong with them."""
    root = Path(sys.argv[1])
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    paths = sorted(path for path in root.rglob("*.html") if path.name != "404.html")
    problems, pages = [], {}
    with running_browser() as browser:
        problems += searched(browser, root / "index.html")
        for reader in [Reader(browser, name) for name in WIDTHS]:
            for path in paths:
                wrong, pages[path] = reader.look(path, folder)
                problems += [f"{path.relative_to(root)}, {reader.name}: {each}" for each in wrong]
    problems += dead(pages, root)
    print(f"{len(paths)} pages, {sum('.html' in link for found in pages.values() for link in found['links'])} links")
    sys.exit("\n".join(problems) or 0)


if __name__ == "__main__":
    main()
