"""
# The latent heat of mercury

Infer the heat of evaporation of mercury, which was not measured, from nineteen tabulated vapour pressures and the
Clausius–Clapeyron equation. The evidence shows that this heat is not constant.
"""

import matplotlib.pyplot as plt
import numpy as np

import pilescore as ps

# %%
# ## The measurement
#
# The data are vapour pressures of mercury in mm of mercury, every 20 °C from 0 to 360 °C, from R. C. Weast (ed.),
# *Handbook of Chemistry and Physics*, CRC Press, 1973; the R data set `pressure` has the same values. The first value
# has one digit: 0.0002 may be anything between 0.00015 and 0.00025. So the noise is known and differs from reading to
# reading: a rounding error has a standard deviation of $1/\sqrt{12}$ of the last digit.

READINGS = "0.0002 0.0012 0.006 0.03 0.09 0.27 0.75 1.85 4.2 8.8 17.3 32.1 57 96 157 247 376 558 806".split()
temperature = (273.15 + 20.0 * np.arange(19)[:, None]) / 100  # in units of 100 K
pressure = np.array(READINGS, dtype=float)
last_digit = np.array([10.0 ** -len(text.partition(".")[2]) for text in READINGS])
noise = last_digit / np.sqrt(12) / pressure  # of log p

# %%
# ## The law
#
# With $u = \log p$ the Clausius–Clapeyron equation is $R T^2 u' = H$, where $H$ is the molar heat of evaporation. If
# $H$ is constant, $H' = 0$; if it changes linearly with temperature, $H'' = 0$. Both are linear equations for $u$
# without unknown coefficients; the data determine $H$. Both are imposed as exact.

span = ps.Box(T=(2.7, 6.4))
(dT,) = ps.partials(span)
heat = ps.coefficient(lambda p: 0.8314462618 * p[0] ** 2, "RT2") * dT  # turns log p into H, in kJ/mol
nodes = span.interior(ps.GaussLegendre(30))
laws = {
    "constant": ps.impose(dT * heat, 0.0, on=nodes),
    "linear": ps.impose(dT**2 * heat, 0.0, on=nodes),
}
print("The law for a linear change:", dT**2 * heat, "= 0")

# %%
# ## The evidence

shift = np.log(pressure).mean()
model = ps.Model(
    ps.RBF(bandwidth=1.0),
    ps.observe(ps.identity, np.log(pressure) - shift, at=temperature, noise=noise),
    physics=laws["constant"],
    eta=100.0,
)
found = ps.choose(model, equations=laws, over={"eta": (1, 1e6)})
print(found)
assert found.best_name == "linear"
assert found.table["nats"]["constant"] > 20

# %%
# The evidence rejects a constant heat of evaporation, as assumed in textbooks. The bandwidth was not searched: with any
# kernel, the exact law allows only a straight line for $H$.
#
# ## A quantity that was not measured
#
# The posterior of any operator takes one call. Reference values are 61.38 ± 0.04 kJ/mol at 25 °C (CODATA) and 59.11 at
# the boiling point (*CRC Handbook*).

post = ps.posterior(found.best.model)
known = {2.9815: 61.38, 6.2988: 59.11}
for point, value in known.items():
    mean, deviation = post.mean([[point]], operator=heat)[0], post.std([[point]], operator=heat)[0]
    print(f"at {100 * point:.0f} K: {mean:.2f} ± {deviation:.2f} kJ/mol (reference: {value})")
    assert abs(mean - value) < 0.5

T = np.linspace(2.7, 6.4, 200)[:, None]
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
left.errorbar(100 * temperature[:, 0], pressure, yerr=last_digit / 2, fmt=".", label="table, ± half of the last digit")
left.plot(100 * T, np.exp(post.mean(T) + shift), label="model")
left.set(yscale="log", xlabel="temperature (K)", ylabel="vapour pressure (mm Hg)")
left.legend()
for name, minimum in found.minima.items():
    mean, deviation = (f(T, operator=heat) for f in (ps.posterior(minimum.model).mean, ps.posterior(minimum.model).std))
    (line,) = right.plot(100 * T, mean, label=name)
    right.fill_between(100 * T[:, 0], mean - 2 * deviation, mean + 2 * deviation, color=line.get_color(), alpha=0.2)
right.plot(100 * np.array(list(known)), list(known.values()), "k*", markersize=10, label="reference")
right.set(xlabel="temperature (K)", ylabel="heat of evaporation (kJ/mol)")
right.legend()
plt.show()

# %%
# **Where PILE helped.** In the left panel both laws give the same curve through the points. The evidence, which takes
# the accuracy of each point into account, shows that one of them is wrong; the right panel shows by how much. The
# reference values agree to 0.2 kJ/mol, although at the boiling point this is several of our standard deviations.
#
# **What the model does not include.** The values in the handbook are smoothed, so rounding is not their only error, and
# the vapour is treated as an ideal gas. Trust only the order of magnitude of the standard deviations above. A noise
# level that is fixed too low makes every difference look significant; [bad_sensor.py](bad_sensor.md) shows the effect
# of a wrong noise level.
