"""PILE of a trained network through its tangent: the result, its predictions, and its computation."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_args

import numpy as np
from jaxtyping import Float

from ..equations import Nonlinear, Operator, identity
from ..errors import (
    InputError,
    PrecisionWarning,
    TrainingPointsWarning,
    as_array,
    as_points,
    as_positive,
    as_vector,
    is_real,
    require,
)
from ..inference import Evidence
from ..model import Model, Observation, check_names, observe
from ..parallel import require_memory
from .interface import DEFAULT_PRIOR, BlockPrediction, Network, NetworkPrior, predict
from .jacobians import MatrixRows, NetworkRows
from .laplace import Form, NetworkTangent, Spectrum, decompose_tangent
from .scoring_points import PointKind, ScoringPoints, check_choice, draw_fresh, relative_noise

SEES = {
    "laplace": (
        "the residuals at the scoring points, the size of the parameters, and how many of them the rows determine; not "
        "a wrong solution that satisfies all rows"
    ),
    "linearised": "how well the network's tangent can explain the rows, wherever training ended within it",
    "tangent": "how well the architecture's tangent suits the rows; not the trained solution",
}
"""What each form can and cannot detect."""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class NetworkPile(Evidence):
    """The log evidence of a trained network and its terms, as returned by `network_pile`; lower is better.

    `value = fit + prior + complexity + constant`, per observation. `misfit` and `training_loss` are reported beside it,
    because the misfit alone often ranks networks as well.

    Examples
    --------
    A polynomial, linear in its three parameters:

    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(-1, 1, 30)
    >>> J = np.stack([np.ones_like(x), x, x**2], axis=1)
    >>> found = ps.network_pile_from_jacobian(J, 0.01 * np.cos(40 * x), params=[0.5, -1.0, 2.0])
    >>> abs(found.value - found.fit - found.prior - found.complexity - found.constant) < 1e-12
    True
    >>> found.value < found.at(sigma2=1.0).value  # η and σ² were chosen; more noise is worse
    True
    >>> np.sqrt(found.variance_from_jacobian([[1.0, 0.0, 0.0], [1.0, 3.0, 9.0]])).round(3)  # at x = 0 and x = 3
    array([0.002, 0.039])
    """

    value: float
    """`2F/N`, with `F` the negative log evidence."""
    fit: float
    """`‖e‖²_{S⁻¹}/N` (laplace), `t̃ᵀC⁻¹t̃/N` (linearised) or `tᵀC⁻¹t/N` (tangent)."""
    prior: float
    """`‖θ̂ − θ_c‖²_{(ηΛ)⁻¹}/N` in the laplace form, else zero."""
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
    """The scale η of the parameters' prior variances `ηΛ`, given or chosen."""
    sigma2: float
    """The scale σ² of the rows' noise variances `σ²D`, given or chosen."""
    misfit: float
    """`‖e‖²_{D⁻¹}/N`: the mean squared scaled residual at the scoring points; no evidence enters it."""
    residuals: Mapping[str, float]
    """The root mean square residual of each block at the scoring points, in its own units."""
    training_loss: float
    """The sum over blocks of the mean squared residual at the model's own points; NaN if unknown."""
    rounding: float
    """An estimate of the rounding error of `value`."""
    notes: tuple[str, ...]
    """Remarks on the computation."""
    method: str
    """How the Jacobian was computed, and the memory it took."""
    spectrum: Spectrum
    """The evidence of this form at every η and σ²."""
    tangent: NetworkTangent
    """The decomposed Jacobian, from which other forms and predictions are computed."""

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
        """PILE, misfit and training loss, each with a sentence on what it can and cannot detect."""
        sentences = {
            "PILE": f"{self.value:.6g}. It sees {SEES[self.form]}.",
            "misfit": (
                f"{self.misfit:.4g}, the mean squared scaled residual at the scoring points. It sees where the network "
                "misses the rows; not how many parameters it needed, nor its uncertainty."
            ),
        }
        if not math.isnan(self.training_loss):
            sentences["training loss"] = (
                f"{self.training_loss:.4g}, the mean squared residuals at the model's own points. It sees how well "
                "training fitted these points; not what happens between them."
            )
        return sentences

    def at(self, *, eta: Any = None, sigma2: Any = None, form: Form | None = None) -> NetworkPile:
        """Return the score at another η and σ² in O(N), or in another form.

        An η or σ² that is not given is chosen to minimise the score. The eigendecomposition is reused; another form
        takes one product with the Jacobian.

        Examples
        --------
        >>> import numpy as np, pilescore as ps
        >>> x = np.linspace(-1, 1, 20)
        >>> J = np.stack([np.ones_like(x), x], axis=1)
        >>> found = ps.network_pile_from_jacobian(J, 0.1 * np.cos(9 * x), params=[1.0, 2.0])
        >>> found.value < found.at(sigma2=0.01).value < found.at(sigma2=1.0).value, round(found.sigma2, 4)
        (True, 0.0056)
        >>> found.at(form="linearised").value < found.value  # as if training had found the best point of the tangent
        True
        """
        scales = _as_scale(eta, "eta"), _as_scale(sigma2, "sigma2")
        if form is None or form == self.form:
            return dataclasses.replace(self, **_terms(self.spectrum, *scales, self.notes))
        check_choice(form, "form", get_args(Form))
        spectrum = self.tangent.spectrum(form)
        return dataclasses.replace(self, form=form, spectrum=spectrum, **_terms(spectrum, *scales, self.notes))

    def mean(self, points: Any, operator: Operator | Nonlinear = identity) -> Float[np.ndarray, " n"]:
        """Return the network, or an operator applied to it, at points of shape (n, d)."""
        return self._predict(points, operator).predicted

    def std(self, points: Any, operator: Operator | Nonlinear = identity) -> Float[np.ndarray, " n"]:
        """Return the posterior standard deviation of `A f` by the linearised Laplace approximation."""
        return np.sqrt(self.variance(points, operator))

    def variance(self, points: Any, operator: Operator | Nonlinear = identity) -> Float[np.ndarray, " n"]:
        """Return the posterior variance of `A f` by the linearised Laplace approximation, in batches.

        A `PrecisionWarning` reports variances that are below rounding; negative ones are set to zero.
        """
        rows = NetworkRows(self._scored[0], [self._predict(points, operator)])
        return self._variances(rows.make(cell) for cell in range(len(rows.cells())))

    def variance_from_jacobian(self, jacobian: Any) -> Float[np.ndarray, " n"]:
        """Return the variances of predictions, given their gradients in the parameters as rows of shape (n, P)."""
        return self._variances([_as_jacobian(jacobian, self.parameters)])

    def _variances(self, batches: Iterable[Float[np.ndarray, "_ P"]]) -> Float[np.ndarray, " n"]:
        pairs = [self.tangent.variances(batch, self.sigma2 / self.eta) for batch in batches]
        variances, error = (self.eta * np.concatenate(each) for each in zip(*pairs, strict=True))
        # prior − explained cancels where the rows determine a prediction well.
        lost = variances < error
        if lost.any():
            warnings.warn(
                f"{int(lost.sum())} of {len(variances)} variances are below rounding, which is up to "
                f"{error.max():.1e}: none of their digits are reliable. sigma2/eta = {self.sigma2 / self.eta:.1e} is "
                f"small compared with the largest eigenvalue {self.tangent.largest:.1e}",
                PrecisionWarning,
                stacklevel=4,
            )
        return np.maximum(variances, 0.0)

    def covariance(self, points: Any, operator: Operator | Nonlinear = identity) -> Float[np.ndarray, "n n"]:
        """Return the posterior covariance of `A f` at points by the linearised Laplace approximation."""
        rows = NetworkRows(self._scored[0], [self._predict(points, operator)])
        count = rows.shape[0]
        require_memory(count, 8.0 * (2 * count**2 + count * (self.parameters + self.size)), "the covariance of points")
        queried = np.concatenate([rows.make(number) for number in range(len(rows.cells()))])
        return self.eta * self.tangent.covariance(queried, self.sigma2 / self.eta)

    def noise_variance(self, block: Observation) -> Float[np.ndarray, " n"]:
        """Return the noise variances `σ²D` of a block of observations under this score."""
        _, model = self._scored
        dimension = model.blocks[0].dimension
        good = isinstance(block, Observation) and block.dimension == dimension
        require(good, "block", block, f"a block of ps.observe or ps.impose whose points have {dimension} coordinates")
        return self.sigma2 * relative_noise(model, [block], self.tangent.scaling)

    @property
    def _scored(self) -> tuple[Network, Model]:
        """The network and the model that it was scored on."""
        if self.tangent.network is None or self.tangent.model is None:
            raise InputError("a score from a Jacobian has no network to evaluate: use variance_from_jacobian")
        return self.tangent.network, self.tangent.model

    def _predict(self, points: Any, operator: Operator | Nonlinear) -> BlockPrediction:
        network, model = self._scored
        require(isinstance(operator, Operator | Nonlinear), "operator", operator, "an operator such as ps.identity")
        checked = as_points(points, "points")
        dimension = model.blocks[0].dimension
        require(checked.shape[1] == dimension, "points", checked, f"points with {dimension} coordinates")
        check_names(operator, model.names, "operator")
        return predict(network, observe(operator, 0.0, at=checked), "points")


