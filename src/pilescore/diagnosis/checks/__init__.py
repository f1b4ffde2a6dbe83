"""The checks of a diagnosis. Each is a function of a `DiagnosisContext` that returns a `Finding` of the same name."""

from .agreement import boundary_against_interior, physics_against_data
from .fit import collapsed, miscalibrated, outliers, over_smoothed, overfit, under_smoothed
from .hyperparameters import at_bound, flat_direction, idle_temperature
from .kernel import ill_suited_kernel
from .numerics import ill_conditioned, unresolved_quadrature

CHECKS = {
    check.__name__: check
    for check in (
        collapsed,
        overfit,
        over_smoothed,
        under_smoothed,
        ill_suited_kernel,
        physics_against_data,
        boundary_against_interior,
        outliers,
        miscalibrated,
        at_bound,
        flat_direction,
        ill_conditioned,
        unresolved_quadrature,
        idle_temperature,
    )
}
"""All checks by name, in the order of `Thresholds`."""

__all__ = ["CHECKS"]
