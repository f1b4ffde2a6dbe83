"""Figures as files and on an HTML page, and the page in a browser."""

import dataclasses
import json
import re
from html.parser import HTMLParser

import matplotlib
import numpy as np
import plotly.graph_objects as go
import pytest

from pilescore.errors import SaveError
from pilescore.reports import matplotlib_figures, page, plotly_figures
from pilescore.reports.contents import Curve, Figure, Lines, Mark, Picture, Report, Section, TextTable
from pilescore.storage import files

from ..browser import check_page, click_legend, hover, open_page, printed, swipe

BETA = np.logspace(-2, 1, 21)
SCORE = np.log(BETA / 0.4) ** 2
HOLES = np.where(np.arange(21) % 7 == 3, np.nan, SCORE)
GRID = np.linspace(0, 1, 9)
FIELD = np.outer(np.sin(3 * GRID), np.cos(3 * GRID))
HOSTILE = "A title with <script>alert('θ')</script> & $x$"

SWEEP = Figure(
    "sweep",
    HOSTILE,
    "The estimate f̂ over β, with “quotes” & <b>signs</b>.",
    (
        Lines(
            "PILE",
            "bandwidth β",
            "PILE (nats)",
            (
                Curve("mean", BETA, SCORE, SCORE - 1, SCORE + 1, 0),
                Curve("holes", BETA, HOLES, HOLES - 1, HOLES + 1, 1, "line and dots"),
            ),
            (Mark("chosen", x=0.4), Mark("bound", y=2.0, colour=1), Mark("least", x=0.4, y=0.0), Mark("lost", x=-1.0)),
            x_log=True,
        ),
        Lines(
            "Error Δf̂",
            "bandwidth β",
            "error",
            (
                Curve("error", BETA, SCORE + 0.01, SCORE - 1, SCORE + 1, 2, "dashed"),
                Curve("time", BETA, BETA, colour=3, style="dots", axis="right"),
                Curve("nothing", BETA, np.full(21, np.inf)),
            ),
            x_log=True,
            y_log=True,
            right_label="seconds",
            right_log=True,
        ),
    ),
)
PICTURES = Figure(
    "pictures",
    "Pictures",
    "A field, a difference and nothing.",
    (
        Picture(
            "f", "x", "y", GRID, GRID, FIELD, "f", (Mark("top", x=0.5, y=0.5), Mark("cut", x=0.2)), limits=(-1.0, 1.0)
        ),
        Picture("Δf̂", "x", "y", GRID, GRID, np.where(FIELD > 0.5, np.nan, FIELD), "Δf̂", diverging=True),
        Picture("none", "x", "y", GRID, GRID, np.full((9, 9), np.nan), "none"),
        Picture("few", "x", "y", [0.0], np.append(GRID, np.nan), np.ones((10, 1)), "one"),
    ),
    3,
)
WIDE = ("word",) * 9
TABLE = TextTable("Kernels & others.", ("kernel", "error", *WIDE), (("RBF", "1e-3", *WIDE), ("Matérn", "—", *WIDE)), 1)
REPORT = Report(
    HOSTILE,
    "Which β?",
    (("0.39", "the bandwidth β"), ("1.04×", "the error over the least")),
    (Section("One <i>", ("A paragraph & more.",), (SWEEP,), (TABLE,)), Section("Two", (), (PICTURES,))),
    (("seed", "1"), ("a long word", "x" * 300)),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    directory = tmp_path_factory.mktemp("report")
    page.write_report(REPORT, directory)
    return directory / "report.html"


@pytest.fixture(scope="module")
def wide(browser, path):
    return open_page(browser, path, 1200)


class Tags(HTMLParser):
    """All tags of a page, and what stands between them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.style, self.data = [], "", "", []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "script":
            self.data.append((self.tags[-1][1].get("type"), data))
        elif self.tags and self.tags[-1][0] == "style":
            self.style += data
        self.words += data

    def named(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def tags(path):
    return Tags(path.read_text(encoding="utf-8"))


def test_png_and_pdf_files_are_complete_and_reproducible(tmp_path):
    figure = dataclasses.replace(SWEEP, panels=(SWEEP.panels[1], PICTURES.panels[0]))
    settings = dict(matplotlib.rcParams)
    first, second = (matplotlib_figures.save(figure, tmp_path / name) for name in ("one", "two"))
    assert [path.name for path in first] == [f"{figure.name}.png", f"{figure.name}.pdf"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert first[0].read_bytes().startswith(b"\x89PNG")
    assert first[1].read_bytes().startswith(b"%PDF")
    assert b"CreationDate" not in first[1].read_bytes()
    assert min(path.stat().st_size for path in first) > 10_000
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == sorted(path.name for path in first)
    assert dict(matplotlib.rcParams) == settings


def test_matplotlib_figures_show_marks_and_both_axes():
    canvas = matplotlib_figures.draw(SWEEP)
    left, middle, right = canvas.axes
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["mean", "holes", "chosen", "bound", "least"]
    assert (left.get_xscale(), left.get_yscale(), middle.get_yscale(), right.get_yscale()) == (
        "log",
        "linear",
        "log",
        "log",
    )
    assert right.get_ylabel() == "seconds"
    assert len(canvas.axes) == 3


def test_labels_of_a_short_logarithmic_axis_do_not_overlap():
    panel = Lines("short", "x", "y", (Curve("", [0.08, 0.8], [1.0, 1e4]),), x_log=True, y_log=True)
    canvas = matplotlib_figures.draw(Figure("short", "Short", "", (panel,)))
    canvas.canvas.draw()
    (axes,) = canvas.axes
    low, high = axes.get_xlim()
    shown = [label.get_text() for label in axes.get_xticklabels() if low <= label.get_position()[0] <= high]
    assert shown == ["0.1", "0.2", "0.5"]
    assert not any(label.get_text() for label in axes.get_xticklabels(minor=True))
    assert "10^{2}" in "".join(label.get_text() for label in axes.get_yticklabels())  # long enough for powers of ten


def test_a_table_formats_numbers_and_leaves_text_alone():
    table = TextTable("", ("a", "b", "c", "d"), (("0.10", 12345, 0.012345, None), ("x", np.int32(3), 2.0, np.nan)))
    assert table.rows == (("0.10", "12345", "0.0123", "—"), ("x", "3", "2", "—"))


def test_a_band_that_reaches_zero_on_a_logarithmic_axis():
    low, high = matplotlib_figures.band_of(Curve("", [1, 2, 3], [1, 2, 3], [-1, 1, np.nan], [2, 3, 4]), True)
    np.testing.assert_array_equal(low, [1, 1, np.nan])
    np.testing.assert_array_equal(high, [2, 3, 4])


@pytest.mark.parametrize(
    ("changes", "limits"),
    [
        ({}, (-2, 1)),
        ({"diverging": True}, (-2, 2)),
        ({"limits": (0.0, 3.0)}, (0, 3)),
        ({"z": np.zeros((1, 2))}, (-0.5, 0.5)),
    ],
)
def test_colour_limits(changes, limits):
    picture = Picture("", "", "", [0, 1], [0], np.array([[-2.0, 1.0]]), "")
    assert matplotlib_figures.colour_limits(dataclasses.replace(picture, **changes)) == limits


@pytest.mark.parametrize("panel", SWEEP.panels + PICTURES.panels, ids=lambda panel: panel.title)
def test_panels_are_valid_for_plotly_and_for_json(panel):
    plot = plotly_figures.plotly_panel(panel, 5)
    json.dumps(plot, allow_nan=False)
    go.Figure(plot)


def test_a_band_and_its_curve_share_one_legend_entry():
    band, line = plotly_figures.plotly_panel(SWEEP.panels[0])["data"][2:4]
    assert band["legendgroup"] == line["legendgroup"]
    assert (band["showlegend"], line.get("showlegend", True)) == (False, True)
    assert band["x"].count(None) == 4, "three holes part the band in four"


def test_a_right_axis_over_many_decades_has_powers_of_ten_only():
    right = plotly_figures.plotly_panel(SWEEP.panels[1])["layout"]["yaxis2"]
    assert (right["tickmode"], right["dtick"]) == ("linear", 1)


@pytest.mark.slow
def test_the_page_loads_no_external_files(tags):
    loads = ("src", "srcset", "href", "action", "data")
    places = [(tag, value) for tag, given in tags.tags for name, value in given.items() if name in loads]
    files = [f"figures/{figure.name}.{kind}" for figure in REPORT.figures for kind in ("png", "pdf")]
    assert [value for tag, value in places if tag == "a"] == files
    assert all(value.startswith("data:") for tag, value in places if tag != "a")
    assert not re.search(r"url\(|@import", tags.style)
    assert tags.named("html")[0]["lang"] == "en"


def test_the_page_contains_and_escapes_all_text(path, tags):
    text = path.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "alert('θ')" in tags.words
    assert [figure["id"] for figure in tags.named("figure")] == ["sweep", "pictures"]
    assert [picture["alt"] for picture in tags.named("img")] == [SWEEP.caption, PICTURES.caption]
    for words in (REPORT.lead, SWEEP.caption, TABLE.caption, "A paragraph & more.", "the bandwidth β", "One <i>"):
        assert words in tags.words
    plotted = [json.loads(data) for kind, data in tags.data if kind == "application/json" and data.strip()]
    assert len(plotted) == 6
    assert [row.get("class") for row in tags.named("tr")] == [None, None, "strong"]


def test_a_failed_write_keeps_the_old_page(tmp_path, monkeypatch):
    old = tmp_path / "report.html"
    old.write_text("old")

    def fail(source, target):
        raise OSError("no space left")

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(SaveError, match="no space left"):
        page.write_report(dataclasses.replace(REPORT, sections=()), tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("report.html", "old")]


def test_the_page_in_a_wide_window(wide):
    measured = check_page(wide)
    assert measured["problems"] == []
    assert measured["figures"] == ["sweep", "pictures"]
    assert len(measured["plots"]) == 6
    for caption, figure in zip(measured["captions"], REPORT.figures, strict=True):
        assert caption.startswith(f"{figure.title}. {figure.caption}")
    assert wide.tab.title() == HOSTILE


def test_hover_boxes_show_values(wide):
    (curve,) = hover(wide, 0, "mean")
    assert re.fullmatch(r"meanbandwidth β: 0\.3162PILE \(nats\): 0\.05\d+band: -0\.9\d+ to 1\.05\d*", curve)
    (picture,) = hover(wide, 3)
    assert re.fullmatch(r"x: 0\.5y: 0\.5Δf̂: 0\.07\d+", picture)


def test_a_legend_entry_hides_a_curve_with_its_band(wide):
    assert click_legend(wide, 0, 1) == [True, True, False, False, True, True, True]
    assert click_legend(wide, 0, 1) == [True] * 7


def test_printing_shows_static_figures(wide):
    assert printed(wide) == ([False, False], [True, True])


def test_the_page_on_a_phone(browser, path):
    opened = open_page(browser, path, 390, phone=True)
    measured = check_page(opened)
    assert measured["problems"] == []
    assert measured["window"] == 390
    assert swipe(opened) > 50


def test_without_scripts_static_figures_are_shown(browser, path):
    tab = browser.new_context(java_script_enabled=False).new_page()
    tab.goto(path.as_uri())
    assert [picture.is_visible() for picture in tab.locator(".static").all()] == [True, True]
    assert not tab.locator(".panels").first.is_visible()
