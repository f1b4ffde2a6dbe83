"""Covariances of observations: rows cut into tiles, Gram blocks, the covariance as an operator."""

from .gram import Weights, bilinear_gradient, covariance, cross, expansion, split, split_tiles, symmetric, variances
from .grid_products import GridCovariance, along, axis_matrix, kron, pairwise, use_grid_products
from .grids import Grid, find_grids
from .linear_operator import CoefficientTangent, Covariance, CovarianceTangent, KernelCovariance, KernelTangent, RowSet
from .tiles import TILE, Assembly, Indices, Layout, Tile, assembly, layout, query, select_rows, single_tile

__all__ = [
    "TILE",
    "Assembly",
    "CoefficientTangent",
    "Covariance",
    "CovarianceTangent",
    "Grid",
    "GridCovariance",
    "Indices",
    "KernelCovariance",
    "KernelTangent",
    "Layout",
    "RowSet",
    "Tile",
    "Weights",
    "along",
    "assembly",
    "axis_matrix",
    "bilinear_gradient",
    "covariance",
    "cross",
    "expansion",
    "find_grids",
    "kron",
    "layout",
    "pairwise",
    "query",
    "select_rows",
    "single_tile",
    "split",
    "split_tiles",
    "symmetric",
    "use_grid_products",
    "variances",
]
