"""
# Score a trained network

Of two physics-informed networks for one equation, the one with zero training loss is wrong and the other is right.
`ps.network_pile` scores both at points that neither has seen, and computes an error band for each.
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
# The equation is $u'' = -k^2 \sin kx$ with $u = 0$ at both ends and $k = 3 \pi$. Its solution is $u = \sin kx$. A
# `ps.Model` describes everything that a network has to satisfy. Here the kernel only scales the residuals: a residual
# of $u''$ is much larger than the corresponding error of $u$. The bandwidth should be the length over which the
# solution changes, here $1/k \approx 0.1$.

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
# Each network has one hidden layer of 24 tanh units and is trained with 8000 steps of Adam, one network at all 100
# nodes and the other at six points. The operator `dx**2` of the model can also be applied to the network.


def apply(params: dict[str, jax.Array], p: jax.Array) -> jax.Array:
    """Return the network at a point."""
    return params["out"] @ jnp.tanh(params["in"] * p[0] + params["bias"]) + params["shift"]


def loss(params: dict[str, jax.Array], points: jax.Array) -> jax.Array:
    """Return the mean squared residuals of the equation, relative to its size, plus those of the boundary values."""
    residual = jax.vmap((dx**2)(lambda p: apply(params, p)))(points) - jax.vmap(source)(points)
    ends = jax.vmap(lambda p: apply(params, p))(jnp.array([[0.0], [1.0]]))
    return jnp.mean(residual**2) / K**4 + jnp.mean(ends**2)


def train(points: jax.Array, steps: int = 8000, width: int = 24) -> tuple[dict[str, jax.Array], float]:
    """Return the trained parameters and the final training loss."""
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
# Physics is scored at 100 new random points, the same for both networks. (The training loss in the first printed lines
# is that of the model, which is not divided by $k^4$ as ours is.)

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
# The training loss prefers the network that satisfies the equation at its six points and is wrong between them. PILE
# and the misfit at fresh points do not. To *rank* networks for one problem, the misfit alone is as good and cheaper.
# PILE adds the noise level and the uncertainty of the solution, from one trained network, without an ensemble.

fig, axes = plt.subplots(2, 1, sharex=True, layout="constrained")
for ax, (name, score) in zip(axes, found.items(), strict=True):
    mean, deviation = score.mean(x), score.std(x)
    ax.plot(x, exact, "k--", label="exact")
    ax.plot(x, mean, label="network")
    ax.fill_between(x, mean - 2 * deviation, mean + 2 * deviation, alpha=0.3, label="± 2 standard deviations")
    ax.plot(points[name][:, 0], 0 * points[name][:, 0], "k|", label="training points")
    ax.set(ylabel="$u$", title=f"trained at {name}")
    inside = np.mean(np.abs(mean - exact) <= 2 * deviation)
    print(f"{name}: band of ± {2 * deviation.max():.3f} at most, with {100 * inside:.0f}% of the truth inside")
axes[1].set_xlabel("$x$")
axes[0].legend(ncols=2, fontsize="small")
plt.show()
assert good.std(x).max() < 0.1 * bad.std(x).max()

# %%
# ## What the band does not include
#
# The band of the wrong network is a hundred times as wide, which is a warning, but most of the true solution lies
# outside it. The residuals are treated as independent noise, but here they are a smooth function, whose effects add
# up. The band also covers only small changes of the weights: a network with a wrong solution that satisfies the
# equation at all scoring points would have a narrow band. A wide band is a warning; a narrow band is no proof.
# [failing_model.py](failing_model.md) shows a kernel that fails without visible errors; [burgers.py](burgers.md) solves
# an equation without a network.
