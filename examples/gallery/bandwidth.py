"""# Choose a bandwidth

Sweep the bandwidth or minimise over it from several starts, and check standard errors and bounds. Then use a separate
bandwidth for each axis, for a function that oscillates along one axis and is nearly constant along the other.
"""

import matplotlib.pyplot as plt
import numpy as np

import pilescore as ps

# %%
# ## A standing wave in a channel
#
# The wave satisfies Helmholtz's equation $\Delta f + k^2 f = 0$ on the unit square. It has three half waves along $x$
# and changes little along $y$. There are 30 readings with noise 0.2; the boundary values are unknown.

square = ps.Box(x=(0, 1), y=(0, 1))
NOISE = 0.2
helmholtz = ps.identity + ps.laplacian(square) / (9 * np.pi**2 + 1)  # scaled so that its terms are as large as f
on = square.interior(ps.GaussLegendre(9))


def wave(points: np.ndarray) -> np.ndarray:
    """Return the true wave at points."""
    return np.sin(3 * np.pi * points[:, 0]) * np.cos(points[:, 1])


def measured(kernel: ps.Kernel, count: int) -> ps.Model:
    """Return the model of noisy readings at random points."""
    rng = np.random.default_rng(2)
    points = rng.uniform(0, 1, (count, 2))
    readings = wave(points) + NOISE * rng.standard_normal(count)
    data = ps.observe(ps.identity, values=readings, at=points, noise=NOISE)
    return ps.Model(kernel, data, ps.impose(helmholtz, 0.0, on=on, noise=0.02))


# %%
# ## Sweep, or minimise
#
# A sweep shows the whole curve. `minimize` uses the exact gradient and finds the minimum to more digits, with a
# standard error from the curvature of the evidence there. It starts from the value in the model and from points spread
# over the bounds. The imposed values are zero, so the default score is that of the readings given the equation.
# The equation has a noise here, so its nodes stay as they are; those of an exact equation would be refined.

model = measured(ps.RBF(bandwidth=0.5), count=30)
h = np.geomspace(0.03, 3, 33)
scores = ps.sweep(model, {"kernel.bandwidth": h})
best = ps.minimize(model, {"kernel.bandwidth": (0.03, 3)}, starts=4)
print(best)

chosen, error = best.values["kernel.bandwidth"], best.standard_errors["kernel.bandwidth"]
fig, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
ax.semilogx(h, scores["pile"], label="sweep")
starts = [(run.path["kernel.bandwidth"][0], run.path["pile"][0]) for run in best.descents]
ax.plot(*zip(*starts, strict=True), "o", label="four starts")
ax.plot(chosen, best.pile.value, "k*", markersize=12, label="end of all four searches")
ax.axvspan(chosen - 2 * error, chosen + 2 * error, color="k", alpha=0.1, label="± 2 standard errors")
ax.set(xlabel="bandwidth $h$", ylabel="PILE of the readings given the physics")
ax.legend(loc="center right")
plt.show()
assert max(run.pile for run in best.descents) - best.pile.value < 1e-3

# %%
# ## One bandwidth for each axis
#
# This is the same model with two bandwidths. The bounds apply to each of them.

both = measured(ps.RBF(bandwidth=[0.5, 0.5]), count=30)
best_both = ps.minimize(both, {"kernel.bandwidth": (0.03, 10)}, starts=4)
print(best_both)
table = ps.compare({"one bandwidth": best, "one for each axis": best_both})
print(table[["rank", "pile", "nats", "probability", "fitted"]].round(2))
assert table.index[0] == "one for each axis"

# %%
# The evidence is averaged over the bandwidths, so a second one has to earn its place. It gains several nats: 3 are
# clear, 5 are strong. The posterior means confirm this. The panels give their relative root mean square errors.

side = np.linspace(0, 1, 41)
points = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
models = {
    "too short": model.replace({"kernel.bandwidth": chosen / 4}),
    "chosen": best.model,
    "too long": model.replace({"kernel.bandwidth": chosen * 4}),
    "per axis": best_both.model,
}
means = {name: ps.posterior(each).mean(points) for name, each in models.items()}
errors = {name: float(np.std(mean - wave(points)) / np.std(wave(points))) for name, mean in means.items()}

fig, axes = plt.subplots(2, 3, sharex=True, sharey=True, figsize=(7, 4.8), layout="constrained")
for panel, (name, mean) in zip(axes.flat[[0, 1, 2, 4]], means.items(), strict=True):
    panel.set_title(f"{name}: {errors[name]:.0%} error", fontsize="medium")
    panel.pcolormesh(side, side, mean.reshape(41, 41), vmin=-1.2, vmax=1.2, cmap="RdBu_r")
image = axes[1, 0].pcolormesh(side, side, wave(points).reshape(41, 41), vmin=-1.2, vmax=1.2, cmap="RdBu_r")
axes[1, 0].plot(*model.data[0].points.T, "k.", markersize=4)
axes[1, 0].set_title("truth and readings", fontsize="medium")
axes[1, 0].set(xlabel="$x$", ylabel="$y$")
axes[1, 2].axis("off")
fig.colorbar(image, ax=axes, label="$f$", shrink=0.8)
plt.show()
assert errors["chosen"] < 0.5 * min(errors["too short"], errors["too long"])
assert errors["per axis"] < 0.5 * errors["chosen"]

# %%
# ## What can go wrong
#
# With only 20 readings, the bandwidth along $y$ ends at its upper bound: a wave that does not change along $y$ at all
# would explain the readings as well. `at_bounds` reports this, and there is no standard error. Two of the four starts
# end in another minimum, in which the readings are unrelated to each other. Its PILE is higher, so the best of several
# starts avoids it; a single start may not.

few = ps.minimize(measured(both.kernel, count=20), {"kernel.bandwidth": (0.03, 10)}, starts=4)
print(few)
assert few.at_bounds == {"kernel.bandwidth[1]": "upper"}
assert sum(run.pile > few.pile.value + 1 for run in few.descents) == 2

# %%
# Next: [weights.py](weights.md), where the noise levels are unknown too.
