"""How a recurrent matrix is written: one file a family, each a torch parametrization with the same small contract."""

from ._block_triangular import BlockTriangular as BlockTriangular
from ._cayley import Cayley as Cayley
from ._contract import Matrix as Matrix
from ._eigenvalue_normalized import EigenvalueNormalized as EigenvalueNormalized
from ._exponential import Exponential as Exponential
from ._fronts import eigenvalue_normalized as eigenvalue_normalized
from ._fronts import orthogonal as orthogonal
from ._givens import Givens as Givens
from ._givens import UnitaryGivens as UnitaryGivens
from ._householder import Householder as Householder
from ._plainly_normalized import PlainlyNormalized as PlainlyNormalized
from ._renormalized import Renormalized as Renormalized
from ._schur import Schur as Schur
from ._soft_margin import SoftMargin as SoftMargin
from ._spectral_norm import SpectralNorm as SpectralNorm
from ._stiefel import Stiefel as Stiefel
from ._svd import SVD as SVD
from ._unitary_cayley import UnitaryCayley as UnitaryCayley
from ._unitary_product import UnitaryProduct as UnitaryProduct
