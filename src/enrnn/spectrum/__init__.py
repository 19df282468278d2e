"""Spectral radius and dominant eigenvectors: dense, and a fast solver that certifies what it returns."""

from ._dense import Dominant as Dominant
from ._dense import accuracy_for as accuracy_for
from ._dense import dominant as dominant
from ._derivatives import radius_gradient as radius_gradient
from ._device import certified as certified
from ._device import how_many_numbers as how_many_numbers
from ._device import numbers_on_device as numbers_on_device
from ._device import probes_on_device as probes_on_device
from ._device import solved_by_kernels as solved_by_kernels
from ._device import unpacked as unpacked
from ._solve import SOLVERS as SOLVERS
from ._solve import solve as solve
from ._solve import working_matrix as working_matrix
from ._spectral_radius import SpectralRadius as SpectralRadius
from ._spectral_radius import spectral_radius as spectral_radius
