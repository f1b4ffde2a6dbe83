"""The last layer of a network of any framework: the parameters in which its output is affine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from .errors import InputError

DIRECTIONS = 3
"""Random directions along which each array of parameters is moved."""

STRAIGHT = 1e-9
"""Second differences up to this part of the values are rounding."""


def affine_arrays(
    evaluate: Callable[[list[np.ndarray]], Float[np.ndarray, " n"]], arrays: Sequence[np.ndarray], names: Sequence[str]
) -> list[int]:
    """Return the numbers of those arrays of parameters in which the output of a network is affine.

    Each is moved by steps of its own size, so that the kinks of piecewise linear activations are met.

    Parameters
    ----------
    evaluate
        From arrays of parameters to the output at a few points.
    arrays
        The trained parameters.
    names
        What to call them in an error.
    """
    rng = np.random.default_rng(0)
    here = evaluate(list(arrays))
    sizes = [float(np.sqrt(np.mean(array**2))) or 1.0 if array.size else 1.0 for array in arrays]

    def straight(which: list[int]) -> tuple[bool, bool]:
        """Whether the output is affine in these arrays, and whether it depends on them at all."""
        moves = False
        for _ in range(DIRECTIONS):
            steps = {i: sizes[i] * rng.standard_normal(arrays[i].shape) for i in which}
            ahead, behind = (
                evaluate([np.asarray(a + sign * steps[i]) if i in steps else a for i, a in enumerate(arrays)])
                for sign in (1.0, -1.0)
            )
            moves |= bool(np.any(ahead != behind))
            bend = np.abs(ahead - 2 * here + behind)
            if np.any(bend > STRAIGHT * (np.abs(ahead) + 2 * np.abs(here) + np.abs(behind))):
                return False, True
        return True, moves

    found = [i for i in range(len(arrays)) if straight([i]) == (True, True)]
    if not found:
        raise InputError(
            "parameters: the network has no last layer: its output is not affine in any of its arrays of parameters "
            f"({', '.join(names)}). Pick those that count"
        )
    if not straight(found)[0]:
        raise InputError(
            f"parameters: which are the last layer is not clear: the output is affine in each of "
            f"{', '.join(names[i] for i in found)} by itself, but not in all of them together. Pick those that count"
        )
    return found
