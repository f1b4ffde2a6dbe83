"""
# Score a trained network

Two physics-informed networks for one equation: the one with the training loss of zero is wrong, and the other is
right. `ps.network_pile` scores both at points that neither has seen, and puts a band around each.
"""

from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax  # pip install 'pilescore[pinn]'

import pilescore as ps

# %%
# ## The problem
#
# $u'' = -k^2 \sin kx$ with zero ends and $k = 3 \pi$, so that $u = \sin kx$. What a network has to satisfy is written
# once, as a `ps.Model`. Its kernel only sets the scale of rows: a residual of $u''$ is much larger than the error of
# $u$ that it comes from. The bandwidth should be the length on which the solution changes, here $1/k \approx 0.1$.

K = 3 * np.pi
line = ps.Box(x=(0, 1))
(dx,) = ps.partials(line)


def source(p: Any) -> Any:
    """Return the right-hand side."""
    return -(K**2) * jnp.sin(K * p[0])


model = ps.Model(
    kernel=ps.RBF(bandwidth=0.1),
    physics=[
        ps.impose(dx**2, source, on=line.interior(ps.GaussLegendre(100)), name="equation"),
        ps.dirichlet(0.0, on=line.boundary(ps.GaussLegendre(1)), name="ends"),
    ],
)

# %%
# ## Two networks
#
# One hidden layer of 24 tanh units, 8000 steps of Adam. One network is trained at all 100 nodes, the other at six
# points. `dx**2` is the operator of the model, and here it is applied to the network.


def apply(params: dict[str, jax.Array], p: jax.Array) -> jax.Array:
    """Return the network at a point."""
    return params["out"] @ jnp.tanh(params["in"] * p[0] + params["bias"]) + params["shift"]


def loss(params: dict[str, jax.Array], points: jax.Array) -> jax.Array:
    """Return the mean squared residuals of the equation, relative to its size, and of the ends."""
    residual = jax.vmap((dx**2)(lambda p: apply(params, p)))(points) - jax.vmap(source)(points)
    ends = jax.vmap(lambda p: apply(params, p))(jnp.array([[0.0], [1.0]]))
    return jnp.mean(residual**2) / K**4 + jnp.mean(ends**2)


def train(points: jax.Array, steps: int = 8000, width: int = 24) -> tuple[dict[str, jax.Array], float]:
    """Return trained parameters and the last training loss."""
    keys = jax.random.split(jax.random.key(0), 3)
    sizes = {"in": 8.0, "bias": 4.0, "out": width**-0.5}
    params = {n: s * jax.random.normal(k, (width,)) for k, (n, s) in zip(keys, sizes.items(), strict=True)}
    params["shift"] = jnp.zeros(())
    adam = optax.adam(optax.cosine_decay_schedule(1e-2, steps))

    def step(carry: Any, _: None) -> tuple[Any, jax.Array]:
        params, state = carry
        value, gradient = jax.value_and_grad(loss)(params, points)
        updates, state = adam.update(gradient, state)
        return (optax.apply_updates(params, updates), state), value

    (params, _), values = jax.jit(lambda c: jax.lax.scan(step, c, length=steps))((params, adam.init(params)))
    return params, float(values[-1])


points = {"100 points": jnp.asarray(model.physics[0].points), "6 points": jnp.linspace(0, 1, 8)[1:-1, None]}
trained = {name: train(at) for name, at in points.items()}

# %%
# ## Score them
#
# Physics is scored at 100 new random points, the same for both networks. (The training loss in the first lines printed
# is that of the model, not divided by $k^4$ as ours is.)

found = {name: ps.network_pile(apply, params, model) for name, (params, _) in trained.items()}
print(found["100 points"], "\n")
x = np.linspace(0, 1, 201)
exact = np.sin(K * x)
for name, score in found.items():
    error = np.abs(score.mean(x) - exact).max()
    print(f"{name}: training loss {trained[name][1]:.0e}, PILE {score.value:.2f}, misfit {score.misfit:.1e}, ", end="")
    print(f"noise level {score.sigma2**0.5:.4f}, true error {error:.4f}")
print(ps.compare(found)[["rank", "pile", "nats", "misfit"]])
good, bad = found.values()
assert trained["6 points"][1] < trained["100 points"][1]  # the training loss prefers the wrong one
assert good.value < bad.value
assert good.misfit < 0.01 * bad.misfit

# %%
# The training loss prefers the network that runs through its six points and does as it likes between them. PILE and
# the misfit at fresh points do not; to *rank* networks of one problem the misfit alone is as good a guide, and
# cheaper. What PILE adds is the noise level and an uncertainty of the solution, from the one trained network, without
# an ensemble.

fig, axes = plt.subplots(2, 1, sharex=True, layout="constrained")
for ax, (name, score) in zip(axes, found.items(), strict=True):
    mean, deviation = score.mean(x), score.std(x)
    ax.plot(x, exact, "k--", label="exact")
    ax.plot(x, mean, label="network")
    ax.fill_between(x, mean - 2 * deviation, mean + 2 * deviation, alpha=0.3, label="± 2 deviations")
    ax.plot(points[name][:, 0], 0 * points[name][:, 0], "k|", label="trained here")
    ax.set(ylabel="$u$", title=f"trained at {name}")
    inside = np.mean(np.abs(mean - exact) <= 2 * deviation)
    print(f"{name}: 2 deviations are {2 * deviation.max():.3f} at most; {100 * inside:.0f}% of the truth is within")
axes[1].set_xlabel("$x$")
axes[0].legend(ncols=2, fontsize="small")
plt.show()
assert good.std(x).max() < 0.1 * bad.std(x).max()

# %%
# ## What the band does not know
#
# The band of the wrong network is a hundred times as wide, which is a warning, but most of the truth lies outside of
# it. Residuals count as independent noise; here they are a smooth function, whose effects add up. And the band holds
# for small changes of the weights only: a network that has settled on a wrong solution which satisfies the equation at
# all scoring points would be sure of it. A wide band is a reason to worry; a narrow one is no proof.
# [failing_model.py](failing_model.md) shows a kernel that fails as quietly; [burgers.py](burgers.md) solves an
# equation without a network.
