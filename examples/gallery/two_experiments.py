"""# Two experiments that share a parameter

Two rods of the same alloy, of different thickness and measured by different instruments, share one conductivity. A
hierarchical NumPyro model joins the evidence of both, and finds it more precisely than either rod alone.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
from scipy.stats import gaussian_kde

import pilescore as ps

# %%
# ## The question
#
# A rod is heated at one end and loses heat through its side. Its excess temperature $u$ over the room follows $k u'' =
# (4h/d)\, u$, with the conductivity $k$, the thickness $d$ and the known heat transfer coefficient $h$. The other end
# is insulated: $u' = 0$. There are two rods of the same alloy, one thin and one thick. The temperatures of the hot ends
# are unknown, and so is the noise of each instrument. What is $k$?
#
# The two temperatures are different functions with different equations, so no single model holds all readings. But
# given $k$ the experiments are independent: their log evidences add.
#
# The readings are simulated with $k = 50$ W/(m K).

CONDUCTIVITY, TRANSFER, LENGTH = 50.0, 20.0, 0.2  # W/(m K), W/(m² K), m
bar = ps.Box(x=(0, LENGTH))
(dx,) = ps.partials(bar)


def experiment(seed: int, thickness: float, heat: float, noise: float, count: int) -> ps.Model:
    """Return the model of one rod, with simulated readings."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0, LENGTH, count))
    loss = 4 * TRANSFER / thickness
    decay = (loss / CONDUCTIVITY) ** 0.5
    readings = heat * np.cosh(decay * (LENGTH - x)) / np.cosh(decay * LENGTH) + noise * rng.standard_normal(count)
    law = ps.parameter("k", 30.0) * dx**2 - loss * ps.identity
    return ps.Model(
        ps.RBF(bandwidth=0.1),
        ps.observe(ps.identity, readings, at=x),
        [
            ps.impose(law, 0.0, on=bar.interior(ps.GaussLegendre(16))),
            ps.neumann(0.0, on=bar.face(x=LENGTH)(ps.GaussLegendre(1))),
        ],
        gamma=2.0,
        eta=1e4,
    )


thin = experiment(seed=0, thickness=0.005, heat=60.0, noise=1.5, count=12)
thick = experiment(seed=1, thickness=0.012, heat=40.0, noise=1.0, count=12)
rods = {"thin": thin, "thick": thick}

# %%
# ## Each rod alone
#
# `ps.hyperposterior` gives the distribution of $k$ for each rod. The search also refines the nodes of the exact
# equation; we keep the refined models, because a function for a sampler uses the nodes of the model as they are.

BOUNDS = (5.0, 500.0)
over = {"k": BOUNDS, "gamma": (1e-3, 1e3), "eta": (1.0, 1e7)}
alone = {name: ps.hyperposterior(ps.minimize(rod, over)) for name, rod in rods.items()}
for name, hyper in alone.items():
    print(name, hyper)
    assert hyper.warnings == ()
intervals = {name: hyper.quantiles([0.025, 0.5, 0.975]).loc["k"].to_numpy() for name, hyper in alone.items()}

# %%
# ## Both together
#
# `ps.log_evidence_function` returns the log evidence of a model as a JAX function of the named hyperparameters. Inside
# `numpyro.factor` it is the likelihood of a model that may have anything else around it: here one conductivity for both
# rods, and a noise for each, from a population of instruments whose typical noise is unknown too. With two instruments
# this means: if one has a noise of 2 °C, the other hardly has one of 0.01 °C.

NAMES = ["k", "gamma", "eta"]
evidences: dict[str, Callable[[Any], jax.Array]] = {
    name: ps.log_evidence_function(hyper.minimum.model, NAMES) for name, hyper in alone.items()
}


def both() -> None:
    """Sample the hierarchical model."""
    k = numpyro.sample("k", dist.LogUniform(*BOUNDS))
    typical = numpyro.sample("typical noise", dist.LogNormal(0.0, 1.0))
    for name, log_evidence in evidences.items():
        noise = numpyro.sample(f"noise, {name}", dist.LogNormal(jnp.log(typical), 0.7))
        square = np.mean(rods[name].data[0].values ** 2)
        eta = numpyro.sample(f"eta, {name}", dist.LogNormal(np.log(square), np.log(10)))
        values = {"k": k, "gamma": 2 * noise**2, "eta": eta}
        numpyro.factor(f"evidence, {name}", log_evidence(values))


