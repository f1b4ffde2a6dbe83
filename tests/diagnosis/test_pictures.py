"""Pictures of findings."""

import base64
import re

import matplotlib.figure
import numpy as np
import pytest
import scipy.stats

import pilescore as ps
from pilescore.diagnosis.findings import Finding
from pilescore.diagnosis.pictures import svg


def finding(**details):
    return Finding("made_up", "fired", "warning", 7.0, 3.0, False, "the gain, in nats, is", "m.", "a.", details)


def drawn(found):
    return found.plot(matplotlib.figure.Figure(layout="constrained").add_subplot())


def noisy(dimension, change):
    rng = np.random.default_rng(0)
    points = rng.uniform(0, 1, (60, dimension))
    values = np.sin(2 * points.sum(axis=1)) + 0.05 * change(rng, points, rng.standard_normal(60))
    return ps.Model(ps.RBF(1.0), ps.observe(ps.identity, values, at=points), gamma=0.005)


def spiked(rng, points, errors):
    errors[[7, 21]] += 14.0
    return errors


@pytest.mark.parametrize("dimension", [1, 2, 3])
def test_outliers_are_marked_over_space(dimension):
    model = noisy(dimension, spiked)
    found = ps.diagnose(model, checks="outliers")["outliers"]
    axes = drawn(found)
    (marked,) = (line for line in axes.lines if line.get_label() == "outlier")
    points = model.data[0].points[[7, 21]]
    assert {*points[:, 0]} <= {*marked.get_xdata()}
    if dimension > 1:
        assert {*points[:, 1]} <= {*marked.get_ydata()}
        shown = sum(len(line.get_xdata()) for line in axes.lines)
        assert shown == 60  # every datum once
    assert axes.get_xlabel() == "x0"


def test_quantiles_are_those_of_a_normal_distribution():
    sizes = np.random.default_rng(1).standard_normal(50)
    axes = drawn(finding(picture={"kind": "quantiles", "sizes": sizes}))
    x, y = axes.lines[0].get_data()
    wanted = scipy.stats.norm.ppf((np.arange(50) + 0.5) / 50)
    np.testing.assert_allclose(x, wanted)
    np.testing.assert_allclose(y, np.sort(sizes))


def test_other_details_are_drawn():
    axes = drawn(finding(profile={0.5: -3.0, 2.0: 4.0, 4.0: -np.inf}))
    assert axes.lines[0].get_xdata().tolist() == [0.5, 1.0, 2.0]
    assert axes.get_xscale() == "log"
    axes = drawn(finding(gains={"a": 1.0, "b": 5.0, "c": np.nan}))
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "a"]
    assert axes.lines[0].get_xdata().tolist() == [5.0, 1.0]
    axes = drawn(finding(energies=(10.0, 4.0)))
    assert axes.lines[0].get_xdata().tolist() == [-6.0, 0.0]
    axes = drawn(finding(coverage={50: 0.3, 95: 0.6}))
    assert axes.lines[0].get_ydata().tolist() == [30.0, 60.0]
    axes = drawn(finding())
    assert axes.lines[0].get_xdata().tolist() == [7.0, 3.0]
    assert axes.get_xlabel() == "the gain, in nats,"


def test_a_notebook_shows_a_picture_of_each_finding():
    found = ps.diagnose(noisy(2, spiked), checks=["outliers", "miscalibrated", "under_smoothed"], progress=False)
    page = found._repr_html_()
    pictures = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
    assert len(pictures) == len(found) >= 1
    assert base64.b64decode(pictures[0]).startswith(b"<?xml")
    assert svg(found.findings[0].chart) == svg(found.findings[0].chart)  # equal charts give equal bytes


def test_a_plot_without_axes_is_one_of_pyplot():
    matplotlib.use("Agg")
    from matplotlib import pyplot

    axes = finding(gains={"a": 1.0}).plot()
    assert axes.figure in [pyplot.figure(number) for number in pyplot.get_fignums()]
    pyplot.close(axes.figure)
