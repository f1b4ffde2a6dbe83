"""The exceptions and warnings of pilescore, and the checks of arguments that raise them."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

__all__ = [
    "ClusterError",
    "FileError",
    "InputError",
    "MemoryLimitError",
    "Mistake",
    "NotPositiveDefiniteError",
    "NotSolvedError",
    "OutsideDomainWarning",
    "PilescoreError",
    "PrecisionWarning",
    "SaveError",
    "SmoothnessError",
    "ToleranceError",
    "TrainingPointsWarning",
    "UncertaintyWarning",
    "UnresolvedWarning",
]

# --- Exceptions and warnings: each message states the cause and a remedy -------------------------------------------


class PilescoreError(Exception):
    """Base class of all exceptions that pilescore raises on purpose.

    Examples
    --------
    Skip candidates that fail for any reason:

    >>> import pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> physics = ps.impose(dx**2, 1.0, on=line.interior(ps.GaussLegendre(5)))
    >>> for nu in (0.5, 2.5):
    ...     try:
    ...         print(nu, round(ps.pile(ps.Model(ps.Matern(nu), physics=physics, rho=1.0)).value, 2))
    ...     except ps.errors.PilescoreError as error:
    ...         print(nu, type(error).__name__)
    0.5 SmoothnessError
    2.5 5.17
    """


class InputError(PilescoreError, ValueError):
    """An argument is invalid; the message names it, its value and what was expected.

    Examples
    --------
    >>> import pilescore as ps
    >>> ps.RBF(bandwidth=-1.0)
    Traceback (most recent call last):
    ...
    pilescore.errors.InputError: RBF bandwidth: expected a positive number or a vector of them, one for each
    coordinate; got -1.0
    >>> issubclass(ps.errors.InputError, ValueError)
    True
    """


@dataclasses.dataclass(frozen=True)
class Mistake:
    """One mistake in a file: what was found and expected, with its key, line and file.

    Examples
    --------
    >>> import pathlib, tempfile, pilescore as ps
    >>> text = '''
    ... [domain]
    ... x = [0, 1]
    ... [[equation]]
    ... equation = "dxx(v) = -1"
    ... '''
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = pathlib.Path(directory, "problem.toml")
    ...     _ = path.write_text(text)
    ...     try:
    ...         ps.load_problem(path)
    ...     except ps.errors.FileError as error:
    ...         (mistake,) = error.mistakes
    >>> mistake.file, mistake.line, mistake.key
    ('problem.toml', 5, '[[equation]] 1: equation')
    >>> mistake.text
    "'v' at column 5: is not a known name. Known names: x, pi, e, u"
    """

    text: str
    """What was found and what was expected."""
    key: str = ""
    """The key, such as `[[equation]] 2: nodes`; empty for the file as a whole."""
    line: int | None = None
    """The line number, from 1; None for the file as a whole."""
    file: str = ""
    """The name of the file."""

    def __str__(self) -> str:
        line = "" if self.line is None else f":{self.line}" if self.file else f"line {self.line}"
        return ": ".join(part for part in (self.file + line, self.key, self.text) if part)


class FileError(InputError):
    """A file has mistakes; the message has one line for each of the `mistakes`.

    Examples
    --------
    >>> import pathlib, tempfile, pilescore as ps
    >>> text = '''
    ... [domain]
    ... x = [0, 1]
    ... [[equation]]
    ... equation = "dxx(v) = -1"
    ... noodes = 20
    ... '''
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = pathlib.Path(directory, "problem.toml")
    ...     _ = path.write_text(text)
    ...     try:
    ...         ps.load_problem(path)
    ...     except ps.errors.FileError as error:
    ...         print(error)
    problem.toml:5: [[equation]] 1: equation: 'v' at column 5: is not a known name. Known names: x, pi, e, u
    problem.toml:6: [[equation]] 1: noodes: there is no key 'noodes' here; expected one of name, noise, rho, rule,
    nodes, equation; did you mean 'nodes'?
    """

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__(tuple(mistakes))
        self.mistakes = tuple(mistakes)

    def __str__(self) -> str:
        return "\n".join(map(str, self.mistakes))


class SmoothnessError(InputError):
    """An operator takes a derivative that the kernel does not support.

    Examples
    --------
    >>> import pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> ps.Model(ps.Matern(1.5), physics=ps.impose(dx**2, 0.0, on=line.interior(ps.GaussLegendre(5))))
    Traceback (most recent call last):
    ...
    pilescore.errors.SmoothnessError: block 'physics.0': the operator ∂x² takes derivatives of order 2, but
    Matern(nu=1.5, bandwidth=1.) supports at most order 1 on each side. Kernels that support it: RBF,
    RationalQuadratic, Matern(nu=2.5), Matern(nu=3.5).
    """


class MemoryLimitError(PilescoreError, MemoryError):
    """The matrices of a computation would not fit in the available memory.

    Examples
    --------
    The error is raised before anything large is allocated:

    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 1_000_000)
    >>> model = ps.Model(ps.RBF(0.1), data=ps.observe(ps.identity, np.sin(6 * x), at=x))
    >>> ps.pile(model.replace(solver="dense"))
    Traceback (most recent call last):
    ...
    pilescore.errors.MemoryLimitError: the covariance of N = 1000000 observations needs 8000.0 GB, but only ... GB
    are available. Use at most about ... observations: fewer nodes in a rule, or thinned data.
    """


class NotPositiveDefiniteError(PilescoreError, np.linalg.LinAlgError):
    """A covariance could not be factored; the message names the blocks involved and the remedies.

    pilescore never adds anything to the diagonal: the noise belongs to the model, and the user chooses the remedy.

    Examples
    --------
    >>> import pilescore as ps
    >>> twice = ps.observe(ps.identity, values=[1.0, 1.0], at=[0.5, 0.5], name="probe")
    >>> ps.pile(ps.Model(ps.RBF(0.5), data=twice, gamma=1e-20))
    Traceback (most recent call last):
    ...
    pilescore.errors.NotPositiveDefiniteError: the covariance of 2 observations is not positive definite to working
    precision: the factorisation stopped at observation 1 of block 'probe' (Id). Its eigenvalues range from ... to
    2.0e+00, a condition number of at least ... The nearly dependent rows are in block 'probe' (100%). What helps:
    raise gamma of 'probe' (now 1.0e-20); shorten the kernel's bandwidth or use a rougher kernel; thin the 1
    coincident points in 'probe'.
    """


class NotSolvedError(PilescoreError):
    """The most likely solution of a nonlinear model was not found; `solve_nonlinear` returns the last iterate.

    `minimize` and the searches that use it raise this error. In tables it is the reason in a failed row.

    Examples
    --------
    A law that is defined for `u ≤ 0` only, and a value beyond it:

    >>> import jax.numpy as jnp, pilescore as ps
    >>> law = ps.Nonlinear(lambda p, u: jnp.where(u > 0, jnp.nan, u), of=(ps.identity,))
    >>> model = ps.Model(ps.RBF(0.5), data=ps.observe(law, values=[1.0], at=[0.5], noise=0.1))
    >>> ps.minimize(model, over={"eta": (0.1, 10.0)})
    Traceback (most recent call last):
    ...
    pilescore.errors.NotSolvedError: PILE could not be computed at any start. At the start eta = 1: the nonlinear model
    was not solved: diverged: the objective is not finite all along the step; 'data.0' is missed by 10 noise
    deviations, 100% of its terms
    >>> ps.solve_nonlinear(model).status
    'diverged'
    """


class ToleranceError(PilescoreError):
    """The bounds on a score are wider than the tolerance; `lower` and `upper` are the bounds.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 50)
    >>> model = ps.Model(ps.Matern(0.5), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.1)
    >>> try:
    ...     ps.pile(model.replace(solver=ps.solvers.LowRank(tolerance=1e-3, rank=10)))
    ... except ps.errors.ToleranceError as error:
    ...     print(error)
    ...     print(error.lower <= ps.pile(model).value <= error.upper)
    the interval on PILE is 2.2e+00 wide, from -1.96036 to 0.207989, and not 1.0e-03: a rank of 10 is too small for
    this kernel, which is rough, or short compared with the domain. Raise rank (now 10) or tolerance; or use
    solver='dense' (2e-05 GB), ps.solvers.Distributed(), a smoother kernel, or a longer bandwidth.
    True
    """

    def __init__(self, message: str, lower: float = float("nan"), upper: float = float("nan")) -> None:
        super().__init__(message, lower, upper)
        self.lower, self.upper = lower, upper

    def __str__(self) -> str:
        return str(self.args[0])


class ClusterError(PilescoreError):
    """A cluster has lost its workers, or they cannot unpickle their tasks; the message says how much was done.

    Examples
    --------
    A kernel that the workers would have to load from a file they do not have:

    >>> import distributed, jax.numpy as jnp, numpy as np, pilescore as ps
    >>> class Tabulated:
    ...     def __call__(self, x, y):
    ...         return jnp.exp(-((x[0] - y[0]) ** 2))
    ...     def __reduce__(self):
    ...         return np.load, ("only_here.npy",)
    >>> data = ps.observe(ps.identity, values=[0.0, 1.0], at=[0.0, 1.0])
    >>> model = ps.Model(ps.kernels.FunctionKernel(Tabulated()), data=data)
    >>> with distributed.Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as client:
    ...     ps.sweep(model, {"gamma": [0.1, 1.0]}, run=ps.RunOptions(client=client))
    Traceback (most recent call last):
    ...
    pilescore.errors.ClusterError: client: the workers cannot be used: they cannot unpickle the content:
    FileNotFoundError: [Errno 2] No such file or directory: 'only_here.npy'. ... 0 of 2 points are scored; none of
    them is saved: run=ps.RunOptions(save=…) saves them
    """


class SaveError(PilescoreError, OSError):
    """A dataset could not be written; `dataset` holds it, and the file on disk is unchanged.

    Examples
    --------
    >>> import pilescore as ps
    >>> data = ps.observe(ps.identity, values=[0.0, 1.0], at=[0.0, 1.0])
    >>> model = ps.Model(ps.RBF(0.5), data=data)
    >>> try:
    ...     ps.sweep(model, {"gamma": [0.1, 1.0]}, run=ps.RunOptions(save="/proc/run.nc"))  # where no file can be made
    ... except ps.errors.SaveError as error:
    ...     print(error)
    ...     print(error.dataset["status"].values)  # writing was tried before any work
    could not write /proc/run.nc: No such file or directory
    ['pending' 'pending']
    """

    def __init__(self, message: str, dataset: Any = None) -> None:
        super().__init__(message)
        self.dataset = dataset


class PrecisionWarning(UserWarning):
    """A result was computed, but rounding errors have destroyed most of its digits.

    Examples
    --------
    Turn the warning into an error:

    >>> import warnings, numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 30)
    >>> model = ps.Model(ps.RBF(0.5), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=1e-13)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", ps.errors.PrecisionWarning)
    ...     ps.pile(model)
    Traceback (most recent call last):
    ...
    pilescore.errors.PrecisionWarning: rounding leaves PILE uncertain by about ...e-03 (condition number about
    ...e+14). The nearly dependent rows are in block 'data.0' (100%). What helps: raise gamma of 'data.0' (now
    1.0e-13); shorten the kernel's bandwidth or use a rougher kernel.
    """


class UnresolvedWarning(UserWarning):
    """A result was computed, but the nodes of an exact equation are too few: finer nodes change it.

    Examples
    --------
    >>> import pilescore as ps
    >>> issubclass(ps.errors.UnresolvedWarning, UserWarning)
    True
    """


class UncertaintyWarning(UserWarning):
    """The distribution of hyperparameters is rough, undetermined or cut off; the message says why and what helps.

    Examples
    --------
    >>> import pilescore as ps
    >>> issubclass(ps.errors.UncertaintyWarning, UserWarning)
    True
    """


class TrainingPointsWarning(UserWarning):
    """A network is scored at points on which it may have been trained.

    Examples
    --------
    >>> import warnings, jax.numpy as jnp, pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> model = ps.Model(ps.RBF(1.0), physics=ps.impose(dx, 1.0, on=line.interior(ps.GaussLegendre(5))))
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", ps.errors.TrainingPointsWarning)
    ...     ps.network_pile(lambda params, p: params @ p, jnp.ones(1), model, points="training")
    Traceback (most recent call last):
    ...
    pilescore.errors.TrainingPointsWarning: points='training': residuals at the points of training show how well a
    network was trained, not how good it is. The default points='fresh' draws new points
    """


class OutsideDomainWarning(UserWarning):
    """Observations lie outside every domain on which physics is imposed.

    Examples
    --------
    Columns in the wrong order, x before t:

    >>> import warnings, pilescore as ps
    >>> strip = ps.Box(t=(0, 1), x=(0, 10))
    >>> dt, dx = ps.partials(strip)
    >>> moving = ps.impose(dt + dx, 0.0, on=strip.interior(ps.GaussLegendre(4)))
    >>> data = ps.observe(ps.identity, values=[1.0], at=[[8.0, 0.5]])
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", ps.errors.OutsideDomainWarning)
    ...     ps.Model(ps.RBF(1.0), data=data, physics=moving)
    Traceback (most recent call last):
    ...
    pilescore.errors.OutsideDomainWarning: block 'data.0': 1 of 1 points lie far outside the region where physics is
    imposed, the first at [8.  0.5]. Are the columns in the order of the coordinates?
    """


# --- Checks of arguments: they return the checked value or raise an InputError -------------------------------------


def require(condition: bool, argument: str, found: object, expected: str) -> None:
    """Raise an `InputError` unless the condition holds; it names the argument, its value and what was expected."""
    if not condition:
        raise InputError(f"{argument}: expected {expected}; got {describe(found)}")


def describe(value: object) -> str:
    """Return a short description of a value for an error message: the shape of an array, else the `repr`."""
    shape = getattr(value, "shape", None)
    if shape is not None and shape != ():
        return f"an array of shape {tuple(shape)} and dtype {getattr(value, 'dtype', '?')}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def require_float64() -> None:
    """Raise an `InputError` if JAX is in float32 mode."""
    if jax.dtypes.canonicalize_dtype(np.float64) != np.float64:
        raise InputError(
            "JAX is in float32 mode, in which a log determinant loses all its digits. "
            "Importing pilescore turns float64 on; something has turned it off since. "
            'Call jax.config.update("jax_enable_x64", True), or unset JAX_ENABLE_X64=0.'
        )


def check_coordinates(function: Callable[[Any], Any], point: np.ndarray, argument: str) -> None:
    """Raise an `InputError` if a user's function uses a coordinate that does not exist."""
    try:
        function(point)  # a NumPy point raises an IndexError; JAX would silently clamp the index
    except IndexError as error:
        last = len(point) - 1
        expected = f"a function of one point with the coordinates p[0] … p[{last}]" if last else "a function of p[0]"
        raise InputError(f"{argument}: expected {expected}; calling it gave: {error}") from error
    except Exception:  # the function may need a JAX array; the real call reports any other problem
        return


