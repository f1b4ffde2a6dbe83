"""# A first model: one equation, twelve readings

Build a model of a damped oscillator block by block, score it, and choose among three bandwidths by the score. The
chosen model predicts far beyond the last reading, with an error band that contains the true solution.
"""

import matplotlib.pyplot as plt
import numpy as np

import pilescore as ps

# %%
# ## The question
#
# A mass on a spring with friction follows $u'' + 0.4 u' + 4 u = 0$ for ten seconds. It starts at $u(0) = 1$ with an
# unknown velocity. Twelve noisy readings were taken in the first three seconds. Where is the mass later?
#
# The readings are simulated from the exact solution with $u'(0) = 2$, so we can check the answer.

DAMPING, STIFFNESS, NOISE = 0.4, 4.0, 0.15
line = ps.Box(t=(0, 10))
(d,) = ps.partials(line)  # d/dt


def truth(t: np.ndarray) -> np.ndarray:
    """Return the position of the mass."""
    omega = (STIFFNESS - DAMPING**2 / 4) ** 0.5
    return np.exp(-DAMPING / 2 * t) * (np.cos(omega * t) + (2 + DAMPING / 2) / omega * np.sin(omega * t))


rng = np.random.default_rng(0)
times = np.sort(rng.uniform(0, 3, 12))
readings = truth(times) + NOISE * rng.standard_normal(12)

# %%
# ## The model, block by block
#
# Everything you know is an observation: an operator applied to the unknown at some points.
#
# - `observe` adds the readings, their times and their noise.
# - `impose` adds the equation at 40 nodes. The operator is written as in mathematical notation. Without `noise` or
#   `rho` the equation is exact: it is part of the prior.
# - `dirichlet` adds the initial value, imposed at the single point $t = 0$.
# - The kernel describes how smooth the unknown is: it may change noticeably over one bandwidth, here in seconds.

oscillator = d**2 + DAMPING * d + STIFFNESS * ps.identity
data = ps.observe(ps.identity, values=readings, at=times, noise=NOISE, name="readings")
equation = ps.impose(oscillator, 0.0, on=line.interior(ps.GaussLegendre(40)), name="equation")
start = ps.dirichlet(1.0, on=line.face(t=0)(ps.GaussLegendre(1)), name="start")
model = ps.Model(kernel=ps.RBF(bandwidth=0.5), data=data, physics=[equation, start])
print(model)

# %%
# ## The score
#
# PILE measures how improbable the readings are under the model: it is twice the negative log evidence, per reading.
# Lower is better; because it is the logarithm of a density, it may be negative. The equation and the initial value are
# exact, so only the readings are scored, given both.

score = ps.pile(model)
print(score)

# %%
# Two terms matter.
#
# - **fit** is the mean squared error of the readings, in units of the standard deviations that the model predicts. It
#   is near 1 if the errors are as large as predicted.
# - **complexity** is the logarithm of the volume of plausible readings. It is high for a model under which any
#   readings would be plausible.
#
# A vague model has a low fit and a high complexity, and a rigid model the reverse. Their sum has a minimum in between:

scores = {h: ps.pile(model.replace({"kernel.bandwidth": h})) for h in (0.1, 0.5, 1.5)}
for h, each in scores.items():
    print(
        f"h = {h}: PILE {each.value:5.2f} = fit {each.fit:.2f} + complexity {each.complexity:.2f} + {each.constant:.2f}"
    )
assert min(scores, key=lambda h: scores[h].value) == 0.5

# %%
# ## The predictions
#
# The figure shows means and 95 % bands of the three posteriors. The last line printed is the share of the true curve
# within each band.

grid = np.linspace(0, 10, 301)
exact = truth(grid)
within = {}
fig, axes = plt.subplots(3, 1, sharex=True, figsize=(7, 7), layout="constrained")
for ax, h in zip(axes, scores, strict=True):
    post = ps.posterior(model.replace({"kernel.bandwidth": h}))
    mean, std = post.mean(grid), post.std(grid)
    within[h] = np.mean(np.abs(mean - exact) < 1.96 * std)
    ax.fill_between(grid, mean - 1.96 * std, mean + 1.96 * std, alpha=0.3, label="95 % band")
    ax.plot(grid, mean, label="posterior mean")
    ax.plot(grid, exact, "k--", linewidth=1, label="truth")
    ax.plot(times, readings, "k.", label="readings")
    ax.set(title=f"bandwidth {h} s: PILE {scores[h].value:.2f}", ylabel="position $u$", ylim=(-2.4, 2.4))
axes[1].legend(loc="upper right", ncols=2)
axes[-1].set_xlabel("time $t$ in s")
plt.show()
print({h: f"{share:.0%}" for h, share in within.items()})
assert within[0.5] > 0.9
assert within[1.5] < 0.5

# %%
# - **0.1 s** is too short. The nodes of the equation are farther apart, so they are uncorrelated. The model allows
#   almost any function, as its wide band shows.
# - **0.5 s** propagates the readings through the equation to the end of the ten seconds.
# - **1.5 s** is too long. Such a stiff function hardly oscillates with a period of 3 s. It misses the readings, and its
#   band is still narrow. Its large fit term reveals this.
#
# ## What PILE cannot detect
#
# PILE takes the equation as given. If the stiffness were wrong, PILE would choose the best bandwidth for a wrong
# equation. The score also shows only which of the three models is best, not that the best one is good: a fit far from
# 1 is a warning.
#
# Next: [losses_disagree.py](losses_disagree.md) shows why to use one score instead of several losses.
