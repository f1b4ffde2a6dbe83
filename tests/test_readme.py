"""The README's own examples run. Its first command is run by CI, which compares what it prints."""

import doctest
import re
from pathlib import Path

import numpy as np

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


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
    post, X, y = (names[name] for name in ("post", "X", "y"))
    np.testing.assert_allclose(post.mean(X), y, atol=0.02)
    assert names["best"].converged
    assert set(names["kernels"].table.index) == {"RBF", "Matern(3.5)"}


def test_page_on_choosing():
    page = (Path(__file__).parent.parent / "docs" / "choosing.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page, flags=re.S):
        exec(compile(block, "choosing.md", "exec"), names)
    assert names["best"].converged
