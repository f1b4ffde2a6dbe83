"""# Why several losses mislead

A field and its source are measured, both with noise. Two training losses, leave-one-out and PILE choose four different
bandwidths. The true solution is known here, so we can see which choice is good.
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
# $\Delta f = 10 + 10 \sin 2\pi x \sin 2\pi y$ on the square $(-1, 1)^2$, with $f = 0$ on its boundary. Both $f$ and
# $\Delta f$ are measured on a grid of 13 × 13 Chebyshev nodes, each with noise of variance 1. The model does not know
# the boundary values.
#
# Both noise levels are known here. Only the bandwidth of the kernel has to be chosen: how smooth is $f$?

square = ps.Box(x=(-1, 1), y=(-1, 1))
nodes = square.interior(ps.quadrature.Chebyshev(13))
rng = np.random.default_rng(0)
f, source = (np.asarray(jax.vmap(exact)(jnp.asarray(nodes.points))) for exact in (solution, forcing))
model = ps.Model(
    kernel=ps.RBF(bandwidth=0.4),
    data=ps.observe(ps.identity, values=f + rng.standard_normal(len(nodes)), at=nodes.points, noise=1.0),
    physics=ps.impose(ps.laplacian(square), source + rng.standard_normal(len(nodes)), on=nodes, noise=1.0),
)
sizes = [float(np.sqrt(np.mean(exact**2))) for exact in (f, source)]
print(f"root mean square of f: {sizes[0]:.2f}, of Δf: {sizes[1]:.2f}; of the noise of each: 1")

# %%
# ## Every bandwidth, every rule
#
# One sweep computes everything. `losses=True` adds losses that are often used instead of evidence, and `known=` adds
# the true errors in $f$ and $\Delta f$, which are unknown in practice. The source was measured, so PILE of data and
# physics together is the right score.

scores = ps.sweep(
    model,
    {"kernel.bandwidth": np.geomspace(0.1, 1.5, 25)},
    score="joint",
    losses=True,
    known=ps.KnownSolution(solution, on=square.interior(ps.GaussLegendre(20)), operator_truth=forcing),
)
h = scores["kernel.bandwidth"].values
rules = {
    "training loss of the physics": "physics_loss",
    "training loss of the data": "data_loss",
    "leave-one-out": "leave_one_out",
    "PILE": "pile",
}
chosen = {rule: float(scores[column].idxmin()) for rule, column in rules.items()}
least = {error: float(scores[error].min()) for error in ("R_data", "R_phys")}
regret = {}
for rule, value in chosen.items():
    there = scores.sel({"kernel.bandwidth": value})
    regret[rule] = {error: float(there[error]) / least[error] for error in least}
    of_f, of_source = regret[rule].values()
    print(f"{rule:28} chooses {value:.3f}: error in f {of_f:5.1f} times the least, in Δf {of_source:8.1f} times")

# %%
# ## The scores and the true errors
#
# The upper panel shows each score, scaled from its smallest to its largest value, with a dot at its choice. The lower
# panel shows the true errors.

fig, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(7, 6.5), layout="constrained")
for number, (rule, column) in enumerate(rules.items()):
    curve = scores[column].values
    colour, wide = f"C{number}", 3.5 if rule == "PILE" else 1.5
    top.plot(h, (curve - curve.min()) / np.ptp(curve), color=colour, linewidth=wide, label=rule)
    for ax in (top, bottom):
        ax.axvline(chosen[rule], color=colour, linewidth=wide / 1.5, linestyle=":")
    top.plot(chosen[rule], 0, "o", color=colour, markersize=10, clip_on=False, zorder=5)
bottom.loglog(h, scores["R_data"], "k-", linewidth=2, label="error in $f$")
bottom.loglog(h, scores["R_phys"], "k--", linewidth=2, label="error in $\\Delta f$")
top.set(title="What you can compute: four rules, four choices", ylabel="score, scaled to 0 … 1")
bottom.set(title="What you would like to know", xlabel="bandwidth $h$", ylabel="relative squared error")
bottom.set_xticks([0.1, 0.2, 0.5, 1.0], labels=["0.1", "0.2", "0.5", "1"])
top.legend(loc="upper center", framealpha=1)
bottom.legend()
plt.show()

assert regret["PILE"]["R_data"] < 1.5
assert regret["PILE"]["R_phys"] < 1.5
assert regret["leave-one-out"]["R_phys"] > 10
assert all(regret[rule]["R_phys"] > 1000 for rule in rules if rule.startswith("training"))

# %%
# The **training losses** decrease as the model follows the noise, so they choose bandwidths that are much too short.
# **Leave-one-out** measures how well each reading of $f$ is predicted by the others. It chooses well for $f$, but it
# does not use $\Delta f$, where its choice is far off. **PILE** measures both data and physics by their probability,
# and its choice is close to the best for both.
#
# Adding the losses does not help. The sum of the two training losses is low where both are, again at the shortest
# bandwidths, and its weights would have to be chosen too.
#
# ## What can go wrong
#
# This is one draw of the noise; for ten draws, `pilescore study poisson` finds the same bandwidth each time. On other
# problems leave-one-out works well, in particular if the equation is exact and joint PILE does not work. In that case
# score the data given the physics.
#
# Next: [bandwidth.py](bandwidth.md) shows how to choose a bandwidth in practice.
