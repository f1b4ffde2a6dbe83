"""The public interface: every name is listed, and has a docstring of its own with an example that runs."""

import ast
import doctest
import inspect
import re
from pathlib import Path

import pytest

import pilescore as ps
from pilescore import operators

SOURCE = Path(ps.__file__).parent
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def public_imports():
    """Return the names that the package imports for its users."""
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 1]
    return [alias.asname or alias.name for node in froms for alias in node.names]


def text_below(module, name):
    """Return the string that stands below the assignment of a name, where documentation is read from."""
    body = ast.parse(inspect.getsource(module)).body
    [at] = [i for i, node in enumerate(body) if isinstance(node, ast.Assign) and node.targets[0].id == name]
    return inspect.cleandoc(ast.literal_eval(body[at + 1].value))


def text_of_function(path, name):
    """Return the docstring of a function in a module that need not be importable."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    [found] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return ast.get_docstring(found)


def own_text(name):
    """Return the docstring of a name itself, not one that it inherits."""
    named = getattr(ps, name)
    if name == "identity":
        return text_below(operators, name)
    return inspect.cleandoc(vars(named)["__doc__"] if isinstance(named, type) else named.__doc__)


def is_documented(text):
    """Whether a docstring begins with a sentence, and has an example."""
    summary = text.split("\n\n")[0]
    return bool(re.fullmatch(r"\S[^\n]*[^.\s]\.", summary)) and "\nExamples\n--------\n" in text and ">>> " in text


def test_all_is_complete_and_in_order():
    assert sorted(ps.__all__) == sorted(public_imports())
    kinds = [re.fullmatch("[A-Z0-9]{2,}", name) is None for name in ps.__all__]  # constants, classes, the rest
    order = [(plain, name[0].islower(), name) for plain, name in zip(kinds, ps.__all__, strict=True)]
    assert order == sorted(order)
    assert len({*ps.__all__}) == len(ps.__all__)


@pytest.mark.parametrize("name", ps.__all__)
def test_every_name_has_a_docstring_with_an_example(name):
    assert is_documented(own_text(name))


def test_network_pile_of_torch_has_one_too():
    assert is_documented(text_of_function(SOURCE / "torch.py", "network_pile"))


def test_the_example_of_the_identity_runs():
    """It is no function: pytest does not find it."""
    test = doctest.DocTestParser().get_doctest(own_text("identity"), {}, "identity", None, 0)
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    runner.run(test)
    assert runner.summarize(verbose=False) == doctest.TestResults(failed=0, attempted=4)
