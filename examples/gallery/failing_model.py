"""
# A model that looks fine and is wrong

A model of a fast wave satisfies its equation, and its errors are as large as it predicts. Yet it has learnt nothing
about the wave. PILE is high, and `ps.diagnose` reports the reason and a kernel that works.
"""

import matplotlib.pyplot as plt
import numpy as np

import pilescore as ps

# %%
# ## The problem
#
# Convection, $u_t + \beta u_x = 0$ with $\beta = 30$, is a well-known problem on which physics-informed networks fail.
# Its solution here, $u = \sin(x - \beta t)$, moves without changing shape. There are 150 readings with noise of
# standard deviation 0.3, and the equation is imposed at 10 × 10 nodes. It holds exactly, so we score the data *given*
# the physics.

BETA, NOISE = 30.0, 0.3
strip = ps.Box(t=(0, 1), x=(0, 2 * np.pi))
dt, dx = ps.partials(strip)
rng = np.random.default_rng(0)
points = rng.uniform([0, 0], [1, 2 * np.pi], (150, 2))
readings = np.sin(points[:, 1] - BETA * points[:, 0]) + NOISE * rng.standard_normal(150)
t, x = np.meshgrid(np.linspace(0, 1, 81), np.linspace(0, 2 * np.pi, 81), indexing="ij")
truth = np.sin(x - BETA * t)
over = {"kernel.bandwidth": (0.05, 5), "gamma": (1e-3, 10), "rho": (1e-4, 10), "eta": (0.01, 100)}


def model(kernel: ps.Kernel) -> ps.Model:
    """Return the model with a given kernel."""
    return ps.Model(
        kernel=kernel,
        data=ps.observe(ps.identity, readings, at=points, name="readings"),
        physics=ps.impose(dt + BETA * dx, 0.0, on=strip.interior(ps.GaussLegendre(10)), name="convection"),
        gamma=2 * NOISE**2,
        rho=0.02,
    )


def solution(found: ps.Minimum) -> np.ndarray:
    """Return the posterior mean on the grid."""
    return ps.posterior(found.model).mean(np.stack([t.ravel(), x.ravel()], axis=1)).reshape(t.shape)


# %%
# ## An isotropic kernel
#
# Suppose that we know nothing about the solution and use one bandwidth for both coordinates. PILE chooses the
# bandwidth and the noise levels.

isotropic = ps.minimize(model(ps.RBF(bandwidth=0.5)), over, score="given_physics", run=ps.RunOptions(progress=False))
print(isotropic)
print(ps.losses(isotropic.model))
checks = ["collapsed", "overfit", "outliers", "miscalibrated", "physics_against_data"]
first = ps.diagnose(isotropic, checks=checks)
print(first)
print("coverage of left-out readings:", first["miscalibrated"].details["coverage"])
assert first.healthy

# %%
# The model looks fine. The search has converged, no hyperparameter is at a bound, the equation is satisfied (`physics`
# is about 1e-6), and the intervals contain nearly as many left-out readings as they should. But compare PILE with that
# of pure noise, $\log 2 \pi \overline{y^2} + 1$, where every reading is independent noise with the best variance. The
# gain is two nats, which is insignificant. The noise was 0.3 but the model estimates 0.70: it has explained the wave as
# noise.

nothing = np.log(2 * np.pi * np.mean(readings**2)) + 1
print(f"PILE of the model {isotropic.pile.value:.3f}; of independent noise {nothing:.3f}")
print(f"noise of the readings {(isotropic.values['gamma'] / 2) ** 0.5:.2f} (true: {NOISE})")
assert 0.5 * len(readings) * (nothing - isotropic.pile.value) < 3  # nats gained

# %%
# Minimising joint PILE of data *and* equation, as if zero had been measured at each node, is even worse: no function
# satisfies $u_t + 30 u_x = 0$ as well as $u = 0$ does. The solution collapses, and the check `collapsed` detects it.

collapsed = ps.diagnose(
    ps.minimize(isotropic.model, over, score="joint", run=ps.RunOptions(progress=False)), checks=["collapsed"]
)
print(collapsed)
assert "collapsed" in collapsed

# %%
# ## The kernel is wrong
#
# The check `ill_suited_kernel` fires for the model above. It takes a few seconds, because it fits rotated and stretched
# kernels to see whether they are better. The solution is constant along $x = \beta t$, but under an isotropic kernel
# values along this line are correlated only within one bandwidth.

verdict = ps.diagnose(isotropic, checks=["ill_suited_kernel"])
print(verdict)
details = verdict["ill_suited_kernel"].details
assert "ill_suited_kernel" in verdict

# %%
# We follow the advice and start from an `AnisotropicRBF` with this direction and stretch, which PILE then refines.

theta = float(np.arctan2(*details["direction"][::-1]))
rotated = ps.AnisotropicRBF(theta=theta, s=details["stretch"] ** -0.5, bandwidth=0.5)
shape = {"kernel.theta": (1.4, 1.7), "kernel.s": (0.02, 1)}
anisotropic = ps.minimize(model(rotated), over | shape, score="given_physics", run=ps.RunOptions(progress=False))
print(anisotropic)
print(ps.diagnose(anisotropic, checks=checks))
print(f"direction of the characteristics: {np.arctan(BETA):.4f}")
for name, each in (("isotropic", isotropic), ("anisotropic", anisotropic)):
    error = np.linalg.norm(solution(each) - truth) / np.linalg.norm(truth)
    print(f"{name}: PILE {each.pile.value:.3f}, true relative error {error:.2f}")
assert error < 0.25
assert isotropic.pile.free_energy - anisotropic.pile.free_energy > 50

fig, axes = plt.subplots(1, 3, figsize=(7.4, 3.2), sharey=True, layout="constrained")
fields = {"truth": truth, "isotropic": solution(isotropic), "anisotropic": solution(anisotropic)}
for ax, (name, values) in zip(axes, fields.items(), strict=True):
    mesh = ax.pcolormesh(t, x, values, vmin=-1.2, vmax=1.2, cmap="RdBu")
    ax.set(xlabel="time $t$", title=name)
axes[0].set_ylabel("position $x$")
fig.colorbar(mesh, ax=axes, label="$u$")
plt.show()

# %%
# ## Summary
#
# Small residuals and well-calibrated intervals do not imply a good solution. Compare PILE with that of pure noise, and
# check the estimated noise. PILE also has limits: a minimum says nothing about kernels that were not tried, and the
# result depends on the start. From `s=0.5` the last search ends at another minimum, equally good to within one nat;
# with 200 readings instead of 150, that start ended in the optimum that explains everything as noise. `starts=4` tries
# several starts. [kernel_before_data.py](kernel_before_data.md) finds the direction without any readings;
# [wrong_equation.py](wrong_equation.md) has the right kernel and a wrong equation.
