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
    """Base class of every error that pilescore raises on purpose."""


class InputError(PilescoreError, ValueError):
    """An argument is not what was expected; the message names it, what it was and what would do."""


@dataclasses.dataclass(frozen=True)
class Mistake:
    """One thing that is wrong in a file: what was found and expected, under which key, in which line of which file."""

    text: str
    key: str = ""
    line: int | None = None
    file: str = ""

    def __str__(self) -> str:
        line = "" if self.line is None else f":{self.line}" if self.file else f"line {self.line}"
        return ": ".join(part for part in (self.file + line, self.key, self.text) if part)


class FileError(InputError):
    """Everything that is wrong in a file that was to be read; the message has one line for each of the `mistakes`."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__(tuple(mistakes))
        self.mistakes = tuple(mistakes)

    def __str__(self) -> str:
        return "\n".join(map(str, self.mistakes))


class SmoothnessError(InputError):
    """An operator takes more derivatives than the kernel has."""


class MemoryLimitError(PilescoreError, MemoryError):
    """The matrices of a computation would not fit in the memory that is available."""


class NotPositiveDefiniteError(PilescoreError, np.linalg.LinAlgError):
    """A covariance could not be factored; the message names the blocks involved and the remedies."""


class NotSolvedError(PilescoreError):
    """The most likely solution of a nonlinear model was not found; `solve_nonlinear` shows how far it came."""


class ToleranceError(PilescoreError):
    """The bounds on a score are wider than was wanted; `lower` and `upper` are what was reached."""

    def __init__(self, message: str, lower: float = float("nan"), upper: float = float("nan")) -> None:
        super().__init__(message, lower, upper)
        self.lower, self.upper = lower, upper

    def __str__(self) -> str:
        return str(self.args[0])


class ClusterError(PilescoreError):
    """A cluster has lost its workers, or its workers cannot read what they are sent; the message says what is done."""


class SaveError(PilescoreError, OSError):
    """A dataset could not be written; it is in `dataset`, and what was on disk before is still there."""

    def __init__(self, message: str, dataset: Any = None) -> None:
        super().__init__(message)
        self.dataset = dataset


class PrecisionWarning(UserWarning):
    """A result was computed, but rounding has taken most of its digits."""


class TrainingPointsWarning(UserWarning):
    """A network is scored on rows that it may have been trained on."""


class OutsideDomainWarning(UserWarning):
    """Observations lie outside every domain on which physics is imposed."""


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
