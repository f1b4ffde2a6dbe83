"""The failures a user can meet, each with its cause and remedy, and the checks that raise them."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float


class PilescoreError(Exception):
    """Base class of every error that pilescore raises on purpose.

    Examples
    --------
    Whatever is wrong with a candidate, go on with the next:

    >>> import pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> bent = ps.impose(dx**2, 1.0, on=line.interior(ps.GaussLegendre(5)))
    >>> for nu in (0.5, 2.5):
    ...     try:
    ...         print(nu, round(ps.pile(ps.Model(ps.Matern(nu), physics=bent)).value, 2))
    ...     except ps.PilescoreError as error:
    ...         print(nu, type(error).__name__)
    0.5 SmoothnessError
    2.5 5.17
    """


class InputError(PilescoreError, ValueError):
    """An argument is not what was expected; the message names it, what it was and what would do.

    Examples
    --------
    >>> import pilescore as ps
    >>> ps.RBF(bandwidth=-1.0)
    Traceback (most recent call last):
    ...
    pilescore.errors.InputError: RBF bandwidth: expected a positive number or a vector of them, one for each
    coordinate; got -1.0
    >>> issubclass(ps.InputError, ValueError)
    True
    """


@dataclasses.dataclass(frozen=True)
class Mistake:
    """One thing that is wrong in a file: what was found and expected, under which key, in which line of which file.

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
    ...     except ps.FileError as error:
    ...         (mistake,) = error.mistakes
    >>> mistake.file, mistake.line, mistake.key
    ('problem.toml', 5, '[[equation]] 1: equation')
    >>> mistake.text
    "'v' at column 5: means nothing here. Known names: x, pi, e, u"
    """

    text: str
    """What was found and what was expected."""
    key: str = ""
    """As one reads it: `[[equation]] 2: nodes`. Empty where it is about the file as a whole."""
    line: int | None = None
    """Counted from 1; None where it is about the file as a whole."""
    file: str = ""
    """Its name."""

    def __str__(self) -> str:
        line = "" if self.line is None else f":{self.line}" if self.file else f"line {self.line}"
        return ": ".join(part for part in (self.file + line, self.key, self.text) if part)


class FileError(InputError):
    """Everything that is wrong in a file that was to be read; the message has one line for each of the `mistakes`.

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
    ...     except ps.FileError as error:
    ...         print(error)
    problem.toml:5: [[equation]] 1: equation: 'v' at column 5: means nothing here. Known names: x, pi, e, u
    problem.toml:6: [[equation]] 1: noodes: there is no key 'noodes' here; expected one of name, noise, rho, rule,
    nodes, equation; did you mean 'nodes'?
    """

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__(tuple(mistakes))
        self.mistakes = tuple(mistakes)

    def __str__(self) -> str:
        return "\n".join(map(str, self.mistakes))


class SmoothnessError(InputError):
    """An operator takes more derivatives than the kernel has.

    Examples
    --------
    >>> import pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> ps.Model(ps.Matern(1.5), physics=ps.impose(dx**2, 0.0, on=line.interior(ps.GaussLegendre(5))))
    Traceback (most recent call last):
    ...
    pilescore.errors.SmoothnessError: block 'physics.0': the operator ∂x² takes derivatives of order 2, but
    Matern(nu=1.5, bandwidth=1.) bears at most 1 on each side. Kernels that would do: RBF, RationalQuadratic,
    Matern(nu=2.5), Matern(nu=3.5).
    """


class MemoryLimitError(PilescoreError, MemoryError):
    """The matrices of a computation would not fit in the memory that is available.

    Examples
    --------
    It is raised before anything large is allocated:

    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 1_000_000)
    >>> model = ps.Model(ps.RBF(0.1), data=ps.observe(ps.identity, np.sin(6 * x), at=x))
    >>> ps.pile(model, solver="dense")
    Traceback (most recent call last):
    ...
    pilescore.errors.MemoryLimitError: the covariance of N = 1000000 observations needs 8000.0 GB and ... GB are
    available. Use at most about ... observations: fewer nodes in a rule, or thinned data.
    """


class NotPositiveDefiniteError(PilescoreError, np.linalg.LinAlgError):
    """A covariance could not be factored; the message names the blocks involved and the remedies.

    Nothing is ever added to the diagonal: the noise is the model's, and the remedies are the user's to choose.

    Examples
    --------
    >>> import pilescore as ps
    >>> twice = ps.observe(ps.identity, values=[1.0, 1.0], at=[0.5, 0.5], name="probe")
    >>> ps.pile(ps.Model(ps.RBF(0.5), data=twice, gamma=1e-20))
    Traceback (most recent call last):
    ...
    pilescore.errors.NotPositiveDefiniteError: the covariance of 2 observations is not positive definite to working
    precision: the factorisation stopped at observation 1 of block 'probe' (Id). Its eigenvalues reach from ... to
    2.0e+00, a condition number of ... or more. The nearly dependent rows are in block 'probe' (100%). What helps:
    raise gamma of 'probe' (now 1.0e-20); shorten the kernel's bandwidth or use a rougher kernel; thin the 1
    coincident points in 'probe'.
    """


class NotSolvedError(PilescoreError):
    """The most likely solution of a nonlinear model was not found; `solve_nonlinear` shows how far it came.

    Raised where a score is needed: by `minimize` and by what uses it. In tables it is the reason in a row.

    Examples
    --------
    A law that is known for `u ≤ 0` only, and a value beyond it:

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
    """The bounds on a score are wider than was wanted; `lower` and `upper` are what was reached.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 50)
    >>> model = ps.Model(ps.Matern(0.5), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=0.1)
    >>> try:
    ...     ps.pile(model, solver=ps.LowRank(tol=1e-3, rank=10))
    ... except ps.ToleranceError as error:
    ...     print(error)
    ...     print(error.lower <= ps.pile(model).value <= error.upper)
    the interval on PILE is 2.2e+00 wide, from -1.96036 to 0.207989, and not 1.0e-03: a rank of 10 is not enough for
    this kernel, which is rough, or short beside the domain. Raise rank (now 10) or tol; or use solver='dense' (2e-05
    GB), ps.Distributed(), a smoother kernel, or a longer bandwidth.
    True
    """

    def __init__(self, message: str, lower: float = float("nan"), upper: float = float("nan")) -> None:
        super().__init__(message, lower, upper)
        self.lower, self.upper = lower, upper

    def __str__(self) -> str:
        return str(self.args[0])


