"""PILE of networks trained with PyTorch: `pilescore.networks.torch.network_pile`.

PyTorch is an extra: `pip install 'pilescore[torch]'`. The module is copied and never changed. All computations are in
float64 on the CPU.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from ..equations import MultiIndex
from ..errors import InputError, PilescoreError, as_array, did_you_mean, listed, require
from ..model import Model
from .evidence import NetworkPile, score_network
from .interface import DEFAULT_PRIOR, NetworkPrior, affine_arrays
from .laplace import Form
from .scoring_points import PointKind, ScoringPoints

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "pilescore.networks.torch needs PyTorch: pip install 'pilescore[torch]'", name="torch"
    ) from error

from torch.func import functional_call, grad, jvp, vmap

Tensors: TypeAlias = dict[str, torch.Tensor]

PROBES = 16
"""The number of points at which a module is tried and its last layer is detected."""


def network_pile(
    module: torch.nn.Module,
    model: Model,
    *,
    form: Form = "laplace",
    parameters: Any = "all",
    prior: NetworkPrior = DEFAULT_PRIOR,
    points: PointKind | ScoringPoints = "fresh",
    progress: bool | None = None,
) -> NetworkPile:
    """Return the log evidence of a trained PyTorch module: `ps.network_pile` for PyTorch.

    Parameters
    ----------
    module
        A `torch.nn.Module` with one output. It is called with points of shape (1, d), a batch of one, and is not
        changed: its parameters and buffers are copied to the CPU in float64. Parameters with `requires_grad=False`
        stay fixed.
    model
        The data and physics to score the module on. Its kernel is only used to scale the rows.
    form, points, progress
        See `ps.network_pile`.
    parameters
        The parameters that are uncertain; the others are fixed. `"all"`, `"last layer"` (those in which the output is
        affine), or a list of names.
    prior
        The prior of the parameters and the scale of the noise. `centre` maps names to values, for example the
        `state_dict` of the module before training; a missing name means zero. `scales` is one number, or maps names to
        numbers or arrays; a missing name means one.

    Examples
    --------
    >>> import torch, pilescore as ps
    >>> from pilescore.networks.torch import network_pile
    >>> line = ps.Box(x=(0, 1))
    >>> (dx,) = ps.partials(line)
    >>> model = ps.Model(
    ...     kernel=ps.RBF(bandwidth=0.5),
    ...     data=ps.observe(ps.identity, values=[0.0, 1.0], at=[0.0, 1.0]),
    ...     physics=ps.impose(dx**2, 0.0, on=line.interior(ps.GaussLegendre(8))),
    ... )
    >>> _ = torch.manual_seed(0)
    >>> module = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    >>> score = network_pile(module, model)
    >>> score.size, score.parameters
    (10, 25)
    """

    def read() -> TorchNetwork:
        every_point = np.concatenate([block.points for block in model.blocks])
        return TorchNetwork(module, every_point, parameters=parameters, prior=prior)

    return score_network(read, model, form, prior, points, progress)


class TorchNetwork:
    """A PyTorch module with parameters, some of which are uncertain; see `Network`."""

    size: int
    displacement: Float[np.ndarray, " P"]
    spread: Float[np.ndarray, " P"]
    notes: tuple[str, ...]

    def __init__(
        self,
        module: torch.nn.Module,
        points: Float[np.ndarray, "n d"],
        *,
        parameters: Any = "all",
        prior: NetworkPrior = DEFAULT_PRIOR,
    ) -> None:
        _check_module(module)
        learnt = dict(module.named_parameters())
        free = [name for name, tensor in learnt.items() if tensor.requires_grad]
        summary = f"a {type(module).__name__} with {len(learnt)} parameters, all fixed"
        require(len(free) > 0, "module", summary, "parameters with requires_grad=True")
        self.dimension = int(points.shape[1])
        with torch.inference_mode(False):
            self._module = _copied(module)
            promoted = {name: _promoted(tensor) for name, tensor in learnt.items()}
            self._fixed: Tensors = {name: _promoted(tensor) for name, tensor in module.named_buffers()}
        self._chosen: Tensors = {name: promoted[name] for name in free}
        self._fixed |= {name: tensor for name, tensor in promoted.items() if name not in self._chosen}
        probes = np.random.default_rng(0).permutation(points)[:PROBES]
        self._check_calls(probes)
        chosen = self._named(parameters, free, learnt, probes)
        self._fixed |= {name: tensor for name, tensor in self._chosen.items() if name not in chosen}
        self._chosen = {name: self._chosen[name] for name in free if name in chosen}
        known = [*learnt, *dict(module.named_buffers()), *module.state_dict()]
        means = self._by_name({} if prior.centre is None else prior.centre, "centre", known, 0.0)
        scales = prior.scales
        variances = scales if isinstance(scales, Mapping) else dict.fromkeys(self._chosen, scales)
        self.spread = self._by_name(variances, "scales", known, 1.0)
        require(bool(np.all(self.spread > 0)), "scales", float(self.spread.min()), "positive prior variances")
        self.displacement = np.concatenate([tensor.numpy().ravel() for tensor in self._chosen.values()]) - means
        self.size = len(self.displacement)
        self.notes = tuple(_notes(learnt, free))

    @property
    def arrays(self) -> tuple[tuple[str, int], ...]:
        """The names and sizes of the uncertain parameters."""
        return tuple((name, tensor.numel()) for name, tensor in self._chosen.items())

    def making(self, order: int) -> int:
        """Return the peak memory while rows are computed, as a multiple of theirs."""
        # Each nested forward derivative doubles the number of intermediate values, all of which have gradients.
        return 3 * 2**order

    def derivatives(
        self, points: Float[np.ndarray, "n d"], indices: tuple[MultiIndex, ...]
    ) -> Float[np.ndarray, "indices n"]:
        """Return `∂^α f` at points."""

        def at(point: torch.Tensor) -> torch.Tensor:
            return torch.stack(_jets(lambda p: self._value(self._chosen, p), point, indices))

        with _torch_errors(self.dimension):
            return np.ascontiguousarray(vmap(at)(_tensor(points)).detach().numpy().T)

    def jacobian(
        self, points: Float[np.ndarray, "n d"], indices: tuple[MultiIndex, ...], table: Float[np.ndarray, "indices n"]
    ) -> Float[np.ndarray, "n P"]:
        """Return the gradients in the parameters of `Σ_α c_α ∂^α f` at points, where `table` holds the `c_α`."""

        def combined(chosen: Tensors, point: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
            return torch.stack(_jets(lambda p: self._value(chosen, p), point, indices)) @ column

        with _torch_errors(self.dimension):
            gradients = vmap(grad(combined), in_dims=(None, 0, 0))(self._chosen, _tensor(points), _tensor(table.T))
        return np.concatenate([each.detach().reshape(len(points), -1).numpy() for each in gradients.values()], axis=1)

    def _value(self, chosen: Tensors, point: torch.Tensor) -> torch.Tensor:
        """Return the output at one point of shape (d,)."""
        return functional_call(self._module, {**self._fixed, **chosen}, (point[None],)).reshape(())

    def _check_calls(self, points: Float[np.ndarray, "n d"]) -> None:
        """Raise an `InputError` unless the module deterministically returns one float64 number at a point."""
        with _torch_errors(self.dimension):
            call = (self._module, {**self._fixed, **self._chosen}, (_tensor(points[:1]),))
            output, again = functional_call(*call), functional_call(*call)
        require(isinstance(output, torch.Tensor), "module", type(output).__name__, "a module that returns one tensor")
        if output.numel() != 1:
            raise InputError(
                f"module: expected one number at each point; for a point of shape (1, {self.dimension}) its output has "
                f"shape {tuple(output.shape)}. Wrap it in a module that returns the component to score"
            )
        if output.dtype != torch.float64:
            raise InputError(
                f"module: expected a float64 output for float64 parameters and points; it is {_dtype(output)}. The "
                "module casts to another type: look for .float(), .to(torch.float32) and dtype="
            )
        if not torch.equal(output.nan_to_num(), again.nan_to_num()):
            raise InputError(
                "module: two calls at one point give different numbers. If it is random, call module.eval()"
            )
        value_only = (self.dimension * (0,),)
        self.jacobian(points[:2], value_only, np.ones((1, len(points[:2]))))

    def _named(
        self, selection: Any, free: Sequence[str], learnt: Mapping[str, torch.Tensor], points: np.ndarray
    ) -> list[str]:
        """Return the names of the selected parameters."""
        expected = "'all', 'last layer' or a list of names of parameters"
        if isinstance(selection, str):
            valid = selection in ("all", "last layer")
            require(valid, "parameters", selection, f"{expected}; the names are {listed(free)}")
            return list(free) if selection == "all" else self._last_layer(points)
        names = isinstance(selection, Sequence) and len(selection) > 0 and all(isinstance(n, str) for n in selection)
        require(names, "parameters", selection, expected)
        for name in selection:
            if name not in free:
                why = "it has requires_grad=False" if name in learnt else f"there are {listed(free)}"
                hint = "" if name in learnt else did_you_mean(name, free)
                raise InputError(f"parameters: no parameter {name!r} that may be selected: {why}{hint}")
        require(len(set(selection)) == len(selection), "parameters", list(selection), "different names")
        return list(selection)

    def _last_layer(self, points: np.ndarray) -> list[str]:
        """Return the names of the parameters in which the output is affine."""
        shapes = {name: tensor.shape for name, tensor in self._chosen.items()}

        def evaluate(arrays: Sequence[np.ndarray]) -> np.ndarray:
            tensors = {name: _tensor(array).reshape(shapes[name]) for name, array in zip(shapes, arrays, strict=True)}
            with _torch_errors(self.dimension):
                return np.array([float(self._value(tensors, point)) for point in _tensor(points)])

        arrays = [tensor.numpy() for tensor in self._chosen.values()]
        return [list(shapes)[i] for i in affine_arrays(evaluate, arrays, list(shapes))]

    def _by_name(self, given: Any, argument: str, known: Sequence[str], default: float) -> Float[np.ndarray, " P"]:
        """Return one number for each uncertain parameter, from a mapping by name."""
        expected = "a mapping by the names of parameters, such as a state_dict"
        require(isinstance(given, Mapping), argument, given, expected)
        for name in given:
            if name not in known:
                raise InputError(f"{argument}: there is no parameter {name!r}{did_you_mean(name, known)}")
        numbers = []
        for name, tensor in self._chosen.items():
            value = given.get(name, default)
            if isinstance(value, torch.Tensor):
                value = value.detach().cpu().to(torch.float64).numpy()
            array, shape = as_array(value, f"{argument}[{name!r}]"), tuple(tensor.shape)
            fits = array.shape in ((), shape)
            require(fits, f"{argument}[{name!r}]", array, f"a number or shape {shape}, as the parameter")
            numbers.append(np.broadcast_to(array, shape).ravel())
        return np.concatenate(numbers)


def _jets(
    function: Callable[[torch.Tensor], torch.Tensor], point: torch.Tensor, indices: tuple[MultiIndex, ...]
) -> list[torch.Tensor]:
    """Return partial derivatives at a point by nested forward mode."""

    def below(alpha: MultiIndex, beta: MultiIndex) -> bool:
        return all(a <= b for a, b in zip(alpha, beta, strict=True))

    derivatives: dict[MultiIndex, torch.Tensor] = {}
    for top in indices:
        # Each jvp returns the value too, so a high derivative comes with all lower ones along its path: start from
        # the maximal multi-indices only.
        if top in derivatives or any(below(top, other) and top != other for other in indices):
            continue
        path = [axis for axis, order in enumerate(top) for _ in range(order)]
        nested: Any = function
        for axis in path:
            nested = _with_derivative(nested, axis)
        tree = nested(point)
        for alpha in indices:
            if below(alpha, top) and alpha not in derivatives:
                derivatives[alpha] = _branch(tree, path, alpha)
    return [derivatives[alpha] for alpha in indices]


def _with_derivative(function: Callable[[torch.Tensor], Any], axis: int) -> Callable[[torch.Tensor], Any]:
    def both(point: torch.Tensor) -> Any:
        unit = torch.zeros_like(point)
        unit[axis] = 1.0
        return jvp(function, (point,), (unit,))

    return both


def _branch(tree: Any, path: Sequence[int], alpha: MultiIndex) -> torch.Tensor:
    """Return one derivative from nested pairs (value, derivative), the last axis of the path outermost."""
    left = list(alpha)
    for axis in reversed(path):
        tree = tree[1 if left[axis] else 0]
        left[axis] -= 1 if left[axis] else 0
    return tree


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.tensor(array, dtype=torch.float64, device="cpu")


def _promoted(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy on the CPU, in double precision if it holds real or complex floats."""
    kind = torch.complex128 if tensor.is_complex() else torch.float64 if tensor.is_floating_point() else tensor.dtype
    return tensor.detach().cpu().to(dtype=kind, copy=True)


