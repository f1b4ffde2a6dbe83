"""# How certain is the prediction?

Predict an oscillator whose damping and stiffness are inferred from ten readings. The band of the best model is far too
narrow, because it takes the inferred numbers as known. Averaged over their distribution, it mostly holds.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

import pilescore as ps

# %%
# ## The question
#
# A mass on a spring with friction follows $u'' + c\,u' + k\,u = 0$. Its position was read ten times in the first four
# seconds, with noise. Damping $c$, stiffness $k$ and the size of the noise are unknown. Where is the mass later?
#
# The readings are simulated, with $c = 0.2$, $k = 4$ and the noise 0.2.

DAMPING, STIFFNESS, NOISE = 0.2, 4.0, 0.2
line = ps.Box(t=(0, 12))
(d,) = ps.partials(line)
law = d**2 + ps.parameter("damping", 0.3) * d + ps.parameter("stiffness", 3.0) * ps.identity
physics = ps.impose(law, 0.0, on=line.interior(ps.GaussLegendre(40)))


def truth(t: np.ndarray) -> np.ndarray:
    """Return the position of the mass."""
    omega = (STIFFNESS - DAMPING**2 / 4) ** 0.5
    return np.exp(-DAMPING / 2 * t) * (np.cos(omega * t) + 0.5 * np.sin(omega * t))


def experiment(seed: int) -> ps.Model:
    """Return the model of one experiment."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, 4, 10))
    readings = ps.observe(ps.identity, truth(times) + NOISE * rng.standard_normal(10), at=times)
    return ps.Model(ps.RBF(bandwidth=1.0), readings, physics, gamma=0.1, eta=10.0)


# %%
# ## The best values, and the others
#
# `ps.minimize` finds the best values. `ps.hyperposterior` computes how probable other values are: their evidence times
# their prior. The priors are weakly informative; $c$ is uniform between its bounds here, and $k$ is uniform in its
# logarithm.

over = {"damping": (0.0, 2.0), "stiffness": (0.5, 20.0), "gamma": (1e-3, 2.0), "eta": (0.01, 1e4)}
best = ps.minimize(experiment(2), over, starts=2)
hyper = ps.hyperposterior(best)
print(best)
print(hyper)
assert hyper.warnings == ()
low, high = hyper.quantiles([0.025, 0.975]).loc["stiffness"]
assert low < STIFFNESS < high

# %%
# ## The prediction, with and without
#
# `ps.posterior(best.model)` knows how uncertain the position is *for the best values*. `ps.posterior(hyper)` averages
# over all values. Its distribution at a time is not normal, so we show its quantiles.

t = np.linspace(0, 12, 241)
known, averaged = ps.posterior(best.model), ps.posterior(hyper)
mean, deviation = known.mean(t), known.std(t)
lower, upper = averaged.quantiles(t, [0.025, 0.975])
draws = averaged.samples(t, 5, seed=0)

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
left.fill_between(t, mean - 1.96 * deviation, mean + 1.96 * deviation, alpha=0.3, label="95 % band")
left.plot(t, mean, label="mean")
left.set(title="the best values taken as known", ylabel="position", xlabel="time (s)", ylim=(-1.6, 1.6))
right.fill_between(t, lower, upper, alpha=0.3, label="95 % band")
right.plot(t, averaged.mean(t), label="mean")
right.plot(t, draws.T, color="C0", linewidth=0.6, alpha=0.7)
right.set(title="averaged over the values", xlabel="time (s)")
for axis in (left, right):
    axis.plot(t, truth(t), "k:", label="truth")
    axis.plot(best.model.data[0].points[:, 0], best.model.data[0].values, "k.", label="readings")
right.legend(fontsize="small", ncols=2, loc="upper right")
plt.show()

# %%
# Among the readings the bands are alike. Later they are not: an error of the damping changes the amplitude, an error of
# the stiffness shifts the phase, and both grow with time. The thin lines are samples, each with its own damping and
# stiffness. They differ by far more than the band on the left.
#
# ## The draws
#
# `hyper.sample` returns draws, here of three of the hyperparameters. Data constrain the stiffness best. The noise and
# the damping have long tails, which a standard error cannot show. (`hyper.to_arviz()` gives the draws to ArviZ, with
# its own plots and summaries.)

sample = hyper.sample(1000)
shown = {"damping": sample["damping"], "stiffness": sample["stiffness"], "noise": (sample["gamma"] / 2) ** 0.5}
true = {"damping": DAMPING, "stiffness": STIFFNESS, "noise": NOISE}
fig, axes = plt.subplots(3, 3, figsize=(6.5, 6), sharex="col", layout="constrained")
for i, row in enumerate(shown):
    for j, column in enumerate(shown):
        axis = axes[i, j]
        if j > i:
            axis.axis("off")
        elif j == i:
            axis.hist(shown[row], bins=40, density=True, alpha=0.6)
            axis.set_yticks([])
        else:
            axis.plot(shown[column], shown[row], ".", markersize=2, alpha=0.5)
            axis.axhline(true[row], color="k", linestyle=":")
        if j <= i:
            axis.axvline(true[column], color="k", linestyle=":")
        if i == 2:
            axis.set_xlabel(column)
        if j == 0 and i > 0:
            axis.set_ylabel(row)
plt.show()

# %%
# ## Ten experiments
#
# One draw of the noise proves little. (In some of them a damping of zero is possible, where its bound is; the warning
# says so, and we leave it out here.) In ten experiments we count how often the truth is within each band after the
# last reading.

warnings.simplefilter("ignore", ps.errors.UncertaintyWarning)
late = np.linspace(4, 12, 81)
counts = []
for seed in range(10):
    found = ps.minimize(experiment(seed), over, starts=2)
    post = ps.posterior(found.model)
    inside = np.abs(post.mean(late) - truth(late)) < 1.96 * post.std(late)
    lower, upper = ps.posterior(ps.hyperposterior(found)).quantiles(late, [0.025, 0.975])
    counts.append((inside.mean(), np.mean((lower < truth(late)) & (truth(late) < upper))))
without, with_others = np.mean(counts, axis=0)
print(f"truth within the 95% band: {without:.0%} with the best values, {with_others:.0%} averaged")
print(f"averaged, for more than half of the time: in {sum(each > 0.5 for _, each in counts)} of 10 experiments")
assert without < 0.6
assert with_others > without + 0.4

# %%
# The band of the best values is wrong most of the time. The averaged band holds in most experiments, though not in all:
# in one of them the readings favour a stiffness that is too small. Within one experiment the band holds or fails as a
# whole, so ten experiments cannot distinguish this from 95%; [many more](../uncertainty.md) can.
#
# ## What can go wrong
#
# - **A second optimum that no start has found** is missing from the average. Here another stiffness can fit the
#   readings almost as well. `print(hyper)` lists the optima; use more `starts` if there may be more.
# - **The equation is taken as true.** The band contains what the readings leave open about $c$ and $k$, and not a
#   friction that grows with the square of the velocity. [wrong_equation.py](wrong_equation.md) tests an equation.
# - **Priors count when data are few.** Change them, and look at what changes:
#   [how certain](../how-to/uncertainty.md) explains how, and what each warning means.
