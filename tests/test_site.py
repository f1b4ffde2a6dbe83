"""What the site has to have, without building it."""

import pkgutil
import re
import runpy
import types
from pathlib import Path

import pilescore as ps

ROOT = Path(__file__).parent.parent
API = ROOT / "docs" / "api"


def test_every_public_name_is_on_one_page_of_the_reference():
    pages = {path.name: path.read_text(encoding="utf-8") for path in API.glob("*.md")}
    listed = re.findall(r"\[pilescore\.([\w.]+)\]", pages.pop("index.md"))
    documented = re.findall(r"^::: pilescore\.([\w.]+)$", "\n".join(pages.values()), flags=re.M)
    assert sorted(documented) == sorted(listed)
    assert len(set(documented)) == len(documented)
    public = {name for name in ps.__all__ if not isinstance(getattr(ps, name), types.ModuleType)}
    failures = {f"errors.{name}" for name, thing in vars(ps.errors).items() if is_failure(name, thing)}
    assert public | failures <= {*documented}
    for name in documented:
        assert pkgutil.resolve_name(f"pilescore.{name}") is not None


def is_failure(name, thing):
    """Whether a name of `ps.errors` is an error or a warning of the package."""
    return isinstance(thing, type) and issubclass(thing, Exception) and not name.startswith("_")


def test_every_script_has_its_place_in_the_gallery():
    order = runpy.run_path(str(ROOT / "docs" / "gallery_order.py"))["ORDER"]
    assert sorted(order) == sorted(path.stem for path in (ROOT / "examples" / "gallery").glob("*.py"))
    assert len(order) >= 10


def test_benchmarks_have_their_marks():
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    begun, ended = (re.findall(rf"<!-- (.*): {word} -->", page) for word in ("begin", "end"))
    assert begun == ended
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {"tables", "plan", "house"}
    assert {name.split()[0] for name in begun} == scripts
