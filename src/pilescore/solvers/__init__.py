"""Solvers of covariances: LAPACK, low rank, features, grids, tiles on several processes, and an automatic choice.

`__all__` lists the public names; names imported `as` themselves are for the other packages.
"""

from ..model import Solver
from ..model import as_solver as as_solver
from .auto import Auto
from .bases import Basis, FourierBasis, HilbertBasis, RandomFourierBasis, UserBasis
from .distributed import Distributed
from .exact import TIGHTEST as TIGHTEST
from .exact import TOLERANCE as TOLERANCE
from .exact import contradiction as contradiction
from .exact import present_tolerance as present_tolerance
from .exact import traced_tolerances as traced_tolerances
from .exact import with_tolerances as with_tolerances
from .features import Features
from .interface import Bounds, Estimate
from .kronecker import Kronecker
from .lapack import EPS as EPS
from .lapack import LARGEST_THREADED as LARGEST_THREADED
from .lapack import CholeskyFactor as CholeskyFactor
from .lapack import ConditionalFactored as ConditionalFactored
from .lapack import Dense
from .lapack import DenseCotangent as DenseCotangent
from .lapack import DenseFactored as DenseFactored
from .lapack import NotFactorableError as NotFactorableError
from .lapack import cholesky as cholesky
from .lapack import probe as probe
from .lapack import self_product as self_product
from .lapack import symmetric_product as symmetric_product
from .low_rank import LowRank
from .shifts import ShiftedCovariance as ShiftedCovariance
from .shifts import ShiftedScores as ShiftedScores
from .shifts import reduce_shifted as reduce_shifted
from .system import IMPRECISE as IMPRECISE
from .system import IMPRECISE_NATS as IMPRECISE_NATS
from .system import NamedGradient as NamedGradient
from .system import System as System
from .system import estimate_cost
from .system import plain as plain
from .system import solve as solve

__all__ = [
    "Auto",
    "Basis",
    "Bounds",
    "Dense",
    "Distributed",
    "Estimate",
    "Features",
    "FourierBasis",
    "HilbertBasis",
    "Kronecker",
    "LowRank",
    "RandomFourierBasis",
    "Solver",
    "UserBasis",
    "estimate_cost",
]
