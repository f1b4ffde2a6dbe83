"""The examples of the README and of the site run. The first command is run by CI, which compares what it prints."""

import math
import re
import runpy
import shutil
import typing
from pathlib import Path

import numpy as np
import pytest

import pilescore as ps
from pilescore import cli
from pilescore.nonlinear import Status

ROOT = Path(__file__).parent.parent
DOCS, EXAMPLES = ROOT / "docs", ROOT / "examples"
README = (ROOT / "README.md").read_text(encoding="utf-8")


NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]\d+)?")
MOST_WORDS = 900


def blocks(kind):
    """Return the README's blocks of code of one kind."""
    return re.findall(rf"```{kind}\n(.*?)```", README, flags=re.S)


def test_it_is_short():
    assert len(README.split()) <= MOST_WORDS
    commands = [block.strip() for block in blocks("sh")]
    assert len(commands) == 2
    assert all(len(command.splitlines()) == 1 and len(command) < 100 for command in commands)
    script = (ROOT / commands[1].removeprefix("bash ")).read_text(encoding="utf-8")
    assert "-m pytest -n 2" in script


def test_links_lead_somewhere():
    links = [link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert len(links) > 10
    for path, _, place in links:
        assert (ROOT / path).exists(), path
        if place:
            headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(encoding="utf-8"), flags=re.M)
            assert place in [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


@pytest.mark.slow
def test_the_example_prints_what_it_says(capsys):
    (code,), printed = blocks("python"), blocks("text")[1]
    assert len(code.splitlines()) <= 12
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    out = capsys.readouterr().out
    assert NUMBER.sub("…", out) == NUMBER.sub("…", printed)
    # How many evaluations rounding adds at the end depends on the machine, and so does a value that hardly matters:
    # values may differ by half of their standard errors.
    out, printed = (re.sub(r"after \d+ evaluations", "", text) for text in (out, printed))
    pairs = [re.findall(r"\w+ = (\S+) ± ([^\s)]+)", text) for text in (out, printed)]
    for (now, error), (then, stated) in zip(*pairs, strict=True):
        assert abs(float(now) - float(then)) < 0.5 * float(stated)
        assert 0.5 < float(error) / float(stated) < 2.0
    out, printed = (re.sub(r"\w+ = \S+ ± [^\s)]+", "", text) for text in (out, printed))
    np.testing.assert_allclose(*([float(each) for each in NUMBER.findall(text)] for text in (out, printed)), rtol=0.05)
    best = names["best"]
    assert best.converged
    assert abs(best.values["rate"] - 0.5) < best.standard_errors["rate"]


@pytest.mark.study
@pytest.mark.slow
def test_the_file_is_the_same_problem(tmp_path, capsys):
    """The readings are those of the example, and the command prints the line of the README.

    An interval comes from weighted points, so its ends may differ by half a standard error.
    """
    (code,), (text,), session = blocks("python"), blocks("toml"), blocks("text")[2]
    u, t = (re.findall(r"[\d.]+", re.search(rf"{name} ?= ?\[(.*?)\]", code)[1]) for name in ("tea", "at"))
    (tmp_path / "cup.csv").write_text("t,u\n" + "".join(f"{t},{u}\n" for t, u in zip(t, u, strict=True)))
    (tmp_path / "cup.toml").write_text(text, encoding="utf-8")
    assert "select cup.toml --out found" in session
    assert cli.main(["select", str(tmp_path / "cup.toml"), "--out", str(tmp_path / "found")]) == 0
    lines = [re.search(r"rate = .*", text)[0] for text in (session, capsys.readouterr().out)]
    assert [NUMBER.sub("", line) for line in lines] == [NUMBER.sub("", lines[0])] * 2
    (value, error, level, *ends), again = ([float(each) for each in NUMBER.findall(line)] for line in lines)
    assert again[:3] == pytest.approx([value, error, level], rel=2e-3)
    assert again[3:] == pytest.approx(ends, abs=0.5 * error)


def executed(page, **names):
    """Run the blocks of a page one after the other, and return its names."""
    found = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.S)
    assert found
    for block in found:
        exec(compile(block, page, "exec"), names)
    return names


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        "index.md",
        "conventions.md",
        "choosing.md",
        "diagnosis.md",
        *(f"how-to/{path.name}" for path in sorted((DOCS / "how-to").glob("*.md")) if path.name != "index.md"),
    ],
)
def test_page_of_the_site(page):
    executed(page)


def test_checks_are_named_on_the_page_on_diagnosis():
    page = (DOCS / "diagnosis.md").read_text(encoding="utf-8")
    for name in ps.diagnosis.CHECK_NAMES:
        assert f"`{name}`" in page


@pytest.mark.slow
def test_page_on_nonlinear_equations():
    names = executed("nonlinear.md")
    assert names["solved"].converged
    best = names["best"]
    assert abs(best.values["nu"] - 0.1) < 3 * best.standard_errors["nu"]
    page = (DOCS / "nonlinear.md").read_text(encoding="utf-8")
    for status in typing.get_args(Status):
        assert f"`{status}`" in page


@pytest.mark.slow
def test_page_on_networks(capsys):
    names = executed("networks.md")
    found = names["found"]
    assert found.misfit < 1e-3
    assert abs(found.mean([1.0])[0] - math.exp(-1)) < 0.02
    assert names["last"].parameters == 10
    assert "training loss" in capsys.readouterr().out


@pytest.mark.study
@pytest.mark.slow
def test_page_on_problem_files(tmp_path, monkeypatch):
    page = DOCS / "problems.md"
    keys = runpy.run_path(str(DOCS / "keys.py"))
    assert page.read_text(encoding="utf-8") == keys["page"](page.read_text(encoding="utf-8")), "run docs/keys.py"
    found = re.findall(r"```(toml|python)\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S)
    assert [kind for kind, _ in found] == ["toml", "toml", "toml", "python"]
    toml, python = "".join(text for _, text in found[:3]), found[3][1]
    shutil.copy(EXAMPLES / "transport" / "stations.csv", tmp_path)
    (tmp_path / "problem.toml").write_text(toml, encoding="utf-8")
    problem = ps.load_problem(tmp_path / "problem.toml")
    assert problem.score == ps.Score("auto")
    assert list(problem.derived) == ["peclet"]
    assert cli.main(["new", str(tmp_path / "rod")]) == 0
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(python, "problems.md", "exec"), names)
    found = names["found"]
    assert abs(found.values["diffusivity"] - 0.3) < 2 * found.standard_errors["diffusivity"]
    # A newcomer's first result: nothing to explain away.
    assert found.summary.warnings == []
    assert list(found.diagnosis) == []


@pytest.mark.slow
def test_page_on_large_problems():
    page = (DOCS / "scale.md").read_text(encoding="utf-8")
    line = np.linspace(-1, 1, 40)
    at = np.stack([line, np.cos(3 * line)], axis=1)
    model = ps.Model(ps.RBF(bandwidth=0.5), data=ps.observe(ps.identity, np.sin(3 * line), at=at), gamma=1e-2)
    names: dict[str, object] = {"ps": ps, "model": model, "over": {"kernel.bandwidth": (0.1, 2.0)}}
    found = [block for block in re.findall(r"```python\n(.*?)```", page, flags=re.S) if "tcp://" not in block]
    assert len(found) == 3
    for block in found:
        exec(compile(block, "scale.md", "exec"), names)
    assert names["best"].converged