def score_network(
    read: Callable[[], Network],
    model: Model,
    form: Form,
    prior: NetworkPrior,
    points: PointKind | ScoringPoints,
    progress: bool | None,
) -> NetworkPile:
    """Return PILE of a network of any framework; the options are those of `network_pile`.

    `read` returns the network, after the other arguments have been checked.
    """
    check_choice(form, "form", get_args(Form))
    require(isinstance(model, Model), "model", model, "a ps.Model with the data and physics to score the network on")
    scales = _given_scales(prior)
    scoring = points if isinstance(points, ScoringPoints) else ScoringPoints(points)
    memory = None if scoring.memory is None else float(scoring.memory)
    network = read()
    # The model's own points are needed in any case: for the training loss, and for blocks that are not moved.
    own = [predict(network, block, label) for block, label in zip(model.blocks, model.labels, strict=True)]
    scored = own
    kept: list[str] = []
    if scoring.kind == "fresh":
        fresh, kept = draw_fresh(model, scoring.seed)
        pairs = zip(own, fresh, model.labels, strict=True)
        scored = [old if new is old.block else predict(network, new, label) for old, new, label in pairs]
    _warn_of_training_points(scoring.kind, kept)
    tangent = decompose_tangent(
        NetworkRows(network, scored, memory),
        np.concatenate([each.residuals for each in scored]),
        np.concatenate([each.block.values for each in scored]),
        network.displacement,
        relative_noise(model, [each.block for each in scored], scoring.scaling),
        network.spread,
        network=network,
        model=model,
        scaling=scoring.scaling,
        memory=memory,
        progress=progress,
    )
    residuals = {name: _root_mean_square(each.residuals) for name, each in zip(model.labels, scored, strict=True)}
    loss = sum(float(np.mean(each.residuals**2)) for each in own)
    score = _result(tangent, form, scales, residuals, loss)
    matrix = tangent.whitened.matrix
    idle = [] if matrix is None else _idle(matrix, scored, model.labels, network.arrays)
    return dataclasses.replace(score, notes=(*score.notes, *idle))