sampler = MCMC(
    NUTS(both, target_accept_prob=0.9),
    num_warmup=500,
    num_samples=500,
    num_chains=2,
    chain_method="sequential",
    progress_bar=False,
)
sampler.run(jax.random.PRNGKey(0))
sampler.print_summary()
draws = {name: np.asarray(values) for name, values in sampler.get_samples().items()}
summary = numpyro.diagnostics.summary(sampler.get_samples(group_by_chain=True))
assert all(parameter["r_hat"] < 1.05 for parameter in summary.values())
assert sampler.get_extra_fields()["diverging"].sum() == 0

# %%
# ## The result

intervals["both"] = np.quantile(draws["k"], [0.025, 0.5, 0.975])
factors = {}
for name, (low, middle, high) in intervals.items():
    factors[name] = high / low
    print(f"{name}: k = {middle:.1f} W/(m K), 95% from {low:.1f} to {high:.1f}, a factor of {high / low:.2f}")
    assert low < CONDUCTIVITY < high
assert factors["both"] < min(factors["thin"], factors["thick"])

grid = np.geomspace(42, 70, 400)
fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
x = np.linspace(0, LENGTH, 101)
for color, (name, hyper) in zip(("C0", "C1"), alone.items(), strict=True):
    model = hyper.minimum.model
    curves = []
    for i in range(0, 1000, 50):
        values = {"k": draws["k"][i], "gamma": 2 * draws[f"noise, {name}"][i] ** 2, "eta": draws[f"eta, {name}"][i]}
        curves.append(ps.posterior(model.replace(values)).samples(x, 1, seed=i)[0])
    left.plot(100 * x, np.transpose(curves), color=color, linewidth=0.5, alpha=0.6)
    left.plot(100 * model.data[0].points[:, 0], model.data[0].values, "o", color=color, label=name)
    density = gaussian_kde(np.log(hyper.sample(2000)["k"]))
    right.plot(grid, density(np.log(grid)), color=color, label=f"{name} rod alone")
right.plot(grid, gaussian_kde(np.log(draws["k"]))(np.log(grid)), color="k", label="both")
right.axvline(CONDUCTIVITY, color="k", linestyle=":", label="truth")
left.set(xlabel="position (cm)", ylabel="excess temperature (°C)", title="readings, and samples given both")
right.set(xscale="log", xlabel="conductivity (W/(m K))", ylabel="density of log k", title="what is known about k")
right.set_xticks([45, 50, 55, 60, 65], ["45", "50", "55", "60", "65"])
right.minorticks_off()
left.legend()
right.legend(fontsize="small")
plt.show()

# %%
# Independent information adds like this: precisions of $\log k$, one over the variance, sum up. The sum of the two
# separate precisions predicts the deviation that the sampler finds.

deviations = [float(np.std(np.log(hyper.sample(2000)["k"]))) for hyper in alone.values()]
expected = sum(each**-2.0 for each in deviations) ** -0.5
found = float(np.std(np.log(draws["k"])))
print(f"deviation of log k: {deviations[0]:.3f} and {deviations[1]:.3f} alone, {found:.3f} together;", end=" ")
print(f"{expected:.3f} by adding precisions")
assert abs(found / expected - 1) < 0.3

# %%
# ## What can go wrong
#
# - **What is shared must be the same.** If the two intervals exclude each other, the rods are not of one alloy, or an
#   equation is wrong; a joint model then finds a value between them that is right for neither. Look at each experiment
#   alone first. Or give each rod its own conductivity, from a population: `dist.LogNormal(jnp.log(typical), spread)`.
# - **Two experiments say little about a population.** The prior of the typical noise, and of the spread around it,
#   matters here. With ten instruments the data would decide.
# - **Nothing warns inside a sampler.** Where the evidence cannot be computed, the function is NaN, which NUTS rejects.
#   Check divergences, `r_hat` and `n_eff`, and `ps.pile` of a few draws.
# - **Nodes stay as they are.** Start from a model whose nodes suffice, as the search found them.
#
# [Use pilescore inside JAX](../how-to/samplers.md) has the details.
