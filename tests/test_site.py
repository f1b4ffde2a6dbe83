"""What the site has to have, without building it."""

import collections
import re
import runpy
from pathlib import Path

import pilescore as ps

ROOT = Path(__file__).parent.parent
API = ROOT / "docs" / "api"


def test_every_public_name_is_on_one_page_of_the_reference():
    pages = {path.name: path.read_text(encoding="utf-8") for path in API.glob("*.md")}
    listed = re.findall(r"\[pilescore\.(\w+)\]", pages.pop("index.md"))
    documented = collections.Counter(re.findall(r"^::: pilescore\.(\w+)$", "\n".join(pages.values()), flags=re.M))
    assert sorted(documented) == sorted(listed) == sorted(ps.__all__)
    assert set(documented.values()) == {1}


def test_every_script_has_its_place_in_the_gallery():
    order = runpy.run_path(str(ROOT / "docs" / "gallery_order.py"))["ORDER"]
    assert sorted(order) == sorted(path.stem for path in (ROOT / "examples" / "gallery").glob("*.py"))
    assert len(order) >= 10


def test_benchmarks_have_their_marks():
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    begun, ended = (re.findall(rf"<!-- (.*): {word} -->", page) for word in ("begin", "end"))
    assert begun == ended
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {"tables", "plan"}
    assert {name.split()[0] for name in begun} == scripts
