"""The checks of a diagnosis. Each is a function of a `DiagnosisContext` that returns a `Finding` of the same name."""

from . import agreement, equation, fit, hyperparameters, kernel, noise, numerics, roughness, scale

CHECKS = {
    check.__name__: check
    for check in (
        fit.collapsed,
        fit.overfit,
        fit.over_smoothed,
        fit.under_smoothed,
        kernel.ill_suited_kernel,
        roughness.too_smooth_kernel,
        equation.wrong_equation,
        equation.boundary_against_interior,
        agreement.physics_against_data,
        fit.outliers,
        fit.miscalibrated,
        noise.noise_level,
        noise.uneven_noise,
        noise.correlated_noise,
        noise.non_gaussian_noise,
        scale.prior_scale,
        scale.physics_fit,
        hyperparameters.at_bound,
        hyperparameters.several_optima,
        hyperparameters.flat_direction,
        numerics.ill_conditioned,
        numerics.unresolved_quadrature,
        hyperparameters.idle_temperature,
    )
}
"""All checks by name, in the order in which they are made."""

__all__ = ["CHECKS"]