class ClusterError(PilescoreError):
    """A cluster has lost its workers, or its workers cannot read what they are sent; the message says what is done.

    Examples
    --------
    A kernel that workers would have to read from a file which they do not have:

    >>> import distributed, jax.numpy as jnp, numpy as np, pilescore as ps
    >>> class Tabulated:
    ...     def __call__(self, x, y):
    ...         return jnp.exp(-((x[0] - y[0]) ** 2))
    ...     def __reduce__(self):
    ...         return np.load, ("only_here.npy",)
    >>> data = ps.observe(ps.identity, values=[0.0, 1.0], at=[0.0, 1.0])
    >>> model = ps.Model(ps.FunctionKernel(Tabulated()), data=data)
    >>> with distributed.Client(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0") as client:
    ...     ps.sweep(model, {"gamma": [0.1, 1.0]}, client=client)
    Traceback (most recent call last):
    ...
    pilescore.errors.ClusterError: client: the workers of the cluster are lost to this computation: they cannot read
    what they are sent: FileNotFoundError: [Errno 2] No such file or directory: 'only_here.npy'. A function in a module
    of yours has to be there, too: client.upload_file(...), or cloudpickle.register_pickle_by_value(module). 0 of 2
    points are scored; none of them is kept, as there is no save=
    """


class SaveError(PilescoreError, OSError):
    """A dataset could not be written; it is in `dataset`, and what was on disk before is still there.

    Examples
    --------
    >>> import pilescore as ps
    >>> data = ps.observe(ps.identity, values=[0.0, 1.0], at=[0.0, 1.0])
    >>> model = ps.Model(ps.RBF(0.5), data=data)
    >>> try:
    ...     ps.sweep(model, {"gamma": [0.1, 1.0]}, save="/proc/run.nc")  # where no file can be made
    ... except ps.SaveError as error:
    ...     print(error)
    ...     print(error.dataset["status"].values)  # it was tried before any work
    could not write /proc/run.nc: [Errno 2] No such file or directory: '/proc/.run.nc.new'
    ['pending' 'pending']
    """

    def __init__(self, message: str, dataset: Any = None) -> None:
        super().__init__(message)
        self.dataset = dataset


class PrecisionWarning(UserWarning):
    """A result was computed, but rounding has taken most of its digits.

    Examples
    --------
    Make it an error, so that no such score goes unnoticed:

    >>> import warnings, numpy as np, pilescore as ps
    >>> x = np.linspace(0, 1, 30)
    >>> model = ps.Model(ps.RBF(0.5), data=ps.observe(ps.identity, np.sin(6 * x), at=x), gamma=1e-13)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", ps.PrecisionWarning)
    ...     ps.pile(model)
    Traceback (most recent call last):
    ...
    pilescore.errors.PrecisionWarning: rounding leaves PILE uncertain by about ...e-03 (condition number about
    ...e+14). The nearly dependent rows are in block 'data.0' (100%). What helps: raise gamma of 'data.0' (now
    1.0e-13); shorten the kernel's bandwidth or use a rougher kernel.
    """


