"""The public interface: what it lists, that every name has a docstring with an example, and how long signatures are."""

import ast
import collections
import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

import pilescore as ps
from pilescore.equations import operators

SOURCE = Path(ps.__file__).parent
PAGES = sorted((Path(__file__).parent.parent / "docs" / "api").glob("*.md"))
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
NAMESPACES = ("kernels", "domains", "quadrature", "solvers", "errors")
MOST_NAMES, MOST_PARAMETERS = 64, 8


def public_imports():
    """Return the names that the package imports for its users, without the namespaces that wait for their first use."""
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 1]
    return [alias.name for node in froms for alias in node.names if alias.asname is None]


def resolve(path):
    """Return the object at a dotted path such as `pilescore.kernels.Periodic`."""
    module, *names = path.split(".")
    found = importlib.import_module(module)
    for name in names:
        module = f"{module}.{name}"
        found = getattr(found, name, None) or importlib.import_module(module)
    return found


def public_names():
    """Return the dotted paths of all public names: top level, namespaces, and what the API pages list besides."""
    top = [f"pilescore.{name}" for name in ps.__all__ if not inspect.ismodule(getattr(ps, name))]
    inside = [f"pilescore.{space}.{name}" for space in NAMESPACES for name in getattr(ps, space).__all__]
    return list(dict.fromkeys([*top, *inside, *api_names()]))


def api_names():
    """Return the dotted paths that the API pages show; PyTorch need not be installed for the others."""
    shown = [path for page in PAGES for path in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.M)]
    return [path for path in shown if not path.startswith("pilescore.networks.torch.")]


def text_below(module, name):
    """Return the string below the assignment of a name, which is its documentation."""
    body = ast.parse(inspect.getsource(module)).body
    [at] = [i for i, node in enumerate(body) if isinstance(node, ast.Assign) and node.targets[0].id == name]
    return inspect.cleandoc(ast.literal_eval(body[at + 1].value))


def text_of_function(path, name):
    """Return the docstring of a function in a module that need not be importable."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    [found] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return ast.get_docstring(found)


def own_text(path):
    """Return the docstring of a name itself, not an inherited one."""
    if path == "pilescore.identity":
        return text_below(operators, "identity")
    named = resolve(path)
    return inspect.cleandoc((vars(named)["__doc__"] if isinstance(named, type) else named.__doc__) or "")


def is_documented(text):
    """Return whether a docstring begins with one sentence on a line of its own and has an example."""
    summary = text.split("\n\n")[0]
    return bool(re.fullmatch(r"\S[^\n]*[^.\s]\.", summary)) and "\nExamples\n--------\n" in text and ">>> " in text


def is_own(function):
    """Return whether a method is written in this package, not inherited from a dependency such as pydantic."""
    return function.__module__.split(".")[0] == "pilescore"


def in_order(names):
    """Return names as linters sort them: constants, classes, the rest."""
    return sorted(names, key=lambda name: (re.fullmatch("[A-Z0-9]{2,}", name) is None, name[0].islower(), name))


def test_all_is_complete_and_in_order():
    assert sorted(ps.__all__) == sorted(public_imports())
    assert ps.__all__ == in_order(ps.__all__)
    assert len({*ps.__all__}) == len(ps.__all__) <= MOST_NAMES


@pytest.mark.parametrize("space", NAMESPACES)
def test_namespaces_list_public_names_in_order(space):
    names = getattr(ps, space).__all__
    assert names == in_order(names)
    assert len({*names}) == len(names)
    assert not [name for name in names if name.startswith("_") or not hasattr(getattr(ps, space), name)]


def test_namespaces_list_what_the_api_pages_show():
    shown = {resolve(path) for path in api_names() if path != "pilescore.identity"}
    for space in NAMESPACES:
        missing = [name for name in getattr(ps, space).__all__ if getattr(getattr(ps, space), name) not in shown]
        assert not missing, f"not on a page of docs/api: {space}: {missing}"
    for path in api_names():
        _, *space, name = path.split(".")
        if space and space[0] in NAMESPACES:
            assert name in getattr(ps, space[0]).__all__, path


def test_the_api_pages_show_every_name_at_the_top_level():
    shown = set(api_names())
    assert not [
        name for name in ps.__all__ if not inspect.ismodule(getattr(ps, name)) and f"pilescore.{name}" not in shown
    ]


@pytest.mark.parametrize("path", public_names())
def test_every_name_has_a_docstring_with_an_example(path):
    assert is_documented(own_text(path))


def test_network_pile_of_torch_has_one_too():
    assert is_documented(text_of_function(SOURCE / "networks" / "torch.py", "network_pile"))


def test_the_example_of_the_identity_runs():
    """It is no function: pytest does not find it."""
    test = doctest.DocTestParser().get_doctest(own_text("pilescore.identity"), {}, "identity", None, 0)
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    runner.run(test)
    assert runner.summarize(verbose=False) == doctest.TestResults(failed=0, attempted=4)


def test_no_public_function_has_many_parameters():
    """Options that travel together are one object. Results are made by the library, and may have many fields."""
    functions = {}
    for path in public_names():
        named = resolve(path)
        if inspect.isfunction(named):
            functions[path] = named
        elif isinstance(named, type):
            methods = inspect.getmembers(named, lambda member: inspect.isfunction(member) and is_own(member))
            functions |= {f"{path}.{name}": method for name, method in methods if not name.startswith("_")}
    counts = {path: len(inspect.signature(function).parameters) for path, function in functions.items()}
    assert {path: count for path, count in counts.items() if count > MOST_PARAMETERS} == {}


def test_a_class_name_is_used_once():
    places = collections.defaultdict(list)
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(file.relative_to(SOURCE)))
    duplicates = {name: files for name, files in places.items() if len(files) > 1}
    assert not duplicates, "\n".join(f"{name}: {', '.join(files)}" for name, files in duplicates.items())
