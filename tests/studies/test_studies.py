"""The case studies on reduced sizes: their results, their files, and their reports in a browser."""

import dataclasses
import json
import math
import re
import warnings

import hypothesis.strategies as st
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings

import pilescore as ps
from pilescore.diagnosis import digits
from pilescore.storage import Folder
from pilescore.studies import convection, poisson, runner

from ..browser import check_page, hover, open_page
from ..models import numbers

pytestmark = [pytest.mark.study, pytest.mark.slow]

SMALL = {
    "poisson": (poisson.STUDY, poisson.PoissonSettings(seeds=2, values=13, picture=15)),
    "convection": (
        convection.STUDY,
        convection.ConvectionSettings(seeds=1, data=500, side=14, bandwidths=7, angles=61, stretches=5, picture=15),
    ),
}


@pytest.fixture(scope="module", params=SMALL)
def done(request, tmp_path_factory):
    """A finished study: its settings, summary, report and directory."""
    which, sizes = SMALL[request.param]
    directory = tmp_path_factory.mktemp("study") / "out"
    with Folder(directory, runner.stored_settings(which, sizes)).entered() as folder:
        summary, report = runner.run_study(which, sizes, runner.StudyRun(folder, lambda text: None))
    return which, sizes, summary, report, directory


def only(name):
    return pytest.mark.parametrize("done", [name], indirect=True)


def results(directory):
    with xr.open_dataset(directory / "results.nc", engine="scipy") as opened:
        return opened.load()


def test_all_checks_hold(done):
    assert len(done[2]["checks"]) >= 5
    assert [each["what"] for each in done[2]["checks"] if not each["holds"]] == []


def test_files(done):
    which, sizes, summary, report, directory = done
    names = {figure.name for figure in report.figures}
    assert {path.name for path in directory.iterdir()} == {"report.html", "results.nc", "summary.json", "figures"}
    assert {path.name for path in (directory / "figures").iterdir()} == {
        f"{n}.{k}" for n in names for k in ("png", "pdf")
    }
    on_disk = json.loads((directory / "summary.json").read_text())
    assert on_disk == summary
    assert on_disk["study"] == which.name
    assert {"jax", "numpy", "python"} <= on_disk["versions"].keys()
    assert on_disk["seeds"] == list(range(sizes.seeds))
    assert on_disk["figures"] == [figure.name for figure in report.figures]
    page = (directory / "report.html").read_text()
    assert all(f'id="{name}"' in page for name in names)
    assert all(len(figure.caption) > 40 for figure in report.figures)


def test_every_number_of_the_report_is_in_the_summary(done):
    known = {digits(value) for value in numbers(done[2])} | {f"{value:.5f}" for value in numbers(done[2])}
    known |= {f"{value:.2f}" for value in numbers(done[2])} | {f"{100 * value:.0f}" for value in numbers(done[2])}
    known |= {str(value) for value in numbers(done[2]) if isinstance(value, int)}
    cells = [number for number, _ in done[3].verdicts]
    for section in done[3].sections[:-1]:  # the last repeats the checks
        cells += [cell for table in section.tables for row in table.rows for cell in row]
    stated = re.findall(r"(?<![\w.])−?\d+(?:\.\d+)?(?:·10[⁻⁰-⁹¹²³]+)?", " ".join(cells))
    missing = [number for number in stated if number.lstrip("−") not in {each.lstrip("−-") for each in known}]
    labels = {str(i) for i in range(1, 10)} | {"0"}  # of starts and seeds
    assert len(stated) > 30
    assert [number for number in missing if number not in labels] == []
    texts = [text for section in done[3].sections[:-1] for text in section.paragraphs]
    texts += [figure.caption for figure in done[3].figures]
    given = {"0.1", "0.01", "1.41"}  # of the problem, of starts, of the paper
    said = re.findall(r"\d+\.\d+(?:·10[⁻⁰-⁹¹²³]+)?", " ".join(texts))
    assert len(said) > 8
    assert [number for number in said if number not in known | {each.lstrip("−-") for each in known} | given] == []


