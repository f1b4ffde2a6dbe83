"""What `import pilescore` imports, and that names imported on first use behave like all others."""

import ast
import importlib.util
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import pilescore as ps

TABLES = {"click", "jinja2", "matplotlib", "pandas", "plotly", "pydantic", "xarray"}
SCIPY = {"scipy.fft", "scipy.optimize", "scipy.sparse.linalg", "scipy.stats"}
EXTRAS = {"dask", "distributed", "flax", "optax", "pyarrow", "sklearn", "torch", "zarr"}
"""Not installed unless asked for. `cloudpickle` is one of them too, but JAX imports it if it is there."""

SCORE = """
x = np.linspace(0, 1, 6)
model = ps.Model(ps.RBF(0.5), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.01)
ps.pile(model)
"""
NETWORK = "ps.network_pile(lambda p, x: p @ x, np.ones(1), model)"


def run(code):
    """Run code in a new process, and return the modules that it imported."""
    code = f"import sys\nimport numpy as np\nimport pilescore as ps\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return set(done.stdout.split())


def guarded_imports():
    """Return what the package imports for type checkers: the packages, and the names of each."""
    tree = ast.parse(Path(ps.__file__).read_text(encoding="utf-8"))
    [guarded] = [node for node in tree.body if isinstance(node, ast.If)]
    packages = [alias.name for node in guarded.body if node.module is None for alias in node.names]
    names = {node.module: tuple(alias.name for alias in node.names) for node in guarded.body if node.module}
    return packages, names


@pytest.mark.parametrize("code", ["", SCORE])
def test_scores_need_nothing_slow(code):
    slow = TABLES | SCIPY | EXTRAS
    assert run(code) & slow == set()


def test_a_network_needs_no_tables_and_no_framework():
    slow = TABLES | EXTRAS
    assert run(SCORE + NETWORK) & slow == set()


def test_every_name_is_there_without_the_extras():
    without = f"sys.modules.update(dict.fromkeys({EXTRAS | {'cloudpickle'}}))\n"
    run(f"{without}from pilescore import *\nassert set({ps.__all__}) <= set(globals())")


def test_the_table_of_names_is_what_type_checkers_see():
    assert guarded_imports() == (list(ps._LAZY), ps._LAZY)
    names = [name for names in ps._LAZY.values() for name in names]
    assert set(names) < set(ps.__all__)
    # A name that is a module too would be replaced by it as soon as somebody imports the module.
    assert not [name for name in names if importlib.util.find_spec(f"pilescore.{name}")]
    for package, members in ps._LAZY.items():
        assert inspect.ismodule(getattr(ps, package))
        assert all(getattr(ps, name) is getattr(getattr(ps, package), name) for name in members)


@pytest.mark.slow
def test_names_imported_on_first_use_behave_like_all_others():
    code = "assert 'minimize' in dir(ps) and 'minimize' not in vars(ps)\nfrom pilescore import minimize\n"
    run(code + "import pilescore.search\nassert minimize is ps.minimize is vars(ps)['minimize']")
    run("assert 'search' in dir(ps) and 'search' not in vars(ps)\nassert ps.search.Choice.__name__ == 'Choice'")
    assert set(ps.__all__) < set(dir(ps))
    assert pickle.loads(pickle.dumps(ps.search.Choice)) is ps.search.Choice
    with pytest.raises(AttributeError, match="module 'pilescore' has no attribute 'minimise'") as caught:
        ps.minimise  # noqa: B018
    assert caught.value.obj is ps  # Python's "Did you mean: 'minimize'?"
    with pytest.raises(AttributeError, match=r"there is pilescore\.kernels\.Periodic"):
        ps.Periodic  # noqa: B018
    assert not [name for name in dir(ps) if name.startswith("_") or name == "TYPE_CHECKING"]
