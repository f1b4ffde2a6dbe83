"""
# Does a cup of water obey Newton's law?

For measured temperatures of a cooling mug, the evidence rejects Newton's law of cooling, prefers a law with two bodies,
and gives their time constants. Held-out readings agree.
"""

import matplotlib.pyplot as plt
import numpy as np

import pilescore as ps

# %%
# ## The measurement
#
# Stan Wagon poured hot water into a mug and recorded its temperature with a probe every minute, so that his students
# could test Newton's law of cooling. The readings, rounded to 0.1 °C, are the data set `CoolingWater` of the R package
# [mosaicData](https://vincentarelbundock.github.io/Rdatasets/doc/mosaicData/CoolingWater.html); see R. Portmann and S.
# Wagon, *How quickly does hot water cool?*, Mathematica in Education and Research 10(3), 2005.

READINGS = """
98.2 94.4 91.4 89.1 86.9 84.9 83.1 81.2 79.5 78.0 76.5 75.2 73.8 72.6 71.4 70.3 69.3 68.2 67.2 66.3 65.3 64.3 63.7
62.9 62.1 61.5 60.7 60.0 59.4 58.6 58.1 57.4 56.8 56.1 55.6 55.0 54.5 54.0 53.5 53.0 52.5 52.1 51.7 51.3 50.8 50.5
50.0 49.6 49.2 48.8 48.5 48.1 47.7 47.3 47.0 46.6 46.3 46.0 45.7 45.3 45.1 44.7 44.5 44.2 43.8 43.6 43.2 43.0 42.7
42.5 42.2 42.0 41.6 41.5 41.2 41.0 40.7 40.6 40.3 40.2 40.0 39.5 39.3 39.1 38.8 38.7 38.4 38.2 38.1 37.9 37.7 37.5
37.3 37.1 37.0 36.8 36.6 36.5 36.3 36.2 36.0 35.8 35.7 35.6 35.4 35.3 35.1 35.0 34.9 34.7 34.5 34.4 34.2 34.1 33.9
33.8 33.7 33.5 33.4 33.3 33.2 33.0 32.9 32.8 32.7 32.6 32.4 32.3 32.2 32.1 32.0 31.9 31.8 31.7 31.5 31.5 31.4 31.3
31.1 31.1 31.0 30.9 30.7 30.7 30.6 30.5 30.4 30.3 30.2 30.1 30.1 30.0 30.0 29.8 29.8 29.7 29.6 29.5 29.4 29.4 29.2
29.2 29.1 29.0 29.0 28.9 28.8 28.7 28.6 28.6 28.5 28.4 28.4 28.3 28.2 28.2 28.1 28.0 28.0 27.9 27.8 27.8 27.7 27.7
27.6 27.5 27.5 27.4 27.4 27.3 27.2 27.2 27.1 27.1 27.0 27.0 26.9 26.9 26.8 26.8 26.7 26.7 26.6 26.6 26.5 26.5 26.4
26.4 26.4 26.3 26.2 26.2 26.2 26.1 26.1 26.1 26.0 26.0 26.0 25.9 25.9 25.8
"""
temperature = np.array(READINGS.split(), dtype=float)  # °C
hours = np.arange(len(temperature))[:, None] / 60

# %%
# ## Two laws, and no law
#
# *Newton*: the water loses heat in proportion to the difference from the room temperature, $u' = -a(u - T)$.
#
# *Two bodies*: the water warms the mug, and both cool. The temperature is a sum of two exponentials with the rates $a$
# and $b$.
#
# Differentiating once removes the room temperature $T$, which was not recorded: $(\partial + a)\, u' = 0$ and
# $(\partial + a)(\partial + b)\, u' = 0$. Each law is imposed as exact. The rates are inferred together with everything
# else. The third candidate is *no law*: a smooth curve.
#
# We leave out the first ten minutes, which show a third, faster rate (a least-squares fit of three exponentials gives
# 14 per hour, perhaps from the probe). We also hold out all readings after two hours, to test the predictions.

