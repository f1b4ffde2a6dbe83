"""
# Find the bad sensor

Forty thermometers in the wall of a pipe, one of which reads wrong. The heat equation and the other thirty-nine say
which one it is; without it the noise level comes right, and so do the predicted deviations.
"""

import matplotlib.pyplot as plt
import numpy as np

import pilescore as ps

# %%
# ## The pipe
#
# The cross-section of the wall is an `Annulus`. Steady heat flow obeys $\Delta u = 0$. The fluid keeps the inner
# circle at $u = 1$; what happens at the outer one nobody knows. (Temperatures are in units of the fluid's, lengths in
# inner radii.) Ten sensors sit on each of four circles. Their noise has the deviation 0.02, which the model is not
# told, and number 17 reads 0.15 too much.

ring = ps.Annulus(center=(0, 0), inner=1.0, outer=2.0)
NOISE, FAULTY = 0.02, 17


def truth(points: np.ndarray) -> np.ndarray:
    """Return the temperature: heat is lost, more on one side than on the other."""
    r, angle = np.hypot(*points.T), np.arctan2(points[:, 1], points[:, 0])
    uneven = 0.15 * (r - 1 / r) * np.cos(angle - 1) + 0.05 * (r**2 - r**-2) * np.sin(2 * angle)
    return 1 - 0.8 * np.log(r) + uneven


sensors = ring(ps.GaussLegendre((4, 10))).points
readings = truth(sensors) + NOISE * np.random.default_rng(1).standard_normal(40)
readings[FAULTY] += 0.15
print(f"readings are from {readings.min():.2f} to {readings.max():.2f}; sensor {FAULTY} reads {readings[FAULTY]:.2f}")

# %%
# ## Fit, and ask
#
# Nothing about that value stands out by itself. PILE chooses the bandwidth, the noise `gamma` and the scale `eta`;
# the equation and the inner wall are exact, so that the readings are scored given them. Rules work on the ring as on
# a box.


def fit(keep: np.ndarray, equation: bool = True) -> tuple[ps.Minimum, ps.diagnosis.Diagnosis]:
    """Return what PILE chooses for some of the sensors, and what is wrong with it."""
    heat = ps.impose(ps.laplacian(ring), 0.0, on=ring.interior(ps.GaussLegendre((6, 24))), name="heat")
    wall = ps.dirichlet(1.0, on=ring.inner_boundary(ps.GaussLegendre(24)), name="inner wall")
    model = ps.Model(
        kernel=ps.RBF(bandwidth=1.0),
        data=ps.observe(ps.identity, readings[keep], at=sensors[keep], domain=ring, name="sensors"),
        physics=[heat, wall] if equation else [],
        gamma=2 * 0.1**2,
        rho=1e-3,
    )
    over = {"kernel.bandwidth": (0.2, 10), "gamma": (1e-5, 1), "eta": (0.01, 100)}
    best = ps.minimize(model, over, score=ps.Score(given_physics=equation), run=ps.RunOptions(progress=False))
    return best, ps.diagnose(best, checks=["outliers", "miscalibrated"])


everything = np.arange(40)
best, verdict = fit(everything)
print(best)
print(verdict)
worst = verdict["outliers"].details["outliers"][0]
print(f"sensor {worst['index']} reads {worst['value']:.2f}; all the rest predict {worst['predicted']:.2f}")
assert worst["index"] == FAULTY

# %%
# Does it take the equation? With the same readings and no physics at all, the same sensor is less than half as far
# off, and not found:

_, blind = fit(everything, equation=False)
print(blind["outliers"])
assert blind["outliers"].value < 0.7 * verdict["outliers"].value
assert "outliers" not in blind

# %%
# What was measured are errors of left-out readings: each is predicted from all others and the physics. They follow
# from the posterior, without refitting: with noise $\sigma^2 = \gamma / 2$ and posterior variance $v$, the error in
# predicted deviations is $(y - \hat{u}) / \sqrt{\sigma^2 - v}$. Robust deviations are these over 1.48 times their
# median size, which an outlier cannot inflate.

post = ps.posterior(best.model)
scaled = (readings - post.mean(sensors)) / np.sqrt(best.values["gamma"] / 2 - post.variance(sensors))
robust = scaled / (1.4826 * np.median(np.abs(scaled)))
assert np.isclose(abs(robust[FAULTY]), worst["deviations"])

radius, angle = np.meshgrid(np.linspace(1, 2, 31), np.linspace(0, 2 * np.pi, 121), indexing="ij")
x, y = radius * np.cos(angle), radius * np.sin(angle)
mean = post.mean(np.stack([x.ravel(), y.ravel()], axis=1)).reshape(x.shape)
fig, (left, right) = plt.subplots(1, 2, figsize=(7.6, 3.6), layout="constrained")
mesh = left.contourf(x, y, mean, levels=20)
left.plot(*sensors.T, "ko", markersize=3)
left.plot(*sensors[FAULTY], "o", color="red", fillstyle="none", markersize=12, label="sensor 17")
left.set(xlabel="$x$", ylabel="$y$", aspect="equal", title="the wall and its sensors")
left.legend(loc="center")
fig.colorbar(mesh, ax=left, label="temperature $u$")
right.stem(everything, robust)
for sign in (-1, 1):
    right.axhline(4 * sign, color="grey", linestyle="--", label="threshold" if sign > 0 else None)
right.set(xlabel="sensor", ylabel="left-out error, robust deviations", title="how far each is off")
right.legend()
plt.show()

# %%
# ## Without it
#
# The advice is to look at the value. We looked, and leave it out. Noise and temperature come out better. Intervals of
# left-out readings, which one wild reading had made too wide for all others, hold about as many of them as they say:
# with 39 readings chance alone moves the share at 50% by 8%.

cleaned, after = fit(np.delete(everything, FAULTY))
print(after)
noise = {name: (each.values["gamma"] / 2) ** 0.5 for name, each in (("with", best), ("without", cleaned))}
print(f"noise with sensor 17: {noise['with']:.4f}, without: {noise['without']:.4f}, true: {NOISE}")
grid = ring(ps.GaussLegendre(12)).points
errors = [np.abs(ps.posterior(each.model).mean(grid) - truth(grid)).max() for each in (best, cleaned)]
print(f"largest error of the temperature: {errors[0]:.3f} with it, {errors[1]:.3f} without")
assert "outliers" not in after
assert abs(noise["without"] - NOISE) < abs(noise["with"] - NOISE)

fig, ax = plt.subplots(layout="constrained")
for offset, (name, each) in zip((-2, 2), (("with sensor 17", verdict), ("without", after)), strict=True):
    coverage = each["miscalibrated"].details["coverage"]
    ax.bar([level + offset for level in coverage], [100 * share for share in coverage.values()], width=4, label=name)
ax.plot([45, 100], [45, 100], "k--", label="as it should be")
ax.set(xlabel="interval, %", ylabel="left-out readings within, %", xticks=[50, 80, 95])
ax.legend()
plt.show()

# %%
# ## What can go wrong
#
# Whether it takes the equation depends on the fault: of one of 0.2 instead of 0.15, the readings alone told in four
# draws of four; of this one in one of four. A reading is an outlier only if others can predict it: a lone sensor far
# from the rest may say anything. A neighbour of a bad sensor may be accused with it, so leave out one at a time, the
# worst first. And a fault that many sensors share is no outlier: then it is the physics that seems wrong, as in
# [wrong_equation.py](wrong_equation.md).