@pytest.mark.parametrize("left", [0, 3])
def test_an_interrupt_ends_a_study_even_if_the_sweep_is_complete(left, tmp_path, monkeypatch):
    def swept(*_, **__):
        warnings.warn(f"interrupted: {left} of 9 points are pending", UserWarning, stacklevel=2)

    monkeypatch.setattr(ps, "sweep", swept)
    with Folder(tmp_path / "out", {}).entered() as folder, pytest.raises(KeyboardInterrupt):
        runner.StudyRun(folder, print).sweep("a", None, {})


@only("poisson")
def test_a_finished_study_is_drawn_again_from_its_files(done):
    which, sizes, summary, _, directory = done
    before = {path: path.read_bytes() for path in [directory / "report.html", *(directory / "figures").iterdir()]}
    for path in before:
        path.unlink()

    def compute(*_):
        raise AssertionError("computed again")

    which = dataclasses.replace(which, compute=compute)
    kept = json.loads((directory / "summary.json").read_text())["settings"]
    with Folder(directory, kept, resume=True).entered() as folder:
        again, _ = runner.run_study(which, sizes, runner.StudyRun(folder, lambda text: None))
    assert again == summary
    assert {path: path.read_bytes() for path in before} == before


@only("poisson")
def test_poisson_choices_are_the_lowest_scores_and_their_errors_those_of_the_model(done):
    _, sizes, summary, _, directory = done
    found, fine = results(directory), poisson.SQUARE.interior(ps.GaussLegendre(30))
    assert dict(found["bandwidth_pile"].sizes) == {"bandwidth": 13, "seed": 2}
    judged = summary["sweeps"]["bandwidth"]
    for rule, column in (("PILE", "pile"), ("leave-one-out", "leave_one_out"), ("training data loss", "data_loss")):
        places = found[f"bandwidth_{column}"].values.argmin(axis=0)
        assert judged[rule]["chosen"] == [found["bandwidth"].values[i] for i in places]
        errors = [found["bandwidth_R_phys"].values[i, seed] for seed, i in enumerate(places)]
        assert judged[rule]["R_phys"] == pytest.approx(np.mean(errors))
        best = found["bandwidth_R_phys"].values.min(axis=0).mean()
        assert judged[rule]["R_phys_regret"] == pytest.approx(np.mean(errors) / best)
    first = judged["PILE"]["chosen"][0]
    chosen = poisson.model(first, 0, sizes.side)
    risk = ps.accuracy(chosen, poisson.solution, fine, poisson.LAPLACIAN, operator_truth=poisson.forcing)
    at = {"bandwidth": first, "seed": 0}
    assert float(found["bandwidth_R_data"].sel(at)) == pytest.approx(risk.data.value, rel=1e-10)
    assert float(found["bandwidth_leave_one_out"].sel(at)) == pytest.approx(ps.losses(chosen).leave_one_out, rel=1e-10)
    # The sequence goes on from the choices of each seed.
    second = chosen.replace({"rho": float(found["rho"][3])})
    assert float(found["rho_pile"][3].sel(seed=0)) == pytest.approx(ps.pile(second).value, rel=1e-12)
    joint = {name: summary["joint"]["by_seed"][name][0] for name in ("bandwidth", "gamma", "rho", "eta")}
    best = chosen.replace({"kernel.bandwidth": joint.pop("bandwidth"), **joint})
    assert ps.pile(best).value == pytest.approx(summary["joint"]["by_seed"]["pile"][0], abs=1e-10)
    assert ps.pile(best).value < float(found["gamma_pile"].sel(seed=0).min())


@only("poisson")
def test_training_losses_choose_badly(done):
    judged = done[2]["sweeps"]["bandwidth"]
    assert judged["training physics loss"]["R_phys_regret"] > 100
    assert judged["training data loss"]["R_phys_regret"] > 100