def call(
    function: Callable[[Any], Any],
    point: Any,
    argument: str,
    signature: str = "a function of one argument, the point",
) -> Any:
    """Return the value of a user's function at one point; raise an `InputError` if it cannot be evaluated."""
    try:
        return function(point)
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError) as error:
        problem: Exception = error
        expected = "a function written with jax.numpy (jnp.sin, not np.sin or math.sin; jnp.where instead of if)"
    except TypeError as error:
        problem = error
        expected = signature
    raise InputError(f"{argument}: expected {expected}; calling it gave: {str(problem).splitlines()[0]}") from problem


def is_real(dtype: Any) -> bool:
    """Whether a dtype is a floating-point type, including the low-precision types of JAX."""
    return bool(jax.numpy.issubdtype(dtype, np.floating))


def as_array(value: Any, argument: str, copy: bool = True) -> np.ndarray:
    """Return `value` as a float64 array of finite numbers; integers and shorter floats are promoted exactly."""
    masked = int(np.sum(value.mask)) if isinstance(value, np.ma.MaskedArray) else 0
    if masked:
        raise InputError(f"{argument}: expected an array without masked entries; {masked} are masked. Remove them.")
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:  # ragged nested sequences; tensors that require gradients
        raise InputError(f"{argument}: expected an array of real numbers; got {error}") from error
    require(
        array.dtype.kind in "iu" or is_real(array.dtype),
        argument,
        value if array.ndim == 0 else array,
        "real numbers (a float or integer dtype)",
    )
    array = array.astype(np.float64, copy=copy)
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        where = tuple(int(i) for i in np.unravel_index(bad[0], array.shape))
        raise InputError(
            f"{argument}: expected finite numbers; {bad.size} of {array.size} are NaN or infinite, "
            f"the first at index {where if array.ndim else '()'}"
        )
    return array


