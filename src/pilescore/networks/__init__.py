"""The evidence of trained networks, in JAX, in PyTorch or from a Jacobian."""

from .evidence import NetworkPile, network_pile_from_jacobian
from .interface import NetworkPrior
from .jax import network_pile
from .scoring_points import ScoringPoints

__all__ = ["NetworkPile", "NetworkPrior", "ScoringPoints", "network_pile", "network_pile_from_jacobian"]