used = (hours[:, 0] >= 1 / 6) & (hours[:, 0] < 2)
later = hours[:, 0] >= 2
shift = temperature[used].mean()  # the laws are about derivatives
time = ps.Box(t=(1 / 6, hours[-1, 0]))
(dt,) = ps.partials(time)
nodes = time.interior(ps.GaussLegendre(40))
a, b = ps.parameter("a", 0.8), ps.parameter("b", 4.0)  # per hour
laws = {
    "Newton": ps.impose(dt**2 + a * dt, 0.0, on=nodes),
    "two bodies": ps.impose(dt**3 + (a + b) * dt**2 + a * b * dt, 0.0, on=nodes),
}
readings = ps.observe(ps.identity, temperature[used] - shift, at=hours[used])
model = ps.Model(ps.RBF(bandwidth=0.25), readings, physics=laws["Newton"], gamma=0.02, eta=1e4)
over = {"gamma": (1e-3, 100), "eta": (1, 1e6)}

# %%
# ## The evidence
#
# The laws are exact, so the score is that of the readings *given* a law. It can be compared with the evidence of the
# readings without a law. An exact law leaves two or three constants free, so the bandwidth matters little; only the
# smooth curve needs a search for it. We keep 0.25 hours. With 0.4 hours, rounding and too few nodes cause warnings, and
# two bodies are 19 nats ahead of no law instead of 23.

found = ps.choose(model, equations=laws, over=over | {"a": (0.1, 10), "b": (1.5, 10)})
no_law = ps.minimize(ps.Model(model.kernel, readings, gamma=0.02, eta=1e4), over | {"kernel.bandwidth": (0.2, 5)})
print(found)
print(found.best)
nats = {name: minimum.pile.value * used.sum() / 2 for name, minimum in {**found.minima, "no law": no_law}.items()}
for name, value in sorted(nats.items(), key=lambda item: item[1]):
    print(f"{name}: {value - nats['two bodies']:.0f} nats behind")
print(f"times: {60 / found.best.values['b']:.0f} and {60 / found.best.values['a']:.0f} minutes")

# %%
# Two bodies are better than no law: the law contains information that a smooth curve does not. Newton's law is far
# worse than no law: the readings reject it. We interpret the shorter time as that of the mug, and the longer time as
# that of water and mug together.

assert nats["two bodies"] + 10 < nats["no law"] < nats["Newton"] - 5
assert not found.best.at_bounds

# %%
# ## Test on held-out readings
#
# In the upper panel, the three curves agree up to two hours and then diverge. The lower panel shows their differences
# from the readings.

fig, axes = plt.subplots(2, 1, sharex=True, figsize=(7, 6), height_ratios=[2, 1], layout="constrained")
axes[0].plot(hours[used], temperature[used], ".", color="0.3", label="readings used")
axes[0].plot(hours[~used], temperature[~used], ".", color="0.75", label="not used")
shown = hours[used | later]
missed = {}
for name, minimum in {**found.minima, "no law": no_law}.items():
    post = ps.posterior(minimum.model)
    mean, deviation = post.mean(shown) + shift, post.std(shown)
    difference = mean - temperature[used | later]
    missed[name] = np.sqrt(np.mean(difference[used.sum() :] ** 2))
    print(f"{name}: off by {missed[name]:.2f} °C after two hours")
    (line,) = axes[0].plot(shown, mean, label=name)
    for axis, middle in zip(axes, (mean, difference), strict=True):
        axis.fill_between(
            shown[:, 0], middle - 2 * deviation, middle + 2 * deviation, color=line.get_color(), alpha=0.15
        )
    axes[1].plot(shown, difference, color=line.get_color())
axes[0].set(ylabel="temperature (°C)", ylim=(15, 100))
axes[0].legend()
axes[1].set(ylabel="model − reading (°C)", xlabel="time (h)", ylim=(-3, 3))
for axis in axes:
    axis.axvline(2, color="0.6", linestyle=":")
plt.show()

assert missed["two bodies"] < 1 < min(missed["Newton"], missed["no law"])

# %%
# **Where PILE helped.** Two bodies and no law fit the used readings equally well, to less than a tenth of a degree, so
# no loss on these readings could choose between them. The evidence could, because it also accounts for complexity, and
# the held-out readings agree with it. It also gave the rates with their standard errors.
#
# **What the model does not include.** Two exponentials are not the whole truth either. With *all* readings after ten
# minutes, no law is 17 nats better than two bodies: over four hours evaporation, the table and the room matter. The
# band of two bodies is too narrow after two hours: it includes the uncertainty of the curve for these rates, but not
# that of the rates (averaging over [all values](../how-to/uncertainty.md) adds it). Finally, at 80 minutes the
# readings drop suddenly by 0.3 °C, which is visible in every residual: something disturbed the experiment.
#
# [burgers.py](burgers.md) shows how to write a law that is nonlinear in $u$; the next measured example is
# [mercury.py](mercury.md).
