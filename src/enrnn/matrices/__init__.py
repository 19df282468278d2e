"""How a recurrent matrix is written: one file a family, each a torch parametrization with the same small contract."""

from ._cayley import Cayley as Cayley
from ._contract import Matrix as Matrix
from ._eigenvalue_normalized import EigenvalueNormalized as EigenvalueNormalized
from ._exponential import Exponential as Exponential
from ._fronts import eigenvalue_normalized as eigenvalue_normalized
from ._fronts import orthogonal as orthogonal
from ._householder import Householder as Householder
from ._renormalized import Renormalized as Renormalized
from ._schur import Schur as Schur
from ._soft_margin import SoftMargin as SoftMargin
from ._spectral_norm import SpectralNorm as SpectralNorm
from ._svd import SVD as SVD
