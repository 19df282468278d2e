"""How a recurrent matrix is written: one file a family, each a torch parametrization with the same small contract."""

from ._cayley import Cayley as Cayley
from ._contract import Matrix as Matrix
from ._eigenvalue_normalized import EigenvalueNormalized as EigenvalueNormalized
from ._fronts import eigenvalue_normalized as eigenvalue_normalized
from ._fronts import orthogonal as orthogonal
