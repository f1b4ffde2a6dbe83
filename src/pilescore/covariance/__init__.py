"""Covariances of observations: rows cut into tiles, Gram blocks, the covariance as an operator.

Nothing here is public; names imported `as` themselves are for the other packages.
"""

from .gram import Weights as Weights
from .gram import bilinear_gradient as bilinear_gradient
from .gram import block as block
from .gram import covariance as covariance
from .gram import cross as cross
from .gram import entry_tangents as entry_tangents
from .gram import expansion as expansion
from .gram import join as join
from .gram import split as split
from .gram import split_tiles as split_tiles
from .gram import started_ahead as started_ahead
from .gram import symmetric as symmetric
from .gram import tangents as tangents
from .gram import traced_variances as traced_variances
from .gram import variances as variances
from .grid_products import GridCovariance as GridCovariance
from .grid_products import along as along
from .grid_products import axis_matrix as axis_matrix
from .grid_products import kron as kron
from .grid_products import pairwise as pairwise
from .grid_products import use_grid_products as use_grid_products
from .grids import Grid as Grid
from .grids import find_grids as find_grids
from .linear_operator import CoefficientTangent as CoefficientTangent
from .linear_operator import Covariance as Covariance
from .linear_operator import CovarianceTangent as CovarianceTangent
from .linear_operator import KernelCovariance as KernelCovariance
from .linear_operator import KernelTangent as KernelTangent
from .linear_operator import RowSet as RowSet
from .sizes import MAX_VALUE as MAX_VALUE
from .sizes import mean_square as mean_square
from .sizes import operator_size as operator_size
from .sizes import prior_variances as prior_variances
from .sizes import term_variances as term_variances
from .tiles import TILE as TILE
from .tiles import Assembly as Assembly
from .tiles import Indices as Indices
from .tiles import Layout as Layout
from .tiles import Tile as Tile
from .tiles import assembly as assembly
from .tiles import layout as layout
from .tiles import query as query
from .tiles import select_rows as select_rows
from .tiles import single_tile as single_tile
