"""Domains: quadrature rules, regions and their boundaries, curved shapes and meshes."""

from .quadrature import Chebyshev, ClenshawCurtis, Fejer, GaussLegendre, MonteCarlo, Rule, Sobol, TensorRule
from .quadrature import Factor as Factor
from .regions import Box, Nodes, Region, RegionUnion, Slice, nodes_at
from .shapes import Annulus, Ball, Disk, Sphere, Triangulation

__all__ = [
    "Annulus",
    "Ball",
    "Box",
    "Chebyshev",
    "ClenshawCurtis",
    "Disk",
    "Fejer",
    "GaussLegendre",
    "MonteCarlo",
    "Nodes",
    "Region",
    "RegionUnion",
    "Rule",
    "Slice",
    "Sobol",
    "Sphere",
    "TensorRule",
    "Triangulation",
    "nodes_at",
]
