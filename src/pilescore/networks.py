"""PILE of a trained network, through its tangent: the result, its predictions, and how it is computed."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from .errors import (
    InputError,
    PrecisionWarning,
    TrainingPointsWarning,
    as_array,
    as_count,
    as_points,
    as_positive,
    as_vector,
    is_real,
    require,
)
from .laplace import Form, Scaling, Tangent, Trained
from .linalg import require_memory
from .model import Model
from .nonlinear import Nonlinear
from .observations import Observation, check_names, labels, observe
from .operators import Operator, identity
from .row_scales import prior_variance
from .score import Evidence
from .spectrum import Spectrum
from .tangents import GivenRows, Network, NetworkRows, Seen, Whitened, drawn_afresh, seen

Points = Literal["fresh", "held out", "training"]

SEES = {
    "laplace": (
        "the residuals at the scoring points, the size of the parameters, and how many of them the rows determine; not "
        "a wrong solution that satisfies all rows"
    ),
    "linearised": "how well the network's tangent could explain the rows, wherever training ended within it",
    "tangent": "how well the architecture's tangent suits the rows; not the trained solution",
}


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class NetworkPile(Evidence):
    """The log evidence of a trained network and its terms; lower is better. Made by `network_pile`.

    `value = fit + prior + complexity + constant`, per observation. `misfit` and `training_loss` stand beside it, since
    either may be all that is needed to rank networks.

    Examples
    --------
    A polynomial, which is linear in its three parameters:

    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(-1, 1, 30)
    >>> J = np.stack([np.ones_like(x), x, x**2], axis=1)
    >>> found = ps.network_pile_from_jacobian(J, 0.01 * np.cos(40 * x), displacement=[0.5, -1.0, 2.0])
    >>> abs(found.value - found.fit - found.prior - found.complexity - found.constant) < 1e-12
    True
    >>> found.value < found.at(sigma2=1.0).value  # η and σ² were chosen; with more noise it is worse
    True
    >>> np.sqrt(found.variance_from_jacobian([[1.0, 0.0, 0.0], [1.0, 3.0, 9.0]])).round(3)  # at x = 0 and x = 3
    array([0.002, 0.039])
    """

    value: float
    """`2F/N`, with `F` the negative log evidence."""
    fit: float
    """`‖e‖²_{S⁻¹}/N` (laplace), `t̃ᵀC⁻¹t̃/N` (linearised) or `tᵀC⁻¹t/N` (tangent)."""
    prior: float
    """`‖θ̂ − θ_c‖²_{(ηΛ)⁻¹}/N` of the laplace form, else zero."""
    complexity: float
    """`log det C / N`."""
    constant: float
    """`log 2π`."""
    form: Form
    """`laplace`, `linearised` or `tangent`; see `network_pile`."""
    size: int
    """The number of rows, N."""
    parameters: int
    """The number of parameters, P."""
    eta: float
    """The scale of the prior variances `ηΛ` of the parameters, given or profiled."""
    sigma2: float
    """The scale of the noise variances `σ²D` of the rows, given or profiled."""
    misfit: float
    """`‖e‖²_{D⁻¹}/N`: the mean squared scaled residual at the scoring points, without any evidence."""
    residuals: Mapping[str, float]
    """The root mean square residual of each block at the scoring points, in its own units."""
    training_loss: float
    """The sum over blocks of the mean squared residual at the model's own points; NaN if it is not known."""
    rounding: float
    """An estimate of the rounding error of `value`."""
    notes: tuple[str, ...]
    """What is worth knowing of how it was computed."""
    method: str
    """How the Jacobian was handled, and the memory that it took."""
    spectrum: Spectrum
    """The evidence of this form at every η and σ²."""
    tangent: Tangent
    """The decomposed Jacobian, from which forms and predictions are computed."""

    def __repr__(self) -> str:
        terms = ", ".join(f"{name}={getattr(self, name):.4g}" for name in ("fit", "prior", "complexity", "constant"))
        lines = [
            f"NetworkPile(value={self.value:.6g}, form={self.form!r}, {terms}, size={self.size}, "
            f"parameters={self.parameters}, eta={self.eta:.4g}, sigma2={self.sigma2:.4g})",
            *(f"  {name}: {text}" for name, text in self.explained.items()),
            *(f"  note: {note}" for note in self.notes),
        ]
        return "\n".join(lines)

    @property
    def explained(self) -> dict[str, str]:
        """The three numbers, each with a sentence that says what it can see and what it cannot."""
        known = {
            "PILE": f"{self.value:.6g}. It sees {SEES[self.form]}.",
            "misfit": (
                f"{self.misfit:.4g}, the mean squared scaled residual at the scoring points. It sees where the network "
                "misses the rows; not how many parameters that took, nor how sure the network can be."
            ),
        }
        if not math.isnan(self.training_loss):
            known["training loss"] = (
                f"{self.training_loss:.4g}, the mean squared residuals at the model's own points. It sees how far "
                "training came; not what happens between the points that it was trained on."
            )
        return known

    def at(self, *, eta: Any = None, sigma2: Any = None, form: Form | None = None) -> NetworkPile:
        """Return the score at other η and σ², profiled where they are not given, in O(N); or of another form.

        The eigendecomposition is not made again; another form takes one product with the Jacobian.

        Examples
        --------
        >>> import numpy as np, pilescore as ps
        >>> x = np.linspace(-1, 1, 20)
        >>> J = np.stack([np.ones_like(x), x], axis=1)
        >>> found = ps.network_pile_from_jacobian(J, 0.1 * np.cos(9 * x), displacement=[1.0, 2.0], sigma2=0.01)
        >>> best = found.at()  # with η and σ² profiled
        >>> best.value < found.value < found.at(sigma2=1.0).value, round(best.sigma2, 4)
        (True, 0.0056)
        >>> found.at(form="linearised").value < best.value  # as if training had ended where the tangent is best
        True
        """
        if form is None or form == self.form:
            return dataclasses.replace(self, **_terms(self.spectrum, eta, sigma2, self.notes))
        _check_options(form, eta, sigma2)
        spectrum = self.tangent.spectrum(form)
        return dataclasses.replace(self, form=form, spectrum=spectrum, **_terms(spectrum, eta, sigma2, self.notes))

    def mean(self, points: Any, operator: Operator | Nonlinear = identity) -> Float[np.ndarray, " n"]:
        """Return the network, or an operator of it, at points of shape (n, d)."""
        return self._seen(points, operator).predicted

    def std(self, points: Any, operator: Operator | Nonlinear = identity) -> Float[np.ndarray, " n"]:
        """Return the standard deviation of the network's tangent, given the rows that it was scored on."""
        return np.sqrt(self.variance(points, operator))

    def variance(self, points: Any, operator: Operator | Nonlinear = identity) -> Float[np.ndarray, " n"]:
        """Return the variance of `A f` by the linearised Laplace approximation, in batches.

        A `PrecisionWarning` says where rounding has left nothing of it; what is below zero is then given as zero.
        """
        rows = NetworkRows(self._network, [self._seen(points, operator)])
        return self._variances(rows.make(cell) for cell in range(len(rows.cells())))

    def variance_from_jacobian(self, jacobian: Any) -> Float[np.ndarray, " n"]:
        """Return the variances of predictions whose gradients in the parameters are the rows of a matrix (n, P)."""
        return self._variances([_as_jacobian(jacobian, self.parameters)])

    def _variances(self, parts: Iterable[Float[np.ndarray, "_ P"]]) -> Float[np.ndarray, " n"]:
        pairs = [self.tangent.variances(part, self.sigma2 / self.eta) for part in parts]
        found, error = (self.eta * np.concatenate(each) for each in zip(*pairs, strict=True))
        lost = found < error
        if lost.any():
            warnings.warn(
                f"{int(lost.sum())} of {len(found)} variances are below rounding, which is up to {error.max():.1e}: "
                f"none of their digits can be relied on. sigma2/eta = {self.sigma2 / self.eta:.1e} is small against "
                f"the largest eigenvalue {self.tangent.gram.largest:.1e}",
                PrecisionWarning,
                stacklevel=4,
            )
        return np.maximum(found, 0.0)

    def covariance(self, points: Any, operator: Operator | Nonlinear = identity) -> Float[np.ndarray, "n n"]:
        """Return the covariance of `A f` at points, by the linearised Laplace approximation."""
        rows = NetworkRows(self._network, [self._seen(points, operator)])
        count = rows.shape[0]
        require_memory(count, 8.0 * (2 * count**2 + count * (self.parameters + self.size)), "the covariance of points")
        queried = np.concatenate([rows.make(number) for number in range(len(rows.cells()))])
        return self.eta * self.tangent.covariance(queried, self.sigma2 / self.eta)

    def noise_variance(self, block: Observation) -> Float[np.ndarray, " n"]:
        """Return the noise variances `σ²D` that the values of a block would have."""
        network, model = self._network, self.tangent.model
        assert model is not None
        dimension = model.blocks[0].dimension
        good = isinstance(block, Observation) and block.dimension == dimension
        require(good, "block", block, f"a block of ps.observe or ps.impose whose points have {dimension} coordinates")
        known = seen(network, block, block.name or block.role)
        return self.sigma2 * _relative_noise(model, [known], self.tangent.rows)

    @property
    def _network(self) -> Network:
        if self.tangent.network is None:
            raise InputError("a score from a Jacobian has no network to evaluate: use variance_from_jacobian")
        return self.tangent.network

    def _seen(self, points: Any, operator: Operator | Nonlinear) -> Seen:
        network, model = self._network, self.tangent.model
        assert model is not None
        require(isinstance(operator, Operator | Nonlinear), "operator", operator, "an operator such as ps.identity")
        where = as_points(points, "points")
        dimension = model.blocks[0].dimension
        require(where.shape[1] == dimension, "points", where, f"points with {dimension} coordinates")
        check_names(operator, model.names, "operator")
        return seen(network, observe(operator, 0.0, at=where), "points")


