"""
# Twenty thousand observations

A dense score of 20,000 observations takes 3 GB. `solver="auto"` takes a smooth kernel for what it is, a matrix of low
rank and noise, and returns an interval that is proved to hold the score: no estimate, no random vectors.
"""

import matplotlib.pyplot as plt
import numpy as np

import pilescore as ps

# %%
# ## The model
#
# A field is read at thousands of scattered points with noise of deviation 0.1, and its source, $\Delta u$, at 100
# nodes with noise of deviation 0.5. The source was measured, not known: PILE of both is the right score here.

square = ps.Box(x=(-1, 1), y=(-1, 1))
nodes = square.interior(ps.GaussLegendre(10))


def field(p: np.ndarray) -> np.ndarray:
    """Return the true field; its Laplacian is -25 times it."""
    return np.sin(3 * p[:, 0]) * np.cos(4 * p[:, 1])


def model(size: int, bandwidth: float) -> ps.Model:
    """Return a model of `size` observations in all."""
    rng = np.random.default_rng(0)
    source = -25 * field(nodes.points) + 0.5 * rng.standard_normal(len(nodes))
    points = rng.uniform(-1, 1, (size - len(nodes), 2))
    readings = field(points) + 0.1 * rng.standard_normal(len(points))
    return ps.Model(
        kernel=ps.RBF(bandwidth=bandwidth),
        data=ps.observe(ps.identity, readings, at=points, noise=0.1, name="readings"),
        physics=ps.impose(ps.laplacian(square), source, on=nodes, noise=0.5, name="source"),
    )


# %%
# ## What would it cost?
#
# `ps.solvers.estimate_cost` says so before any work. For low rank it states the worst case, the largest rank that
# would be tried before giving up. A smooth kernel needs a small fraction of that.

large = model(20_000, 0.5)
for solver in ("dense", "auto"):
    print(ps.solvers.estimate_cost(large.replace(solver=solver)))

# %%
# ## The score
#
# `value` is the middle of the interval from `lower` to `upper`; `solver` says what was done.

score = ps.pile(large.replace(solver="auto"))
print(score)
print(score.solver)
print(f"PILE is between {score.lower:.5f} and {score.upper:.5f}")
assert score.upper - score.lower <= 1e-3  # the tolerance of "auto", unless you give ps.solvers.Auto(tolerance=…)

# %%
# A rank of about a hundred: a thin matrix of 20,000 × 100 numbers does what 20,000 × 20,000 would. Is the interval
# narrow enough to choose by? A somewhat shorter bandwidth has an interval of its own, and the two do not meet. So the
# order of the two is proved as well; and with 20,000 observations a small difference of PILE is many nats.

shorter = ps.pile(model(20_000, 0.4).replace(solver="auto"))
print(f"bandwidth 0.4: between {shorter.lower:.5f} and {shorter.upper:.5f}; {shorter.solver}")
print(f"bandwidth 0.5 is better by at least {0.5 * score.size * (shorter.lower - score.upper):.0f} nats")
assert score.upper < shorter.lower

# %%
# ## Do not take our word for it
#
# With 3,000 observations the dense score is quick. Intervals of any tolerance have to hold it.

small = model(3_000, 0.5)
exact = ps.pile(small).value
print(f"dense: {exact:.9f}")
for tolerance in (1e-3, 1e-6):
    found = ps.pile(small.replace(solver=ps.solvers.LowRank(tolerance=tolerance)))
    interval = f"{found.lower - exact:+.1e} to {found.upper - exact:+.1e} from dense"
    print(f"tolerance {tolerance:.0e}: {interval}; {found.solver}")
    assert found.lower <= exact <= found.upper
    assert found.upper - found.lower <= tolerance

# %%
# If the rank is held too low, the tolerance is not reached; the `ToleranceError` has the interval that was. The
# eigenvalues of a smooth kernel fall faster than any power, and so do the bounds.

ranks = [30, 60, 90, 120, 150]
below, above = [], []
for rank in ranks:
    try:
        ps.pile(small.replace(solver=ps.solvers.LowRank(tolerance=1e-12, rank=rank)))
    except ps.errors.ToleranceError as failure:
        below.append(exact - failure.lower)
        above.append(failure.upper - exact)
assert len(below) == len(ranks)
assert min(below) > 0
assert min(above) > 0

fig, ax = plt.subplots(layout="constrained")
ax.semilogy(ranks, below, "o-", label="dense score $-$ lower bound")
ax.semilogy(ranks, above, "s-", label="upper bound $-$ dense score")
ax.axhline(1e-3, color="grey", linestyle="--", label="tolerance of auto")
ax.set(xlabel="rank", ylabel="distance in PILE", title="Bounds of 3,000 observations")
ax.legend()
plt.show()

# %%
# ## When it does not work
#
# Ranks grow as bandwidths shrink and as noise becomes small, and rough kernels (Matérn) need thousands: then `auto`
# factors the dense matrix if it fits, or spreads it in tiles over processes and their disks, and says so in `solver`.
# The interval is about arithmetic only: a proved score of a wrong model is still that of a wrong model, as in
# [failing_model.py](failing_model.md). Deviations of the posterior at many points take longer than the score.
