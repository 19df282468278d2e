"""Spectral radius and dominant eigenvectors."""

from ._dense import Dominant as Dominant
from ._dense import derivative_vjp as derivative_vjp
from ._dense import dominant as dominant
