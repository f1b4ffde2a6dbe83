"""# A first model: one equation, twelve readings

Build a model of a damped oscillator block by block, score it, and let the score choose between three bandwidths. The
chosen model predicts far beyond the last reading, with an error band that holds the truth.
"""

import matplotlib.pyplot as plt
import numpy as np

import pilescore as ps

# %%
# ## The question
#
# A mass on a spring swings with friction: $u'' + 0.4 u' + 4 u = 0$ for ten seconds. At the start it is at $u(0) = 1$;
# how fast it was pushed is not known. Twelve noisy readings were taken in the first three seconds. Where is the mass
# later?
#
# The readings are made up from the exact solution with $u'(0) = 2$, so that we can check the answer.

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
# Everything that is known is an observation: an operator of the unknown, at points, with noise.
#
# - `observe`: the readings, where they were taken, and their noise.
# - `impose`: the equation, at 40 nodes. The operator is written as on paper; `noise` says how closely it is to hold.
# - `dirichlet`: the value at the start, imposed at the one point $t = 0$.
# - the kernel: how smooth the unknown is. Over one bandwidth, in seconds here, it may change noticeably.

oscillator = d**2 + DAMPING * d + STIFFNESS * ps.identity
data = ps.observe(ps.identity, values=readings, at=times, noise=NOISE, name="readings")
equation = ps.impose(oscillator, 0.0, on=line.interior(ps.GaussLegendre(40)), noise=0.1, name="equation")
start = ps.dirichlet(1.0, on=line.face(t=0)(ps.GaussLegendre(1)), noise=0.01, name="start")
model = ps.Model(kernel=ps.RBF(bandwidth=0.5), data=data, physics=[equation, start])
print(model)

# %%
# ## The score
#
# PILE says how improbable the model finds what was measured: it is twice the negative log evidence, per reading.
# Lower is better; as the log of a density it may be negative. The equation is known, not measured, so that we score
# the readings *given* the physics.

score = ps.pile(model, score="given_physics")
print(score)

# %%
# Two terms matter.
#
# - **fit** is the mean square of the surprises: errors of the readings over the deviations that the model gave them
#   beforehand. It is near 1 if the errors are as large as the model said.
# - **complexity** is the log of the room that the model leaves. A model that would have found any readings plausible
#   has a high one.
#
# A vague model buys a low fit by a high complexity, a rigid one does the reverse. Their sum has a minimum in between:

scores = {h: ps.pile(model.replace({"kernel.bandwidth": h}), score="given_physics") for h in (0.1, 0.5, 2.5)}
for h, each in scores.items():
    print(
        f"h = {h}: PILE {each.value:5.2f} = fit {each.fit:.2f} + complexity {each.complexity:.2f} + {each.constant:.2f}"
    )
assert min(scores, key=lambda h: scores[h].value) == 0.5

# %%
# ## What they predict
#
# Means and 95 % bands of the three posteriors, and how much of the truth is within the bands:

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
assert within[2.5] < 0.5

# %%
# - **0.1 s** is too short: the nodes of the equation are farther apart than that and know nothing of each other. The
#   model allows anything, and says so with its wide band.
# - **0.5 s** carries the readings through the equation to the end of the ten seconds.
# - **2.5 s** is too long: so stiff a function cannot swing with a period of 3 s. It misses the readings, with a
#   narrow band all the same. Its fit gives it away.
#
# ## What PILE did not see
#
# It takes the equation at its word. Were the stiffness wrong, the best bandwidth would be the best for a wrong
# equation. And one number for three models says which is the best of them, not that it is good: a fit far from 1 is a
# warning.
#
# Next: [losses_disagree.py](losses_disagree.md), why one score, and not the losses that one has anyway.
