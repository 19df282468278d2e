"""One-line fronts: put a constraint on a weight of any module."""

from typing import TypeVar

from torch import nn
from torch.nn.utils import parametrize

from ._cayley import Cayley
from ._contract import Matrix
from ._eigenvalue_normalized import EigenvalueNormalized

M = TypeVar("M", bound=nn.Module)


def orthogonal(module: M, name: str = "weight", *, negative_ones: int | None = None) -> M:
    """Keep the square weight `name` of `module` orthogonal (scaled Cayley transform); it starts at the orthogonal matrix
    nearest to its present value. Returns the module.

        >>> linear = enrnn.orthogonal(torch.nn.Linear(8, 8), negative_ones=2)
    """
    return _constrain(module, name, Cayley(negative_ones=negative_ones))


def eigenvalue_normalized(
    module: M, name: str = "weight", *, epsilon: float = 0.0, normalizing: bool = False, solver: str = "auto"
) -> M:
    """Divide the square weight `name` of `module` by its spectral radius, from the first moment that exceeds 1 (or from
    the start with `normalizing=True`). Returns the module.

        >>> linear = enrnn.eigenvalue_normalized(torch.nn.Linear(8, 8), normalizing=True)
    """
    return _constrain(module, name, EigenvalueNormalized(epsilon, normalizing=normalizing, solver=solver))


def _constrain(module: M, name: str, matrix: Matrix) -> M:
    if not hasattr(module, name):
        raise ValueError(f"{type(module).__name__} has no weight called {name!r}")
    parametrize.register_parametrization(module, name, matrix.to(getattr(module, name).device))
    return module