def scored(
    network: Network,
    model: Model,
    *,
    form: Form,
    eta: Any,
    sigma2: Any,
    points: Points,
    seed: int,
    rows: Scaling,
    memory: Any,
    progress: bool | None,
) -> NetworkPile:
    """Return PILE of a network of any framework; the options are those of `network_pile`."""
    _check_options(form, eta, sigma2)
    require(isinstance(model, Model), "model", model, "a ps.Model, whose data and physics the network is scored on")
    _check_choice(points, "points", get_args(Points))
    _check_choice(rows, "rows", get_args(Scaling))
    as_count(seed, "seed", least=0)
    limit = None if memory is None else as_positive(memory, "memory")
    own = [seen(network, block, label) for block, label in zip(model.blocks, model.labels, strict=True)]
    blocks = own
    kept: list[str] = []
    if points == "fresh":
        fresh, kept = drawn_afresh(model, seed)
        pairs = zip(own, fresh, model.labels, strict=True)
        blocks = [old if new is old.block else seen(network, new, label) for old, new, label in pairs]
    _warn_of_training_points(points, kept)
    given = Trained(
        NetworkRows(network, blocks, limit),
        np.concatenate([each.residuals for each in blocks]),
        np.concatenate([each.block.values for each in blocks]),
        network.displacement,
        _relative_noise(model, blocks, rows),
        network.spread,
        network,
        model,
        rows,
    )
    residuals = {name: _root_mean_square(each.residuals) for name, each in zip(model.labels, blocks, strict=True)}
    loss = sum(float(np.mean(each.residuals**2)) for each in own)
    found = _result(given.decomposed(limit, progress), form, eta, sigma2, residuals, loss)
    idle = [*_idle_blocks(found.tangent.whitened, blocks, model.labels), *_idle_arrays(found.tangent.whitened, network)]
    return dataclasses.replace(found, notes=(*found.notes, *idle))


