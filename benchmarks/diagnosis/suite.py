"""The cases of the selection benchmark as problems of this one: the suite that thresholds were settled on."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

import pilescore as ps

from ..selection.case import Case
from ..selection.cases import CASES
from ..selection.cases import case as case_of
from ..selection.planted import TIME_ORDERS
from ..selection.rules import true_values
from ..uncertainty.problems import Over, Points, Values
from .problems import TRUE, Equation

PREFIX = "suite-"
"""What names of these problems begin with."""

ANISOTROPIC = ("convection-10", "convection-30")


@dataclasses.dataclass(frozen=True, eq=False)
class SuiteInstance:
    """A draw of a case."""

    case: Case
    seed: int

    @property
    def on(self) -> ps.domains.Nodes:
        """Test points, with quadrature weights."""
        return self.case.on

    @functools.cached_property
    def _model(self) -> ps.Model:
        """The model. Exact sources make exact equations, as by the defaults of the library."""
        model = self.case.model(self.seed)
        return model.replace(rho=None) if self.case.given_physics else model

    @property
    def at(self) -> Points:
        """The places of the readings."""
        return self._model.data[0].points

    @property
    def noise(self) -> float:
        """The deviation of the noise."""
        return self.case.noise

    @property
    def values(self) -> Values:
        """The sound readings."""
        return self._model.data[0].values

    @functools.cached_property
    def exact(self) -> Values:
        """The readings without noise."""
        return self._true(self.at)

    def truth(self, points: Points) -> Values:
        """Return the solution at the test points, which are those of the case, or anywhere."""
        return true_values(self.case) if points is self.on.points else self._true(points)

    def _true(self, points: Points) -> Values:
        return true_values(dataclasses.replace(self.case, on=ps.domains.nodes_at(points)))

    def posed(self, equation: Equation = TRUE, values: Values | None = None) -> tuple[ps.Model, Over]:
        """Return a model with a wrong coefficient or with other readings, and its bounds."""
        model = self._model
        if equation.factor != 1.0:
            model = wrong_coefficient(model, TIME_ORDERS[self.case.name], equation.factor)
        if values is not None:
            model = model.replace(data=[ps.observe(ps.identity, values, at=self.at)])
        known = model.parameters
        over = {name: bounds for name, bounds in self.case.over.items() if name in known or "[" in name}
        return model, over

    def isotropic(self) -> tuple[ps.Model, Over]:
        """Return the model with one length for all directions."""
        model, over = self.posed()
        kernel = ps.RBF(bandwidth=model.parameters["kernel.bandwidth"])
        return model.replace(kernel=kernel), {name: each for name, each in over.items() if name != "kernel.s"}


@dataclasses.dataclass(frozen=True)
class SuiteProblem:
    """A case; it has the attributes of a problem that failures ask for."""

    name: str
    term: str = ""
    condition: str = ""

    @property
    def case(self) -> Case:
        """The case."""
        return case_of(self.name.removeprefix(PREFIX))

    @property
    def coefficient(self) -> str:
        """The coefficient that can be made wrong."""
        return "all terms but that in time" if self.case.name in TIME_ORDERS else ""

    @property
    def anisotropic(self) -> bool:
        """Whether the scales of the solution differ much between directions."""
        return self.case.name in ANISOTROPIC

    def instance(self, seed: int) -> SuiteInstance:
        """Return the draw of a seed."""
        return SuiteInstance(self.case, seed)


PROBLEMS = tuple(SuiteProblem(f"{PREFIX}{each.name}") for each in CASES if each.well_specified and each.noise > 0)


def problem(name: str) -> SuiteProblem:
    """Return a problem by its name."""
    return {each.name: each for each in PROBLEMS}[name]


def wrong_coefficient(model: ps.Model, order: int, factor: float) -> ps.Model:
    """Replace `∂tᵏ + B` by `∂tᵏ + cB` in a model. A kernel along the characteristics is turned accordingly."""
    equation = max(model.physics, key=lambda block: (block.region is not None, block.operator.order))

    def changed(block: ps.Observation) -> ps.Observation:
        if block is not equation:
            return block
        assert block.nodes is not None
        assert block.region is not None
        assert isinstance(block.operator, ps.Operator)
        dt = ps.partials(block.region)[0] ** order
        value = block.values if block.source is None else block.source
        return ps.impose(dt + factor * (block.operator - dt), value, on=block.nodes, name=block.name)

    wrong = model.replace(physics=[changed(block) for block in model.physics])
    if not isinstance(model.kernel, ps.AnisotropicRBF):
        return wrong
    turned = math.atan(factor * math.tan(float(np.asarray(model.kernel.theta))))
    return wrong.replace({"kernel.theta": turned})
