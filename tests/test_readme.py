"""The examples of the README and of the site run. The first command is run by CI, which compares what it prints."""

import dataclasses
import doctest
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
from pilescore.gauss_newton import Status

ROOT = Path(__file__).parent.parent
DOCS, EXAMPLES = ROOT / "docs", ROOT / "examples"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_python_blocks():
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.S)
    assert len(blocks) == 3
    for block in blocks:
        if block.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(block, names, "README", "README.md", 0)
            results = doctest.DocTestRunner().run(test, clear_globs=False)
            assert results.attempted > 0
            assert results.failed == 0
        else:
            exec(compile(block, "README.md", "exec"), names)
    best, X = names["best"], names["X"]
    assert best.converged
    assert abs(best.values["speed"] - 0.5) < 3 * best.standard_errors["speed"]
    np.testing.assert_allclose(names["post"].mean(X), np.sin(2 * np.pi * (X[:, 1] - 0.5 * X[:, 0])), atol=0.1)
    assert set(names["kernels"].table.index) == {"RBF", "Matern(3.5)"}


def executed(page, **names):
    """Run the blocks of a page one after the other, and return its names."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), flags=re.S)
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    return names


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


def test_thresholds_are_named_on_the_page_on_diagnosis():
    page = (DOCS / "diagnosis.md").read_text(encoding="utf-8")
    for field in dataclasses.fields(ps.Thresholds):
        assert f"`{field.name}`" in page


def test_page_on_nonlinear_equations():
    names = executed("nonlinear.md")
    assert names["solved"].converged
    best = names["best"]
    assert abs(best.values["nu"] - 0.1) < 3 * best.standard_errors["nu"]
    page = (DOCS / "nonlinear.md").read_text(encoding="utf-8")
    for status in typing.get_args(Status):
        assert f"`{status}`" in page


def test_page_on_networks(capsys):
    names = executed("networks.md")
    found = names["found"]
    assert found.misfit < 1e-3
    assert abs(found.mean([1.0])[0] - math.exp(-1)) < 0.02
    assert names["last"].parameters == 10
    assert "training loss" in capsys.readouterr().out


def test_page_on_problem_files(tmp_path, monkeypatch):
    page = DOCS / "problems.md"
    keys = runpy.run_path(str(DOCS / "keys.py"))
    assert page.read_text(encoding="utf-8") == keys["page"](page.read_text(encoding="utf-8")), "run docs/keys.py"
    found = re.findall(r"```(toml|python)\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S)
    assert [kind for kind, _ in found] == ["toml", "toml", "python"]
    blocks = {"toml": found[0][1] + found[1][1], "python": found[2][1]}
    shutil.copy(EXAMPLES / "transport" / "stations.csv", tmp_path)
    (tmp_path / "problem.toml").write_text(blocks["toml"], encoding="utf-8")
    assert ps.load_problem(tmp_path / "problem.toml").given_physics
    assert cli.main(["new", str(tmp_path / "rod")]) == 0
    smaller = (tmp_path / "rod" / "problem.toml").read_text(encoding="utf-8").replace("nodes = 12 ", "nodes = 8 ")
    smaller = smaller.replace("starts = 2", "starts = 1").replace(
        '[[kernel]]\ntype = "matern"', '[[kernel]]\ntype = "rbf"'
    )
    (tmp_path / "rod" / "problem.toml").write_text(smaller.replace("nu = 4.5", "bandwidth = 0.3"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(blocks["python"], "problems.md", "exec"), names)
    found = names["found"]
    assert abs(found.values["diffusivity"] - 0.3) < 2 * found.standard_errors["diffusivity"]


def test_problem_in_the_readme(tmp_path):
    (text,) = re.findall(r"```toml\n(.*?)```", README, flags=re.S)
    assert cli.main(["new", str(tmp_path / "rod")]) == 0
    (tmp_path / "rod" / "shorter.toml").write_text(text, encoding="utf-8")
    short, whole = (ps.load_problem(tmp_path / "rod" / name) for name in ("shorter.toml", "problem.toml"))
    assert float(ps.pile(short.model)) == float(ps.pile(whole.model))


def test_page_on_large_problems():
    page = (DOCS / "scale.md").read_text(encoding="utf-8")
    line = np.linspace(-1, 1, 40)
    at = np.stack([line, np.cos(3 * line)], axis=1)
    model = ps.Model(ps.RBF(bandwidth=0.5), data=ps.observe(ps.identity, np.sin(3 * line), at=at), gamma=1e-2)
    names: dict[str, object] = {"ps": ps, "model": model, "over": {"kernel.bandwidth": (0.1, 2.0)}}
    blocks = [block for block in re.findall(r"```python\n(.*?)```", page, flags=re.S) if "tcp://" not in block]
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "scale.md", "exec"), names)
    assert names["best"].converged
