"""
# Which equation is it?

A tracer drifts along a channel and perhaps also spreads. PILE ranks advection, diffusion and both by how probable they
make the same 120 noisy readings. `ps.diagnose` detects a wrong coefficient in an equation of the right form.
"""

import matplotlib.pyplot as plt
import numpy as np

import pilescore as ps

# %%
# ## The readings
#
# A puff starts at $x = 0.3$, moves with speed 0.4 and spreads with diffusivity 0.01. We measure its concentration at
# random times and positions, with noise of standard deviation 0.03. The models below do not know where it started.

SPEED, DIFFUSIVITY, NOISE = 0.4, 0.01, 0.03


def truth(t: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the true concentration."""
    variance = 0.1**2 + 2 * DIFFUSIVITY * t
    return 0.1 / np.sqrt(variance) * np.exp(-((x - 0.3 - SPEED * t) ** 2) / (2 * variance))


rng = np.random.default_rng(0)
points = rng.uniform(0, 1, (120, 2))
readings = truth(*points.T) + NOISE * rng.standard_normal(120)

fig, ax = plt.subplots(layout="constrained")
dots = ax.scatter(points[:, 0], points[:, 1], c=readings, s=40, edgecolor="grey")
ax.set(xlabel="time $t$", ylabel="position $x$", title="The readings")
fig.colorbar(dots, label="concentration $u$")
plt.show()

# %%
# ## Three candidates
#
# An equation is an operator imposed at quadrature nodes; its unknown coefficients are created by `ps.parameter`.
# Coefficients, bandwidths and temperatures are optimised for each candidate. The data are scored *given* the equation,
# because no one has measured that its right-hand side is zero. The equations are soft, with a searched `rho`: it shows
# how closely each is met.

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
# `nats` is the log evidence by which the best candidate is ahead: 3 is clear, 5 is strong. It is integrated over the
# coefficients and all other fitted numbers, because "both" contains the other two and can never fit worse. It still
# wins, and its coefficients have standard errors. (`rho` at its lower bound means that the equation is satisfied as
# closely as the bound allows.)

best = found.best
for name in ("speed", "diffusivity"):
    print(f"{name} = {best.values[name]:.4f} ± {best.standard_errors[name]:.4f}")
assert found.best_name == "both"
assert found.table["nats"].drop("both").min() > 5
assert abs(best.values["speed"] - SPEED) < 3 * best.standard_errors["speed"]
assert abs(best.values["diffusivity"] - DIFFUSIVITY) < 3 * best.standard_errors["diffusivity"]

fig, ax = plt.subplots(figsize=(6.4, 2.6), layout="constrained")
bars = ax.barh(found.table.index[::-1], found.table["nats"][::-1])
ax.bar_label(bars, fmt="%.1f", padding=3)
ax.margins(x=0.1)
ax.set(xlabel="nats behind the best", title="Which equation explains the readings?")
plt.show()

# %%
# ## A wrong coefficient
#
# Now the form of the equation is known, but its speed is wrong: 0.6. We keep the kernel found above and choose the
# noise levels again. The estimated noise of the readings is right with both speeds, so the fit to the data shows
# nothing. The error goes into `rho`, the noise of the equation. But with another speed the data would be far more
# probable, which is what `wrong_equation` checks; it names the speed, too.

transport = {c: dt + c * dx - DIFFUSIVITY * dx**2 for c in (SPEED, 0.6)}
levels = {name: bounds for name, bounds in over.items() if name != "kernel.bandwidth"}
t, x = np.meshgrid(np.linspace(0, 1, 41), np.linspace(0, 1, 41), indexing="ij")
grid = np.stack([t.ravel(), x.ravel()], axis=1)
verdicts = {}
fig, axes = plt.subplots(1, 2, figsize=(7.4, 3.6), sharey=True, layout="constrained")
for ax, (c, operator) in zip(axes, transport.items(), strict=True):
    start = best.model.replace({"speed": c, "diffusivity": DIFFUSIVITY, "rho": 1e-3})
    fitted = ps.minimize(start, levels, run=ps.RunOptions(progress=False))
    verdicts[c] = ps.diagnose(fitted, checks=["wrong_equation", "unresolved_quadrature"])
    noise = (fitted.values["gamma"] / 2) ** 0.5
    print(f"speed {c}: noise of the readings {noise:.3f}, rho {fitted.values['rho']:.1e}\n{verdicts[c]}\n")
    left = ps.posterior(fitted.model).mean(grid, operator=operator).reshape(t.shape)
    mesh = ax.pcolormesh(t, x, left, vmin=-1, vmax=1, cmap="RdBu")
    ax.set(xlabel="time $t$", title=f"speed {c}")
axes[0].set_ylabel("position $x$")
fig.colorbar(mesh, ax=axes, label="residual of the equation")
plt.show()
assert verdicts[SPEED].healthy
assert "wrong_equation" in verdicts[0.6]

# %%
# ## What can go wrong
#
# An equation is imposed only at its nodes. If the bandwidths may change too, they become so short for the wrong speed
# that the solution can violate the equation between the nodes. The check `unresolved_quadrature` detects this; the
# remedy is more nodes. For an exact equation, without `rho`, `minimize` bounds the lengths and refines the nodes
# itself.

slipped = ps.minimize(start, over, run=ps.RunOptions(progress=False))
verdict = ps.diagnose(slipped, checks=["wrong_equation", "unresolved_quadrature"])
print(f"bandwidths {slipped.values['kernel.bandwidth[0]']:.3f}, {slipped.values['kernel.bandwidth[1]']:.3f}\n{verdict}")
assert "unresolved_quadrature" in verdict

# %%
# In summary, compare equations by the evidence of the data given each of them, not by residuals, and diagnose the
# winner before you trust it. PILE ranks the candidates that you provide and cannot suggest others.
# [failing_model.py](failing_model.md) has the right equation and a wrong kernel.
