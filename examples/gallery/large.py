"""
# Twenty thousand observations

A dense score of 20,000 observations takes 3 GB. With a smooth kernel the covariance is nearly a low-rank matrix plus
noise. `solver="auto"` uses this and returns an interval that provably contains the score, without random estimates.
"""

import matplotlib.pyplot as plt
import numpy as np

import pilescore as ps

# %%
# ## The model
#
# A field is measured at thousands of scattered points with noise of standard deviation 0.1, and its source, $\Delta u$,
# at 100 nodes with noise of standard deviation 0.5. The source was measured, so joint PILE is the right score here.

square = ps.Box(x=(-1, 1), y=(-1, 1))
nodes = square.interior(ps.GaussLegendre(10))


def field(p: np.ndarray) -> np.ndarray:
    """Return the true field, whose Laplacian is -25 times the field."""
    return np.sin(3 * p[:, 0]) * np.cos(4 * p[:, 1])


def model(size: int, bandwidth: float) -> ps.Model:
    """Return a model with `size` observations in total."""
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
# ## The cost
#
# `ps.solvers.estimate_cost` estimates the cost before any work. For low rank it reports the worst case, the largest
# rank that is tried before giving up. A smooth kernel needs a small fraction of that.

large = model(20_000, 0.5)
for solver in ("dense", "auto"):
    print(ps.solvers.estimate_cost(large.replace(solver=solver)))

# %%
# ## The score
#
# `value` is the midpoint of the interval from `lower` to `upper`; `solver` describes the method that was used.

score = ps.pile(large.replace(solver="auto"))
print(score)
print(score.solver)
print(f"PILE is between {score.lower:.5f} and {score.upper:.5f}")
assert score.upper - score.lower <= 1e-3  # the tolerance of "auto", unless you give ps.solvers.Auto(tolerance=…)

# %%
# A rank of about a hundred is enough: a matrix of 20,000 × 100 numbers replaces one of 20,000 × 20,000. Is the interval
# narrow enough to choose a bandwidth? The interval of a slightly shorter bandwidth does not overlap with it, so the
# order of the two scores is also proved. With 20,000 observations a small difference of PILE is many nats.

shorter = ps.pile(model(20_000, 0.4).replace(solver="auto"))
print(f"bandwidth 0.4: between {shorter.lower:.5f} and {shorter.upper:.5f}; {shorter.solver}")
print(f"bandwidth 0.5 is better by at least {0.5 * score.size * (shorter.lower - score.upper):.0f} nats")
assert score.upper < shorter.lower

# %%
# ## Check against the dense score
#
# With 3,000 observations the dense score is fast. Intervals of any tolerance must contain it.

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
# If the rank is limited too much, the tolerance is not reached, and the `ToleranceError` has the interval that was. The
# eigenvalues of a smooth kernel decrease faster than any power, and so does the width of the interval.

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
ax.set(xlabel="rank", ylabel="distance in PILE", title="Bounds for 3,000 observations")
ax.legend()
plt.show()

# %%
# ## When it does not work
#
# The necessary rank grows as the bandwidth or the noise decreases, and rough kernels (Matérn) need ranks of thousands.
# Then `auto` factors the dense matrix if it fits in memory, or distributes it in tiles over processes and their disks;
# `solver` reports which. The interval concerns only the arithmetic: a proved score of a wrong model is still the score
# of a wrong model, as in [failing_model.py](failing_model.md). Posterior standard deviations at many points take longer
# than the score.
