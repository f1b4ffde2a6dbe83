"""Networks of PyTorch: against the same weights in JAX, and errors for unsuitable modules."""

import copy
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pilescore as ps
from pilescore.networks.interface import predict
from pilescore.networks.jacobians import NetworkRows

from ..models import refused

torch = pytest.importorskip("torch")
adapter = pytest.importorskip("pilescore.networks.torch")
nn = torch.nn

STRIP = ps.Box(t=(0, 1), x=(-1, 1))
DT, DX = ps.partials(STRIP)
RULE = ps.GaussLegendre(3)
POINTS = np.random.default_rng(0).uniform([0, -1], [1, 1], (7, 2))


class Hard(nn.Module):
    """As DeepXDE has it: columns of a batch, features of the input, conditions that hold by construction."""

    def __init__(self, dtype=torch.float64):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.net = nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 1)).to(dtype)
        self.matrix = torch.randn(2, 3, generator=generator, dtype=dtype)  # not a buffer
        self.register_buffer("width", torch.tensor([0.8], dtype=dtype))
        with torch.no_grad():
            for each in self.parameters():
                each.copy_(torch.randn(each.shape, generator=generator))

    def forward(self, x):
        t, side = x[:, 0:1], x[:, 1:2]
        features = torch.sin(x @ self.matrix)
        return torch.cos(side * self.width) + t * (1 - side**2) * self.net(features)


def in_jax(module):
    """Return the same function in JAX, with its parameters."""
    params = {name: jnp.asarray(each.detach().double().numpy()) for name, each in module.named_parameters()}
    matrix, width = (jnp.asarray(each.double().numpy()) for each in (module.matrix, module.width))

    def apply(params, p):
        hidden = params["net.0.weight"] @ jnp.sin(p @ matrix) + params["net.0.bias"]
        hidden = jax.nn.gelu(hidden, approximate=False)
        return jnp.cos(p[1] * width[0]) + p[0] * (1 - p[1] ** 2) * (
            params["net.2.weight"] @ hidden + params["net.2.bias"]
        )

    return apply, params


def plain(*inside, width=1, dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), *(inside or (nn.Tanh(),)), nn.Linear(3, width)).to(dtype)


BURGERS = ps.Nonlinear(lambda p, u, u_t, u_x, u_xx: u_t + u * u_x - 0.1 * u_xx, of=(ps.identity, DT, DX, DX**2))
MODEL = ps.Model(
    kernel=ps.RBF(bandwidth=0.7),
    data=[
        ps.observe(ps.identity, np.sin(POINTS[:, 0]), at=POINTS),
        ps.observe(ps.integral(STRIP.slice(t=0.5)(ps.GaussLegendre(7))), values=0.3),
    ],
    physics=[
        ps.impose(BURGERS, 0.0, on=STRIP.interior(RULE)),
        ps.impose(DT - ps.coefficient(lambda p: p[0], "a") * DX, lambda p: p[1], on=STRIP.interior(RULE)),
    ],
    gamma=0.1,
)
SMALL = ps.Model(ps.RBF(0.7), physics=ps.impose(DX, 0.0, on=STRIP.interior(RULE)))
MODULE = Hard()
APPLY, PARAMS = in_jax(MODULE)