def network_pile_from_jacobian(
    jacobian: Any,
    residuals: Any,
    *,
    displacement: Any = None,
    targets: Any = None,
    noise: Any = 1.0,
    scales: Any = 1.0,
    form: Form = "laplace",
    eta: Any = None,
    sigma2: Any = None,
    training_loss: Any = None,
) -> NetworkPile:
    """Return PILE of a trained network of any framework, from its Jacobian and its residuals.

    Parameters
    ----------
    jacobian
        `J`, of shape (N, P): the gradient in the parameters of each observed quantity, at the trained parameters. One
        for which twice its memory is not there is read where it is, and should not be changed afterwards.
    residuals
        `e = t − F(θ̂)`, of shape (N,): what was observed less what the network predicts.
    displacement
        `θ̂ − θ_c`, of shape (P,): the trained parameters less the centre of their prior. The tangent form needs none.
    targets
        `t`, of shape (N,), for the tangent form.
    noise
        `D`, the relative noise variances of the rows: a number, or one for each. Rows of different kinds need different
        ones: an equation's residual counts by the variance that its operator has for functions of unit variance.
    scales
        `Λ`, the relative prior variances of the parameters: a number, or one for each.
    form, eta, sigma2
        As for `network_pile`.
    training_loss
        A number to stand beside the score.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(-1, 1, 30)
    >>> J = np.stack([np.ones_like(x), x, x**2], axis=1)  # a model that is linear in three parameters
    >>> found = ps.network_pile_from_jacobian(J, 0.01 * np.cos(40 * x), displacement=[0.5, -1.0, 2.0])
    >>> found.form, found.size, found.parameters, round(found.sigma2**0.5, 3)
    ('laplace', 30, 3, 0.008)
    """
    _check_options(form, eta, sigma2)
    matrix = _as_jacobian(jacobian, None)
    n, p = matrix.shape
    e = as_vector(residuals, "residuals", n, "row of the Jacobian")
    column = "column of the Jacobian"
    delta = None if displacement is None else as_vector(displacement, "displacement", p, column)
    t = None if targets is None else as_vector(targets, "targets", n, "row of the Jacobian")
    if form == "tangent":
        require(t is not None, "targets", targets, "the observed values t, for the tangent form")
    else:
        require(delta is not None, "displacement", displacement, f"θ̂ − θ_c, for the {form} form")
    d, spread = as_vector(noise, "noise", n, "row of the Jacobian"), as_vector(scales, "scales", p, column)
    for name, variances in (("noise", d), ("scales", spread)):
        require(bool(np.all(variances > 0)), name, float(variances.min()), "positive variances")
    loss = np.array(np.nan) if training_loss is None else as_array(training_loss, "training_loss")
    require(loss.ndim == 0, "training_loss", training_loss, "a single number")
    tangent = Trained(GivenRows(matrix), e, t, delta, d, spread).decomposed(None, False)
    found = _result(tangent, form, eta, sigma2, {"rows": _root_mean_square(e)}, float(loss))
    kind = np.asarray(jacobian).dtype
    if kind == np.float64 or not is_real(kind):
        return found
    note = f"a Jacobian of {kind} was promoted to float64: its own rounding is not in `rounding`"
    return dataclasses.replace(found, notes=(*found.notes, note))