def network_pile_from_jacobian(
    jacobian: Any,
    residuals: Any,
    *,
    params: Any = None,
    targets: Any = None,
    noise: Any = 1.0,
    form: Form = "laplace",
    prior: NetworkPrior = DEFAULT_PRIOR,
    training_loss: Any = None,
) -> NetworkPile:
    """Return PILE of a trained network of any framework, from its Jacobian and its residuals.

    Parameters
    ----------
    jacobian
        `J`, of shape (N, P): the gradient in the parameters of each observed quantity, at the trained parameters. If
        there is no memory for another two copies, it is read in place; do not change it afterwards.
    residuals
        `e = t − F(θ̂)`, of shape (N,): the observed values minus the network's predictions.
    params
        `θ̂`, of shape (P,): the trained parameters. The tangent form does not need them.
    targets
        `t`, of shape (N,): the observed values, for the tangent form.
    noise
        `D`, the relative noise variances of the rows: one number, or one for each row. Rows of different operators need
        different ones: scale an equation's residual by the variance of its operator over functions of unit variance.
    form
        See `network_pile`.
    prior
        The prior of the parameters and the scale of the noise; `centre` and `scales` are numbers, or vectors of shape
        (P,).
    training_loss
        A number to report beside the score.

    Examples
    --------
    >>> import numpy as np, pilescore as ps
    >>> x = np.linspace(-1, 1, 30)
    >>> J = np.stack([np.ones_like(x), x, x**2], axis=1)  # a model that is linear in three parameters
    >>> found = ps.network_pile_from_jacobian(J, 0.01 * np.cos(40 * x), params=[0.5, -1.0, 2.0])
    >>> found.form, found.size, found.parameters, round(found.sigma2**0.5, 3)
    ('laplace', 30, 3, 0.008)
    """
    check_choice(form, "form", get_args(Form))
    scales = _given_scales(prior)
    matrix = _as_jacobian(jacobian, None)
    n, p = matrix.shape
    row, column = "row of the Jacobian", "column of the Jacobian"
    e = as_vector(residuals, "residuals", n, row)
    theta = None if params is None else as_vector(params, "params", p, column)
    centre = as_vector(0.0 if prior.centre is None else prior.centre, "centre", p, column)
    t = None if targets is None else as_vector(targets, "targets", n, row)
    if form == "tangent":
        require(t is not None, "targets", targets, "the observed values t, for the tangent form")
    else:
        require(theta is not None, "params", params, f"the trained parameters θ̂, for the {form} form")
    d, spread = as_vector(noise, "noise", n, row), as_vector(prior.scales, "scales", p, column)
    for name, variances in (("noise", d), ("scales", spread)):
        require(bool(np.all(variances > 0)), name, float(variances.min()), "positive variances")
    loss = np.array(np.nan) if training_loss is None else as_array(training_loss, "training_loss")
    require(loss.ndim == 0, "training_loss", training_loss, "a single number")
    displacement = None if theta is None else theta - centre
    tangent = decompose_tangent(MatrixRows(matrix), e, t, displacement, d, spread)
    score = _result(tangent, form, scales, {"rows": _root_mean_square(e)}, float(loss))
    dtype = np.asarray(jacobian).dtype
    if dtype == np.float64 or not is_real(dtype):
        return score
    note = f"a Jacobian of {dtype} was promoted to float64: its own rounding is not in `rounding`"
    return dataclasses.replace(score, notes=(*score.notes, note))


