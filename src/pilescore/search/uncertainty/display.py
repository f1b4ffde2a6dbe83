"""The distribution of hyperparameters as a table with small pictures, for notebooks."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

WIDTH, HEIGHT = 150.0, 28.0
"""The size of a picture, in pixels."""

COUNT = 80
"""The number of points of a curve."""


@dataclasses.dataclass(frozen=True, eq=False)
class Marginal:
    """The distribution of one hyperparameter beside its prior, as curves over a common axis."""

    name: str
    quantiles: tuple[float, float, float]
    """The ends of the 95% interval, and the median between them."""
    density: Float[np.ndarray, " n"]
    prior: Float[np.ndarray, " n"]
    prior_text: str


def smoothed_density(
    u: Float[np.ndarray, " n"], weights: Float[np.ndarray, " n"], at: Float[np.ndarray, " k"]
) -> Float[np.ndarray, " k"]:
    """Return the density of weighted numbers at points, by normal kernels of Silverman's width."""
    spread = float(np.sqrt(weights @ (u - weights @ u) ** 2)) or 1.0
    size = 1.0 / float(weights @ weights)
    width = spread * size**-0.2
    near = np.exp(-0.5 * ((at[:, None] - u) / width) ** 2)
    return np.asarray(near @ weights / (width * np.sqrt(2.0 * np.pi)))


def marginals_html(summary: str, marginals: Sequence[Marginal], notes: Sequence[str]) -> str:
    """Return a table with one row for each hyperparameter: median, interval, density and prior.

    Parameters
    ----------
    summary
        The caption.
    marginals
        The rows.
    notes
        Sentences below the table.
    """
    style = "text-align: left; white-space: nowrap; padding: 2px 12px 2px 0"
    head = "".join(
        f'<th style="{style}">{text}</th>' for text in ("hyperparameter", "median", "95% interval", "density", "prior")
    )
    rows = []
    for each in marginals:
        low, middle, high = each.quantiles
        cells = (html.escape(each.name), f"{middle:.4g}", f"{low:.4g} to {high:.4g}", _picture(each))
        texts = "".join(f'<td style="{style}">{cell}</td>' for cell in (*cells, html.escape(each.prior_text)))
        rows.append(f"<tr>{texts}</tr>")
    below = "".join(f"<p>{html.escape(text)}</p>" for text in notes)
    caption = f"<p><strong>Distribution of hyperparameters</strong>: {html.escape(summary)}</p>"
    return f"<div>{caption}<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>{below}</div>"


def _picture(marginal: Marginal) -> str:
    """Return the density as a filled curve with the prior as a dashed one."""
    top = float(max(marginal.density.max(), marginal.prior.max()))
    density, prior = (_path(curve / top) for curve in (marginal.density, marginal.prior))
    return (
        f'<svg width="{WIDTH:g}" height="{HEIGHT:g}" role="img" aria-label="density of {html.escape(marginal.name)}">'
        f'<path d="{density} L{WIDTH:g},{HEIGHT:g} L0,{HEIGHT:g} Z" fill="#0072b2" fill-opacity="0.35" '
        f'stroke="#0072b2"/><path d="{prior}" fill="none" stroke="#888888" stroke-dasharray="3,3"/></svg>'
    )


def _path(heights: Float[np.ndarray, " n"]) -> str:
    x = np.linspace(0.0, WIDTH, len(heights))
    points = (f"{a:.1f},{HEIGHT - (HEIGHT - 2.0) * b:.1f}" for a, b in zip(x, heights, strict=True))
    return "M" + " L".join(points)