def _result(
    tangent: Tangent, form: Form, eta: Any, sigma2: Any, residuals: Mapping[str, float], loss: float
) -> NetworkPile:
    n, p = tangent.whitened.rows.shape
    spectrum = tangent.spectrum(form)
    return NetworkPile(
        **_terms(spectrum, eta, sigma2, () if tangent.network is None else tangent.network.notes),
        constant=math.log(2 * math.pi),
        form=form,
        size=n,
        parameters=p,
        misfit=float(tangent.residuals @ tangent.residuals) / n,
        residuals=residuals,
        training_loss=loss,
        method=tangent.whitened.plan.text,
        spectrum=spectrum,
        tangent=tangent,
    )


def _terms(spectrum: Spectrum, eta: Any, sigma2: Any, notes: tuple[str, ...]) -> dict[str, Any]:
    """Return the terms of the evidence at hyperparameters that are given, or else profiled."""
    given = [None if value is None else as_positive(value, name) for name, value in (("eta", eta), ("sigma2", sigma2))]
    for value, name in zip(given, ("eta", "sigma2"), strict=True):
        require(value is None or 1e-100 <= value <= 1e100, name, value, "a number between 1e-100 and 1e100")
    scale, level, remark = spectrum.profiled(*given)
    n, ratio = spectrum.size, level / scale
    quadratic = spectrum.quadratic(ratio) / scale / n
    prior = spectrum.squares.fixed / scale / n
    complexity = (spectrum.logdet(ratio) + n * math.log(scale)) / n
    kept = tuple(note for note in notes if not note.startswith("sigma2/eta"))
    return {
        "value": quadratic + complexity + math.log(2 * math.pi),
        "fit": quadratic - prior,
        "prior": prior,
        "complexity": complexity,
        "eta": scale,
        "sigma2": level,
        "rounding": spectrum.rounding(scale, level) / n,
        "notes": (*kept, remark) if remark else kept,
    }