def _result(
    tangent: NetworkTangent,
    form: Form,
    scales: tuple[float | None, float | None],
    residuals: Mapping[str, float],
    loss: float,
) -> NetworkPile:
    n, p = tangent.whitened.rows.shape
    spectrum = tangent.spectrum(form)
    return NetworkPile(
        **_terms(spectrum, *scales, () if tangent.network is None else tangent.network.notes),
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


def _terms(spectrum: Spectrum, eta: float | None, sigma2: float | None, notes: tuple[str, ...]) -> dict[str, Any]:
    """Return the terms of the evidence at η and σ². None means the value that minimises it."""
    scale, level, remark = spectrum.profiled(eta, sigma2)
    n, ratio = spectrum.size, level / scale
    quadratic = spectrum.quadratic(ratio) / scale / n
    prior = spectrum.term.fixed / scale / n
    complexity = (spectrum.logdet(ratio) + n * math.log(scale)) / n
    kept = tuple(note for note in notes if not note.startswith("sigma2/eta"))  # remarks on an earlier η and σ²
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


def _given_scales(prior: NetworkPrior) -> tuple[float | None, float | None]:
    """Return η and σ² of a prior, checked; None if they are to be chosen."""
    require(isinstance(prior, NetworkPrior), "prior", prior, "a ps.networks.NetworkPrior")
    return _as_scale(prior.eta, "eta"), _as_scale(prior.sigma2, "sigma2")


def _as_scale(value: Any, name: str) -> float | None:
    if value is None:
        return None
    number = as_positive(value, name)
    require(1e-100 <= number <= 1e100, name, number, "a number between 1e-100 and 1e100")
    return number


def _idle(
    matrix: Float[np.ndarray, "N P"],
    predictions: Sequence[BlockPrediction],
    labels: Sequence[str],
    arrays: Sequence[tuple[str, int]],
) -> list[str]:
    """Return notes on blocks that no parameter affects, and on parameter arrays that no row depends on."""
    rows = np.split(matrix, np.cumsum([each.block.size for each in predictions])[:-1])
    notes = [
        f"no parameter changes the values of block {label!r} ({prediction.block.operator} of the network)"
        for prediction, label, own in zip(predictions, labels, rows, strict=True)
        if not own.any()
    ]
    used = np.split(matrix.any(axis=0), np.cumsum([size for _, size in arrays])[:-1])
    idle = [repr(name) for (name, size), own in zip(arrays, used, strict=True) if size and not own.any()]
    if idle:
        notes.append(f"no row depends on {', '.join(idle)}, but its prior still counts: exclude it with parameters=")
    return notes


def _warn_of_training_points(kind: PointKind, kept: list[str]) -> None:
    if kind == "training":
        warnings.warn(
            "points='training': residuals at the points of training show how well a network was trained, not how good "
            "it is. The default points='fresh' draws new points",
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