class TrainingPointsWarning(UserWarning):
    """A network is scored on rows that it may have been trained on.

    Examples
    --------
    >>> import warnings, jax.numpy as jnp, pilescore as ps
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> model = ps.Model(ps.RBF(1.0), physics=ps.impose(dx, 1.0, on=line.interior(ps.GaussLegendre(5))))
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", ps.TrainingPointsWarning)
    ...     ps.network_pile(lambda params, p: params @ p, jnp.ones(1), model, points="training")
    Traceback (most recent call last):
    ...
    pilescore.errors.TrainingPointsWarning: points='training': residuals at the points that a network was trained on
    say how well it was trained, not how good it is. Leave points='fresh', which draws new ones
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
    ...     warnings.simplefilter("error", ps.OutsideDomainWarning)
    ...     ps.Model(ps.RBF(1.0), data=data, physics=moving)
    Traceback (most recent call last):
    ...
    pilescore.errors.OutsideDomainWarning: block 'data.0': 1 of 1 points lie far outside the region where physics is
    imposed, the first at [8.  0.5]. Are the columns in the order of the coordinates?
    """


def require(condition: bool, argument: str, found: object, expected: str) -> None:
    """Raise an `InputError` that names the argument, what it was and what was expected."""
    if not condition:
        raise InputError(f"{argument}: expected {expected}; got {describe(found)}")


def describe(value: object) -> str:
    """Describe a value for an error message: its shape where it has one, else its `repr`."""
    shape = getattr(value, "shape", None)
    if shape is not None and shape != ():
        return f"an array of shape {tuple(shape)} and dtype {getattr(value, 'dtype', '?')}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def require_float64() -> None:
    """Refuse to compute while JAX is in float32 mode."""
    if jax.dtypes.canonicalize_dtype(np.float64) != np.float64:
        raise InputError(
            "JAX is in float32 mode, in which a log determinant loses all its digits. "
            "pilescore turns float64 on when imported; something has turned it off since. "
            'Call jax.config.update("jax_enable_x64", True), or unset JAX_ENABLE_X64=0.'
        )


def check_coordinates(function: Callable[[Any], Any], point: np.ndarray, argument: str) -> None:
    """Raise an `InputError` if a user's function asks for a coordinate that is not there; JAX would clamp it."""
    try:
        function(point)
    except IndexError as error:
        last = len(point) - 1
        expected = f"a function of one point with the coordinates p[0] … p[{last}]" if last else "a function of p[0]"
        raise InputError(f"{argument}: expected {expected}; calling it gave: {error}") from error
    except Exception:  # it may want a JAX array; whatever else is wrong is said by the call that counts
        return


def call(
    function: Callable[[Any], Any],
    point: Any,
    argument: str,
    signature: str = "a function of one argument, the point",
) -> Any:
    """Return a user's function at one point; say what is wrong with it where it cannot be evaluated."""
    try:
        return function(point)
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError) as error:
        problem: Exception = error
        expected = "a function written with jax.numpy (jnp.sin, not numpy's or math's, and jnp.where for if)"
    except TypeError as error:
        problem = error
        expected = signature
    raise InputError(f"{argument}: expected {expected}; calling it gave: {str(problem).splitlines()[0]}") from problem


def is_real(dtype: Any) -> bool:
    """Whether a type is one of floats, those of JAX with few digits among them."""
    return bool(jax.numpy.issubdtype(dtype, np.floating))


def as_array(value: Any, argument: str, copy: bool = True) -> np.ndarray:
    """Return `value` as a finite float64 array (integers and floats of fewer digits are promoted exactly)."""
    hidden = int(np.sum(value.mask)) if isinstance(value, np.ma.MaskedArray) else 0
    if hidden:
        raise InputError(f"{argument}: expected an array without masked entries; {hidden} are masked. Leave them out.")
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
    """Return `value` as a vector of the given length, or a scalar repeated to it."""
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
    """Return `value` as an integer that is at least `least`."""
    good = isinstance(value, int | np.integer) and not isinstance(value, bool)
    require(good and int(value) >= least, argument, value, f"an integer of at least {least}")
    return int(value)


def nearest(name: Any, known: Iterable[str], least: float = 0.6) -> str | None:
    """Return the known name that was probably meant, whatever its case; None if none is near."""
    folded = {other.casefold(): other for other in known if len(other) <= 100}
    close = difflib.get_close_matches(str(name)[:100].casefold(), list(folded)[:1000], 1, least)
    return folded[close[0]] if close else None


def did_you_mean(name: Any, known: Iterable[str], least: float = 0.6) -> str:
    """Return `"; did you mean 'u'?"` for the nearest of the known names, or nothing."""
    near = nearest(name, known, least)
    return "" if near is None else f"; did you mean {near!r}?"


def listed(names: Sequence[str]) -> str:
    """Join names for a message: `a`, `a and b`, `a, b and c`."""
    if len(names) <= 1:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