def _relative_noise(model: Model, blocks: Sequence[Seen], rows: Scaling) -> Float[np.ndarray, " N"]:
    """Return `D`: by the prior variance of each block's operator, or the model's noise variances."""
    if rows == "model":
        shared = {"data": float(model.gamma), "physics": float(model.rho)}
        parts = []
        for each in blocks:
            own = each.block.temperature
            parts.append(0.5 * (shared[each.block.role] if own is None else float(own)) / each.block.weights)
        return np.concatenate(parts)
    scale = [prior_variance(model, each.block) for each in blocks]
    for value, label in zip(scale, labels([each.block for each in blocks]), strict=True):
        if not value > 0:
            raise InputError(
                f"rows: block {label!r} has no variance under {model.kernel!r}, so that its rows cannot be scaled by "
                "it: use rows='model', or another kernel"
            )
    spreads = [1.0 / each.block.weights for each in blocks]
    return np.concatenate([v * part / part.mean() for v, part in zip(scale, spreads, strict=True)])


def _idle_blocks(whitened: Whitened, blocks: Sequence[Seen], names: Sequence[str]) -> list[str]:
    """Say which blocks no parameter has anything to do with, where the Jacobian is there to see."""
    notes, done = [], 0
    for each, name in zip(blocks, names, strict=True):
        if whitened.held is not None and not whitened.held[done : done + each.block.size].any():
            notes.append(f"no parameter changes the values of block {name!r} ({each.block.operator} of the network)")
        done += each.block.size
    return notes


def _idle_arrays(whitened: Whitened, network: Network) -> list[str]:
    """Say which arrays of parameters no row depends on, where the Jacobian is there to see."""
    if whitened.held is None:
        return []
    used, done, idle = np.asarray(whitened.held.any(axis=0)), 0, []
    for name, size in network.arrays:
        if size and not used[done : done + size].any():
            idle.append(name)
        done += size
    if not idle:
        return []
    which = ", ".join(map(repr, idle))
    return [f"no row depends on {which}, which counts in the prior all the same: leave it out with parameters="]


def _warn_of_training_points(points: Points, kept: list[str]) -> None:
    if points == "training":
        warnings.warn(
            "points='training': residuals at the points that a network was trained on say how well it was trained, not "
            "how good it is. Leave points='fresh', which draws new ones",
            TrainingPointsWarning,
            stacklevel=4,
        )
    elif kept:
        warnings.warn(
            f"physics {', '.join(map(repr, kept))} stays at its own points: it was imposed at explicit nodes, or with "
            "an array of values or noises. If the network was trained there, give the value as a function on nodes of "
            "a region, or score at other points with points='held out'",
            TrainingPointsWarning,
            stacklevel=4,
        )


def _check_options(form: Any, eta: Any, sigma2: Any) -> None:
    _check_choice(form, "form", get_args(Form))
    for name, value in (("eta", eta), ("sigma2", sigma2)):
        if value is not None:
            as_positive(value, name)


def _check_choice(value: Any, name: str, choices: tuple[str, ...]) -> None:
    *some, last = map(repr, choices)
    require(isinstance(value, str) and value in choices, name, value, f"{', '.join(some)} or {last}")


def _as_jacobian(value: Any, columns: int | None) -> Float[np.ndarray, "n P"]:
    matrix = as_array(value, "jacobian", copy=False)
    shape = "shape (N, P), a row for each value and a column for each parameter"
    if columns is not None:
        shape = f"shape (n, {columns}), a column for each parameter"
    good = matrix.ndim == 2 and matrix.size > 0 and (columns is None or matrix.shape[1] == columns)
    require(good, "jacobian", matrix, shape)
    return matrix


def _root_mean_square(values: Float[np.ndarray, " n"]) -> float:
    return math.sqrt(float(np.mean(values**2)))
