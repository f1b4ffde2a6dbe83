"""# Weigh data against physics

A field and its source are both measured, with unknown noise. PILE finds both noise levels, which are the weights of the
two losses, together with the bandwidth and the prior variance. Equal weights are less accurate.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import pilescore as ps
from pilescore.studies.poisson import forcing, solution

# %%
# ## The problem
#
# As in [losses_disagree.py](losses_disagree.md), this is Poisson's equation on a square. $f$ and $\Delta f$ are
# measured at 11 × 11 nodes. This time $f$ is measured accurately, with noise of standard deviation 0.05, and $\Delta f$
# inaccurately, with standard deviation 1. The model knows neither.
#
# The fit minimises the data loss divided by $\gamma$, plus the physics loss divided by $\rho$, plus a regularisation
# term divided by $2\eta$. The weights correspond to noise: a reading has the variance $\gamma/2$, and the equation at a
# node of weight $w$ has the variance $\rho/2w$. Our initial guess is that both standard deviations are 1.

square = ps.Box(x=(-1, 1), y=(-1, 1))
laplacian = ps.laplacian(square)
nodes = square.interior(ps.quadrature.Chebyshev(11))
w = float(nodes.weights[0])  # the same for all nodes of this rule
TRUE = {"f": 0.05, "Δf": 1.0}
rng = np.random.default_rng(0)
f, source = (np.asarray(jax.vmap(exact)(jnp.asarray(nodes.points))) for exact in (solution, forcing))
model = ps.Model(
    kernel=ps.RBF(bandwidth=0.5),
    data=ps.observe(ps.identity, values=f + TRUE["f"] * rng.standard_normal(len(nodes)), at=nodes.points),
    physics=ps.impose(laplacian, source + TRUE["Δf"] * rng.standard_normal(len(nodes)), on=nodes),
    gamma=2.0,
    rho=2.0 * w,
)

# %%
# ## Find everything at once
#
# The source was measured, so the right score is PILE of data and physics together.

over = {"kernel.bandwidth": (0.05, 5), "eta": (1e-2, 1e4), "gamma": (1e-4, 1e2), "rho": (1e-4 * w, 1e2 * w)}
best = ps.minimize(model, over, score="joint", starts=8)
print(best)
noise = {"f": (best.values["gamma"] / 2) ** 0.5, "Δf": (best.values["rho"] / (2 * w)) ** 0.5}
for (what, found), name in zip(noise.items(), ("gamma", "rho"), strict=True):
    error = 0.5 * found * best.standard_errors[name] / best.values[name]  # of a standard deviation
    print(f"noise of {what}: {found:.3f} ± {error:.3f} (true: {TRUE[what]})")
    assert abs(found - TRUE[what]) < 2.5 * error

# %%
# ## Equal weights
#
# There are two common simplifications. *Fixed* leaves both noise levels at 1 and chooses only bandwidth and prior
# variance. *Tied* lets PILE choose one noise level for both, so a residual of $f$ counts as much as one of
# $\Delta f$. `ties` makes $\rho$ follow $\gamma$.

fewer = {name: over[name] for name in ("kernel.bandwidth", "eta")}
fixed = ps.minimize(model, fewer, score="joint", starts=3)
tied = ps.minimize(
    model, fewer | {"gamma": over["gamma"]}, score="joint", ties={"rho": lambda p: w * p["gamma"]}, starts=8
)
print(tied)
fits = {"both chosen": best, "equal, tied": tied, "equal, fixed": fixed}
print(ps.compare(fits)[["rank", "pile", "nats", "fit", "fitted"]].round(2))

fine = square.interior(ps.GaussLegendre(20))
errors = {}
for name, fit in fits.items():
    risks = ps.accuracy(fit.model, solution, fine, laplacian, operator_truth=forcing)
    assert risks.physics is not None
    errors[name] = risks.data.relative_l2, risks.physics.relative_l2
    print(f"{name:18} relative error in f {errors[name][0]:.3f}, in Δf {errors[name][1]:.3f}")
assert errors["both chosen"][0] < 0.75 * min(errors["equal, tied"][0], errors["equal, fixed"][0])
assert errors["both chosen"][1] < 0.5 * errors["equal, tied"][1]

# %%
# ## The landscape
#
# The contours show PILE against both noise levels, at the chosen bandwidth and prior variance, in nats above the
# minimum. Points that differ in only one noise level share the expensive part of the work, so this sweep is cheap.

deviations = {"gamma": np.geomspace(0.01, 2, 25), "rho": np.geomspace(0.1, 10, 25)}
grid = {"gamma": 2 * deviations["gamma"] ** 2, "rho": 2 * w * deviations["rho"] ** 2}
scores = ps.sweep(best.model, grid, score="joint")
nats = 0.5 * model.size * (scores["pile"].transpose("rho", "gamma").values - best.pile.value)

fig, (left, right) = plt.subplots(1, 2, figsize=(7.5, 4), width_ratios=(3, 2), layout="constrained")
lines = left.contour(*deviations.values(), nats, levels=[1, 3, 10, 30, 100, 300], cmap="viridis")
left.clabel(lines, fmt="%g")
path = best.descents[0].path  # from the initial guess
left.plot(np.sqrt(path["gamma"] / 2), np.sqrt(path["rho"] / (2 * w)), "k.-", linewidth=0.8, label="path from the guess")
left.plot(*noise.values(), "k*", markersize=13, label="chosen")
left.plot(*TRUE.values(), "C3X", markersize=9, label="true")
left.plot([0.1, 2], [0.1, 2], "C1--", label="equal noise")
left.set(
    xscale="log", yscale="log", xlabel="noise of $f$", ylabel="noise of $\\Delta f$", title="nats above the minimum"
)
left.legend(loc="lower left", fontsize="small")
for number, (name, pair) in enumerate(errors.items()):
    right.bar(np.arange(2) + 0.27 * (number - 1), pair, width=0.25, label=name)
right.set_xticks([0, 1], labels=["in $f$", "in $\\Delta f$"])
right.set(title="relative error")
right.legend(fontsize="small")
plt.show()

# %%
# The chosen noise levels are within two standard errors of the truth. With tied weights, the common noise level fits
# the accurate readings of $f$, so the model trusts the inaccurate source as much and follows its noise: the error in
# $\Delta f$ is several times larger. With fixed weights, the model does not trust the readings of $f$ enough.
#
# ## What can go wrong
#
# If the equation is exact, the source has no noise to estimate: joint PILE drives $\rho$ to its lower bound, or
# explains the readings as noise. In that case leave `rho` out: the equation is then exact and part of the prior, as in
# [first_ode.py](first_ode.md). Also use several starts: the tied model has three minima, far apart, as
# the output above shows.
#
# Next: [kernel_before_data.py](kernel_before_data.md) chooses the kernel itself.