def test_derivatives_and_jacobians():
    """By reverse mode, again and again: another way than the adapter's."""
    network = adapter.TorchNetwork(MODULE, POINTS)
    indices = ((0, 1), (0, 0), (2, 1), (0, 3), (1, 0))
    table = np.random.default_rng(1).standard_normal((len(indices), len(POINTS)))
    values, rows = [], []
    for point, column in zip(torch.tensor(POINTS), torch.tensor(table).T, strict=True):
        at = point.clone().requires_grad_(True)
        found = []
        for alpha in indices:
            value = MODULE(at[None]).sum()
            for axis in (axis for axis, order in enumerate(alpha) for _ in range(order)):
                value = torch.autograd.grad(value, at, create_graph=True)[0][axis]
            found.append(value)
        values.append([value.item() for value in found])
        parts = torch.autograd.grad(torch.stack(found) @ column, list(MODULE.parameters()))
        rows.append(torch.cat([part.ravel() for part in parts]).numpy())
    np.testing.assert_allclose(network.derivatives(POINTS, indices), np.transpose(values), rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(network.jacobian(POINTS, indices, table), rows, rtol=1e-10, atol=1e-10)
    assert network.size == len(rows[0]) == 26


@pytest.fixture(scope="module")
def both():
    return adapter.network_pile(MODULE, MODEL), ps.network_pile(APPLY, PARAMS, MODEL)


@pytest.mark.slow
def test_scores_are_those_of_the_same_network_in_jax(both):
    for form in ("laplace", "linearised", "tangent"):
        mine, its = (each.at(form=form, eta=0.7, sigma2=0.01) for each in both)
        for part in ("value", "fit", "prior", "complexity", "misfit", "training_loss", "size", "parameters"):
            assert getattr(mine, part) == pytest.approx(getattr(its, part), rel=1e-10, abs=1e-12), (form, part)
        assert mine.residuals == pytest.approx(its.residuals, rel=1e-10)
        assert both[0].at(form=form).value == pytest.approx(both[1].at(form=form).value, rel=1e-8)
    assert both[0].size == 7 + 1 + 9 + 9
    assert both[0].residuals["physics.0"] > 0.1  # or nothing was tested


def test_predictions_are_those_of_the_same_network_in_jax(both):
    mine, its = (each.at(eta=0.7, sigma2=0.01) for each in both)
    for operator, where in ((ps.identity, POINTS), (DT - 3 * DX, STRIP.interior(RULE).points)):
        np.testing.assert_allclose(mine.mean(where, operator), its.mean(where, operator), rtol=1e-10, atol=1e-11)
        np.testing.assert_allclose(mine.std(where, operator), its.std(where, operator), rtol=1e-7)
    np.testing.assert_allclose(mine.covariance(POINTS), its.covariance(POINTS), rtol=1e-7, atol=1e-11)
    block = MODEL.data[1]
    np.testing.assert_allclose(mine.noise_variance(block), its.noise_variance(block), rtol=1e-10)


def test_options_are_passed_on():
    before = {name: 0.5 * value for name, value in PARAMS.items()}
    scales = {name: jnp.full(value.shape, 0.1 + i) for i, (name, value) in enumerate(PARAMS.items())}
    options = {"form": "linearised", "points": ps.networks.ScoringPoints("held out", scaling="model")}

    def prior(**changes):
        return ps.networks.NetworkPrior(2.0, 0.5, **changes)

    its = ps.network_pile(APPLY, PARAMS, MODEL, prior=prior(centre=before, scales=scales), **options)
    state = {name: 0.5 * value for name, value in MODULE.state_dict().items()}  # has a buffer, too
    given = {name: np.asarray(value) if "weight" in name else float(value[0]) for name, value in scales.items()}
    mine = adapter.network_pile(MODULE, MODEL, prior=prior(centre=state, scales=given), **options)
    assert mine.value == pytest.approx(its.value, rel=1e-8)
    for less in ({"centre": state}, {"scales": given}):
        other = adapter.network_pile(MODULE, MODEL, prior=prior(**less), **options)
        assert mine.value != pytest.approx(other.value, rel=1e-6)
    assert (mine.eta, mine.sigma2, mine.form) == (2.0, 0.5, "linearised")
    with pytest.warns(ps.errors.TrainingPointsWarning, match="points='training'"):
        adapter.network_pile(MODULE, SMALL, points="training")
    seeds = [
        adapter.network_pile(MODULE, SMALL, points=ps.networks.ScoringPoints(seed=seed)).misfit for seed in (0, 0, 1)
    ]
    assert seeds[0] == seeds[1] != seeds[2]
    with refused("memory"):
        adapter.network_pile(MODULE, SMALL, points=ps.networks.ScoringPoints(memory=-1.0))


def test_float32_is_promoted_and_the_module_is_left_alone():
    module = Hard(torch.float32)
    module.net[0].weight.requires_grad_(False)
    before = copy.deepcopy(module.state_dict())
    found = adapter.network_pile(module, SMALL)
    assert found.notes[0] == "parameters are float32: promoted to float64"
    assert found.notes[1] == "held fixed, with requires_grad=False: net.0.weight"
    assert found.parameters == 26 - 15
    for name, value in module.state_dict().items():
        assert value.dtype == before[name].dtype
        assert torch.equal(value, before[name])
    assert module.matrix.dtype == torch.float32
    assert all(each.grad is None for each in module.parameters())
    double = copy.deepcopy(module).double()
    double.matrix = module.matrix.double()
    again = adapter.network_pile(double, SMALL)
    assert again.value == pytest.approx(found.value, rel=1e-12)
    assert len(again.notes) == len(found.notes) - 1
    expected = found.mean(POINTS)
    with torch.no_grad():
        for each in module.parameters():
            each.zero_()  # training goes on: the score is of what the module was
    assert np.array_equal(found.mean(POINTS), expected)


def test_chosen_parameters():
    last = adapter.network_pile(MODULE, SMALL, parameters="last layer")
    named = adapter.network_pile(MODULE, SMALL, parameters=["net.2.weight", "net.2.bias"])
    assert (last.parameters, last.value) == (6, named.value)
    whole, part = (
        adapter.TorchNetwork(MODULE, POINTS, parameters=each) for each in ("all", ["net.2.bias", "net.2.weight"])
    )
    rows = [each.jacobian(POINTS, ((0, 1),), np.ones((1, 7))) for each in (whole, part)]
    np.testing.assert_allclose(rows[0][:, -6:], rows[1], rtol=1e-12)
    assert np.array_equal(whole.displacement[-6:], part.displacement)
    for inside in (nn.ReLU(), nn.SiLU()):
        network = adapter.TorchNetwork(plain(inside), POINTS, parameters="last layer")
        assert network.size == 4
    with refused("affine in each of 0.weight, 0.bias, 2.weight, 2.bias alone"):
        adapter.TorchNetwork(plain(nn.Identity()), POINTS, parameters="last layer")
    with refused("no parameter 'net.2.wieght'", "did you mean 'net.2.weight'?"):
        adapter.network_pile(MODULE, SMALL, parameters=["net.2.wieght"])
    for wrong in ("last", [], 3, ["net.2.bias", "net.2.bias"]):
        with refused("parameters: expected"):
            adapter.network_pile(MODULE, SMALL, parameters=wrong)
    frozen = plain()
    frozen[0].bias.requires_grad_(False)
    with refused("'0.bias'", "requires_grad=False"):
        adapter.network_pile(frozen, SMALL, parameters=["0.bias"])


def test_notes_name_parameters_without_effect():
    module = plain()
    module.viscosity = nn.Parameter(torch.tensor(5.0))
    assert any("no row depends on 'viscosity'" in note for note in adapter.network_pile(module, SMALL).notes)


def test_rows_of_high_order_are_computed_in_smaller_chunks():
    """Nested forward derivatives keep gradients of all intermediate values: each order doubles the memory."""
    network = adapter.TorchNetwork(MODULE, POINTS)
    box = ps.Box(t=(0, 1), x=(0, 1))
    dt, dx = ps.partials(box)
    memory = 4e4
    parts = []
    for operator in (ps.identity, dx, dt - dx**2, dx**4):
        block = ps.observe(operator, 0.0, at=np.random.default_rng(0).uniform(size=(400, 2)))
        rows = NetworkRows(network, [predict(network, block, "block")], memory)
        assert rows.chunk * rows.making * 8 * network.size <= memory
        parts.append(rows.chunk)
    assert parts == sorted(parts, reverse=True)
    assert parts[-1] < parts[0] / 8


def test_tensors_that_require_gradients_are_named(as_a_user):
    with refused("residuals", "requires grad"):
        ps.network_pile_from_jacobian(np.eye(2), torch.ones(2, requires_grad=True), params=np.ones(2))


def test_centres_and_scales_are_checked():
    with refused("centre: there is no parameter 'net.2.biass'; did you mean 'net.2.bias'?"):
        adapter.network_pile(MODULE, SMALL, prior=ps.networks.NetworkPrior(centre={"net.2.biass": 0.0}))
    with refused("centre['net.2.bias']", "shape (1,)", "(2,)"):
        adapter.network_pile(MODULE, SMALL, prior=ps.networks.NetworkPrior(centre={"net.2.bias": np.zeros(2)}))
    with refused("scales['net.2.bias']", "NaN"):
        adapter.network_pile(
            MODULE, SMALL, prior=ps.networks.NetworkPrior(scales={"net.2.bias": torch.full((1,), torch.nan)})
        )
    for wrong in (0.0, {"net.2.bias": -1.0}):
        with refused("scales", "positive"):
            adapter.network_pile(MODULE, SMALL, prior=ps.networks.NetworkPrior(scales=wrong))
    with refused("centre", "a mapping by the names"):
        adapter.network_pile(MODULE, SMALL, prior=ps.networks.NetworkPrior(centre=[1.0]))


class Wrapped(nn.Module):
    """A module whose output is changed by a function."""

    def __init__(self, change, module=None):
        super().__init__()
        self.inner = module or plain()
        self.change = change

    def forward(self, x):
        return self.change(self.inner, x)


def differentiated(net, x):
    x = x.requires_grad_(True)
    return torch.autograd.grad(net(x).sum(), x, create_graph=True)[0][:, :1]


class TwoArguments(nn.Module):
    """Coordinates apart, as in many scripts."""

    def __init__(self):
        super().__init__()
        self.inner = plain()

    def forward(self, t, x):
        return self.inner(torch.cat([t, x], 1))


@pytest.mark.parametrize(
    ("module", "parts"),
    [
        (lambda: plain(width=2), ["one number at each point", "shape (1, 2)"]),
        (lambda: plain(nn.Tanh(), nn.Dropout(0.1)), ["2 is a Dropout in training mode", "module.eval()"]),
        (lambda: plain(nn.BatchNorm1d(3)), ["BatchNorm1d in training mode", "module.eval()"]),
        (lambda: Wrapped(lambda net, x: nn.functional.dropout(net(x), 0.5)), ["module.eval()"]),
        (lambda: Wrapped(lambda net, x: net(x.float())), ["float64", "dtype"]),
        (lambda: Wrapped(lambda net, x: net(x).float()), ["it is float32", ".float()"]),
        (lambda: Wrapped(lambda net, x: net(x) if x.sum() > 0 else -net(x)), ["torch.where instead of if"]),
        (lambda: Wrapped(differentiated), ["torch.func.grad"]),
        (lambda: Wrapped(lambda net, x: (net(x), x)), ["returns one tensor", "tuple"]),
        (lambda: Wrapped(lambda net, x: net(x)[0, 3]), ["points of shape (1, 2)", "out of bounds"]),
        (TwoArguments, ["forward must take one tensor"]),
        (lambda: nn.Linear(2, 1, dtype=torch.complex64), ["real parameters", "'weight' is complex64"]),
        (lambda: nn.Sequential(nn.LazyLinear(1)), ["'0.weight' has no shape yet"]),
        (lambda: plain().to("meta"), ["device meta"]),
        (lambda: plain().requires_grad_(False), ["requires_grad=True", "all fixed"]),
        (lambda: nn.Tanh(), ["parameters with requires_grad=True"]),
        (lambda: lambda x: x, ["a torch.nn.Module"]),
        (lambda: Wrapped(each for each in range(3)), ["copy.deepcopy"]),
    ],
)
def test_modules_that_cannot_be_scored(module, parts, as_a_user):
    with refused("module: ", *parts):
        adapter.network_pile(module(), SMALL)


def test_tensors_with_nan_are_named(as_a_user):
    module = plain()
    module[0].weight.data[1, 0] = torch.nan
    module[0].weight.data[2, 1] = torch.inf
    with refused("2 of 6 numbers of the parameter '0.weight' are NaN or infinite"):
        adapter.network_pile(module, SMALL)
    module = Hard()
    module.width[0] = torch.nan
    with refused("1 of 1 numbers of the buffer 'width'"):
        adapter.network_pile(module, SMALL)
    with refused("a ps.Model"):
        adapter.network_pile(plain(), "model")
    with refused("inf", "block 'physics.0'"):
        adapter.network_pile(Wrapped(lambda net, x: net(x) / torch.zeros_like(x[:, :1])), SMALL)


def test_modules_of_other_kinds():
    value = adapter.network_pile(plain(), SMALL).at(eta=1.0, sigma2=1.0).value
    alike = {
        "dropout that does nothing": plain(nn.Tanh(), nn.Dropout(0.0)),
        "dropout in evaluation mode": plain(nn.Tanh(), nn.Dropout(0.5)).eval(),
        "one number": Wrapped(lambda net, x: net(x)[0, 0]),
        "a number of its own": Wrapped(lambda net, x: net(x) + 0 * torch.linspace(0, 1, 1)),
    }
    for name, module in alike.items():
        assert adapter.network_pile(module, SMALL).at(eta=1.0, sigma2=1.0).value == pytest.approx(value), name
    with torch.inference_mode():
        assert adapter.network_pile(plain(), SMALL).at(eta=1.0, sigma2=1.0).value == pytest.approx(value)
    normed = plain(nn.BatchNorm1d(3)).eval()
    assert adapter.TorchNetwork(normed, POINTS).derivatives(POINTS, ((0, 0),))[0] == pytest.approx(
        normed(torch.tensor(POINTS)).detach().numpy()[:, 0]
    )
    shared = nn.Linear(3, 3).double()
    assert adapter.TorchNetwork(plain(shared, nn.Tanh(), shared), POINTS).size == 9 + 12 + 4
    weighted = plain(nn.Tanh())
    weighted[0] = nn.utils.parametrizations.weight_norm(weighted[0])
    network = adapter.TorchNetwork(weighted, POINTS)
    assert network.size == 3 + 3 + 6 + 4
    assert network.jacobian(POINTS, ((0, 1),), np.ones((1, 7))).any(axis=0).sum() == 3 + 3 + 6 + 3  # not the last bias


def test_without_pytorch():
    script = (
        "import sys, pilescore\n"
        "assert 'torch' not in sys.modules\n"
        "sys.modules['torch'] = None\n"
        "try:\n    import pilescore.networks.torch\n"
        "except ModuleNotFoundError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "pilescore.networks.torch needs PyTorch: pip install 'pilescore[torch]'\n"