def _copied(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy of a module in which tensors that are plain attributes are in float64 too."""
    attributes = (value for each in module.modules() for value in vars(each).values())
    memo = {id(value): _promoted(value) for value in attributes if isinstance(value, torch.Tensor)}
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:
        raise InputError(
            f"module: expected a module that copy.deepcopy can copy; it failed: {_first_line(error)}"
        ) from error


def _check_module(module: Any) -> None:
    """Raise an `InputError` unless a module has finite numbers and its output at a point is not random."""
    require(isinstance(module, torch.nn.Module), "module", module, "a torch.nn.Module")
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, tensor in tensors.items():
        if torch.nn.parameter.is_lazy(tensor):
            raise InputError(f"module: {name!r} has no shape yet: call the module once before scoring it")
        if tensor.is_meta:
            raise InputError(f"module: {name!r} is on the device meta, without numbers: load its state first")
    kinds = (torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._NormBase, torch.nn.RReLU)
    for name, each in module.named_modules():
        if each.training and isinstance(each, kinds) and getattr(each, "p", 1.0) > 0:
            raise InputError(
                f"module: {name or 'it'} is a {type(each).__name__} in training mode: its output is random or depends "
                "on the other points in a batch. Call module.eval()"
            )
    for name, tensor in tensors.items():
        learnt = isinstance(tensor, torch.nn.Parameter)
        if learnt and tensor.is_complex():
            raise InputError(f"module: expected real parameters; {name!r} is {_dtype(tensor)}")
        bad = int((~torch.isfinite(tensor.detach())).sum())
        if bad:
            kind = "parameter" if learnt else "buffer"
            raise InputError(f"module: {bad} of {tensor.numel()} numbers of the {kind} {name!r} are NaN or infinite")


def _notes(learnt: Mapping[str, torch.Tensor], free: Sequence[str]) -> Iterator[str]:
    kinds = dict.fromkeys(_dtype(tensor) for tensor in learnt.values() if tensor.is_floating_point())
    lower = [kind for kind in kinds if kind != "float64"]
    if lower:
        yield f"parameters are {listed(lower)}: promoted to float64"
    devices = dict.fromkeys(str(tensor.device) for tensor in learnt.values() if tensor.device.type != "cpu")
    if devices:
        yield f"parameters are on {listed(list(devices))}: copied to the CPU, where all is computed"
    fixed = [name for name in learnt if name not in free]
    if fixed:
        yield f"held fixed, with requires_grad=False: {listed(fixed)}"


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


@contextlib.contextmanager
def _torch_errors(dimension: int) -> Iterator[None]:
    """Turn errors of PyTorch into an `InputError` that says what a module must support."""
    hints = {
        "dtype": "a tensor inside is not float64: make it a buffer, which is promoted, or float64",
        "scalar type": "a tensor inside is not float64: make it a buffer, or float64",
        "control flow": "it must run the same operations at every point: use torch.where instead of if",
        "requires_grad": "it differentiates its own output by torch.autograd, which torch.func cannot differentiate "
        "again: use torch.func.grad or torch.func.jvp inside",
        "randomness": "it is random: call module.eval()",
        "DataParallel": "give the module inside it, module.module",
        "Jitted": "give the original module, before torch.jit",
        "argument": "its forward must take one tensor, points of shape (n, d): wrap it in a module that does",
    }
    try:
        with warnings.catch_warnings(), torch.inference_mode(False):
            warnings.filterwarnings("ignore", message=".*torch.jit.script", category=DeprecationWarning)
            yield
    except PilescoreError:
        raise
    except Exception as error:
        text = _first_line(error)
        hint = next((hint for sign, hint in hints.items() if sign in str(error)), "")
        raise InputError(
            f"module: it could not be called with points of shape (1, {dimension}) and differentiated: "
            f"{text}{'' if not hint else f' ({hint})'}"
        ) from error