@only("convection")
def test_convection_scores_are_those_of_the_models(done):
    _, sizes, summary, _, directory = done
    found, joint = results(directory), summary["joint"]
    assert dict(found["isotropic_pile"].sizes) == {"noise": 2, "bandwidth": 7, "seed": 1}
    assert dict(found["landscape_equation_value"].sizes) == {"theta": 61, "s": 5}
    family = convection.model(ps.AnisotropicRBF(theta=1.0, s=1.0), 0.1, 0, sizes)
    on = convection.STRIP.interior(ps.GaussLegendre(30))
    for row in (joint["best"], joint["collapsed"]):
        model = family.replace(row["values"])
        assert ps.pile(model).value == pytest.approx(row["pile"], abs=1e-7)
        assert ps.accuracy(model, convection.solution(30.0), on).data.relative_l2 == pytest.approx(row["relative_l2"])
    assert joint["collapsed"]["relative_l2"] > 0.9
    assert joint["collapsed"]["noise_variance"] == pytest.approx(0.49, abs=0.03)
    isotropic = convection.model(ps.RBF(float(found["bandwidth"][2])), 1.0, 0, sizes)
    assert float(found["isotropic_pile"].sel(noise=1.0)[2, 0]) == pytest.approx(ps.pile(isotropic).value, rel=1e-12)
    for each in summary["landscape"].values():
        assert each["change_by_half_turn"] < 1e-10
        assert each["change_by_quarter_turn_and_inverse"] < 1e-10


@only("convection")
def test_words_follow_the_numbers(done):
    which, _, summary, report, directory = done
    assert "no bandwidth works" in report.title
    for change in ({"1": {"relative_l2": 0.4}}, {"0.1": {"works": True}}):
        other = json.loads(json.dumps(summary))
        for noise, values in change.items():
            other["isotropic"][noise] |= values
        other["joint"] |= {"collapsed": None, "collapsed_gap": None}
        other["settings"]["beta"] = 3.0
        changed = which.report(results(directory), other)
        text = " ".join(paragraph for section in changed.sections for paragraph in section.paragraphs)
        assert "no bandwidth works" not in changed.title + text.lower()
        assert "second minimum" not in text
        assert "None was published for β = 3" in text
        assert ("all-zero" in text) == ("1" not in change)
        assert "the lowest PILE of all starts is one of them" in text
    other["joint"]["collapsed_starts"] = 0
    changed = which.report(results(directory), other)
    assert any("None of these" in text for section in changed.sections for text in section.paragraphs)


def test_the_report_in_a_browser(browser, done):
    directory = done[4]
    page = open_page(browser, directory / "report.html", 1200)
    measured = check_page(page)
    assert measured["problems"] == []
    assert measured["figures"] == [figure.name for figure in done[3].figures]
    panels = [panel for figure in done[3].figures for panel in figure.panels]
    sweep = next(i for i, panel in enumerate(panels) if getattr(panel, "right_label", ""))
    (label,) = hover(page, sweep, "PILE")
    assert re.search(r"PILE: −?-?\d", label)
    assert check_page(open_page(browser, directory / "report.html", 390, phone=True))["problems"] == []


@pytest.mark.parametrize("beta", [30.0, -30.0, 2 * math.pi])
def test_generic_starts(beta):
    starts = convection.generic_starts(8, beta)
    assert starts == convection.generic_starts(8, beta)
    assert len({start["kernel.theta"] for start in starts}) == 8
    for start in starts:
        assert convection.apart(start["kernel.theta"], math.atan(beta)) > 0.1
        assert (
            convection.apart(convection.canonical(start["kernel.theta"], start["kernel.s"])[0], math.atan(beta)) > 0.1
        )
        for name, (low, high) in convection.STARTS.items():
            assert low <= start[name] <= high


@given(st.floats(-7, 7), st.floats(0.1, 10), st.floats(-1, 1), st.floats(-1, 1))
@settings(max_examples=30, deadline=None)
def test_canonical_is_the_same_kernel(theta, s, dx, dy):
    angle, stretch = convection.canonical(theta, s)
    assert 0 <= angle < math.pi or angle == pytest.approx(math.pi)
    assert stretch <= 1
    kernels = ps.AnisotropicRBF(theta=theta, s=s), ps.AnisotropicRBF(theta=angle, s=stretch)
    values = [float(kernel((dx, dy), (0.0, 0.0))) for kernel in kernels]
    assert values[0] == pytest.approx(values[1], rel=1e-9, abs=1e-12)
