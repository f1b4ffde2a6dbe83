"""
# Which equation is it?

A tracer drifts along a channel, and perhaps it spreads as well. PILE ranks advection, diffusion and both by how
probable each makes the same 120 noisy readings, and `ps.diagnose` notices when the equation is right but a coefficient
is not.
"""

import matplotlib.pyplot as plt
import numpy as np

import pilescore as ps

# %%
# ## The readings
#
# A puff starts at $x = 0.3$, moves with speed 0.4 and spreads with diffusivity 0.01. We read its concentration at
# random times and places, with noise of deviation 0.03. Nobody tells the models below where it started.

SPEED, DIFFUSIVITY, NOISE = 0.4, 0.01, 0.03


def truth(t: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the concentration of the puff."""
    variance = 0.1**2 + 2 * DIFFUSIVITY * t
    return 0.1 / np.sqrt(variance) * np.exp(-((x - 0.3 - SPEED * t) ** 2) / (2 * variance))


rng = np.random.default_rng(0)
points = rng.uniform(0, 1, (120, 2))
readings = truth(*points.T) + NOISE * rng.standard_normal(120)

fig, ax = plt.subplots(layout="constrained")
dots = ax.scatter(points[:, 0], points[:, 1], c=readings, s=40, edgecolor="grey")
ax.set(xlabel="time $t$", ylabel="position $x$", title="What was measured")
fig.colorbar(dots, label="concentration $u$")
plt.show()

# %%
# ## Three candidates
#
# An equation is an operator imposed at quadrature nodes; its unknown coefficients are `ps.parameter`s. Every candidate
# gets its own best coefficients, bandwidths and temperatures. `ps.choose` scores the data *given* the equation:
# the equations are hypotheses, nobody has measured that their right-hand side is zero.

strip = ps.Box(t=(0, 1), x=(0, 1))
dt, dx = ps.partials(strip)
nodes = strip.interior(ps.GaussLegendre((8, 12)))
speed, diffusivity = ps.parameter("speed", 0.1), ps.parameter("diffusivity", 0.02)
candidates = {
    "advection": ps.impose(dt + speed * dx, 0.0, on=nodes),
    "diffusion": ps.impose(dt - diffusivity * dx**2, 0.0, on=nodes),
    "both": ps.impose(dt + speed * dx - diffusivity * dx**2, 0.0, on=nodes),
}
model = ps.Model(
    kernel=ps.RBF(bandwidth=[0.3, 0.15]),
    data=ps.observe(ps.identity, readings, at=points, name="readings"),
    physics=candidates["both"],
    gamma=2 * NOISE**2,
    rho=1e-3,
)
over = {"kernel.bandwidth": (0.02, 5), "gamma": (1e-4, 1), "rho": (1e-5, 1), "eta": (0.01, 100)}
found = ps.choose(
    model,
    equations=candidates,
    over=over | {"speed": (-2, 2), "diffusivity": (0, 0.2)},
    run=ps.RunOptions(progress=False),
)
print(found)

# %%
# `nats` is the log evidence that the best candidate has more: 3 is clear, 5 is strong. `penalised` also charges
# $\frac{1}{2} \log n$ for each number that was fitted, because "both" contains the other two and can never fit worse.
# It wins all the same, and its coefficients come with standard errors. (`rho` at its lower bound means that the
# equation is met as closely as we let it be.)

best = found.best
for name in ("speed", "diffusivity"):
    print(f"{name} = {best.values[name]:.4f} ± {best.standard_errors[name]:.4f}")
assert found.best_name == "both"
assert found.table["penalised"].drop("both").min() > 5
assert abs(best.values["speed"] - SPEED) < 3 * best.standard_errors["speed"]
assert abs(best.values["diffusivity"] - DIFFUSIVITY) < 3 * best.standard_errors["diffusivity"]

fig, ax = plt.subplots(figsize=(6.4, 2.6), layout="constrained")
bars = ax.barh(found.table.index[::-1], found.table["penalised"][::-1])
ax.bar_label(bars, fmt="%.1f", padding=3)
ax.margins(x=0.1)
ax.set(xlabel="nats behind the best, penalised", title="Which equation explains the readings?")
plt.show()

# %%
# ## A wrong coefficient
#
# Now the form is known, but somebody has written down 0.6 for the speed. The kernel is the one found above; the noise
# levels are chosen anew. The noise of the readings comes out right in both models, so the fit to the data shows
# nothing: what is wrong went into `rho`, the noise of the equation. But what is left of the equation is a smooth
# function and not noise, and that is what `physics_against_data` looks for.

transport = {c: dt + c * dx - DIFFUSIVITY * dx**2 for c in (SPEED, 0.6)}
levels = {name: bounds for name, bounds in over.items() if name != "kernel.bandwidth"}
t, x = np.meshgrid(np.linspace(0, 1, 41), np.linspace(0, 1, 41), indexing="ij")
grid = np.stack([t.ravel(), x.ravel()], axis=1)
verdicts = {}
fig, axes = plt.subplots(1, 2, figsize=(7.4, 3.6), sharey=True, layout="constrained")
for ax, (c, operator) in zip(axes, transport.items(), strict=True):
    start = best.model.replace({"speed": c, "diffusivity": DIFFUSIVITY, "rho": 1e-3})
    fitted = ps.minimize(start, levels, score="given_physics", run=ps.RunOptions(progress=False))
    verdicts[c] = ps.diagnose(fitted, checks=["physics_against_data", "unresolved_quadrature"])
    noise = (fitted.values["gamma"] / 2) ** 0.5
    print(f"speed {c}: noise of the readings {noise:.3f}, rho {fitted.values['rho']:.1e}\n{verdicts[c]}\n")
    left = ps.posterior(fitted.model).mean(grid, operator=operator).reshape(t.shape)
    mesh = ax.pcolormesh(t, x, left, vmin=-1, vmax=1, cmap="RdBu")
    ax.set(xlabel="time $t$", title=f"speed {c}")
axes[0].set_ylabel("position $x$")
fig.colorbar(mesh, ax=axes, label="what is left of the equation")
plt.show()
assert verdicts[SPEED].healthy
assert "physics_against_data" in verdicts[0.6]

# %%
# ## What can go wrong
#
# An equation holds only where it is imposed. If the bandwidths may change too, the model with the wrong speed makes
# them so short that the solution can turn between the nodes: no contradiction is left, and `physics_against_data` is
# silent. `unresolved_quadrature` is the check that sees it, and more nodes are the remedy.

slipped = ps.minimize(start, over, score="given_physics", run=ps.RunOptions(progress=False))
verdict = ps.diagnose(slipped, checks=["physics_against_data", "unresolved_quadrature"])
print(f"bandwidths {slipped.values['kernel.bandwidth[0]']:.3f}, {slipped.values['kernel.bandwidth[1]']:.3f}\n{verdict}")
assert "unresolved_quadrature" in verdict
assert "physics_against_data" not in verdict

# %%
# Take home: compare equations by the evidence of the data given each of them, not by residuals, and ask for a
# diagnosis before you believe the winner: PILE ranks the candidates that you wrote down, and cannot name one that you
# did not. [failing_model.py](failing_model.md) is about a right equation with a wrong kernel.