def as_points(value: Any, argument: str) -> Float[np.ndarray, "n d"]:
    """Return `value` as an array of `n` points in `d` dimensions; a flat array is `n` points on a line."""
    array = as_array(value, argument)
    if array.ndim == 1:
        array = array[:, None]
    require(array.ndim == 2, argument, array, "points as an array of shape (n, d)")
    require(array.shape[0] > 0, argument, array, "at least one point (the block is empty)")
    require(array.shape[1] > 0, argument, array, "points with at least one coordinate")
    return array


def as_vector(value: Any, argument: str, size: int, of: str) -> Float[np.ndarray, " n"]:
    """Return `value` as a vector of the given length; a scalar is repeated."""
    array = as_array(value, argument)
    if array.ndim == 0:
        return np.full(size, float(array))
    require(array.shape == (size,), argument, array, f"a scalar or shape ({size},), one value for each {of}")
    return array


def as_positive(value: Any, argument: str) -> float:
    """Return `value` as a positive float."""
    array = as_array(value, argument)
    require(array.ndim == 0, argument, value, "a single positive number")
    require(float(array) > 0, argument, float(array), "a positive number")
    return float(array)


def as_count(value: Any, argument: str, least: int = 1) -> int:
    """Return `value` as an integer not below `least`."""
    good = isinstance(value, int | np.integer) and not isinstance(value, bool)
    require(good and int(value) >= least, argument, value, f"an integer of at least {least}")
    return int(value)


def nearest(name: Any, known: Iterable[str], least: float = 0.6) -> str | None:
    """Return the known name most similar to a misspelt one, ignoring case; None if none is similar."""
    # Long names and long lists are cut: the comparison is quadratic in their lengths.
    folded = {other.casefold(): other for other in known if len(other) <= 100}
    close = difflib.get_close_matches(str(name)[:100].casefold(), list(folded)[:1000], 1, least)
    return folded[close[0]] if close else None


def did_you_mean(name: Any, known: Iterable[str], least: float = 0.6) -> str:
    """Return `"; did you mean 'u'?"` for the most similar known name, or an empty string."""
    near = nearest(name, known, least)
    return "" if near is None else f"; did you mean {near!r}?"


def listed(names: Sequence[str]) -> str:
    """Return names joined for a message: `a`, `a and b`, `a, b and c`."""
    if len(names) <= 1:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
