"""Recurrent networks with a controlled spectrum, for PyTorch.

The public surface, all of it. Names are resolved when first used, so that `import enrnn` itself is instant.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import functional as functional
    from . import recipes as recipes
    from . import tasks as tasks
    from . import training as training
    from ._citation import citation as citation
    from .layers import CGRNN as CGRNN
    from .layers import ENRNN as ENRNN
    from .layers import EURNN as EURNN
    from .layers import EXPRNN as EXPRNN
    from .layers import FSLSTM as FSLSTM
    from .layers import FSRNN as FSRNN
    from .layers import GORU as GORU
    from .layers import HMRNN as HMRNN
    from .layers import IRNN as IRNN
    from .layers import NNRNN as NNRNN
    from .layers import ORNN as ORNN
    from .layers import SCORNN as SCORNN
    from .layers import SCURNN as SCURNN
    from .layers import URNN as URNN
    from .layers import BakedCell as BakedCell
    from .layers import BakedRNN as BakedRNN
    from .layers import ClockworkRNN as ClockworkRNN
    from .layers import ENRNNCell as ENRNNCell
    from .layers import FullCapacityURNN as FullCapacityURNN
    from .layers import LayerNormLSTMCell as LayerNormLSTMCell
    from .layers import OrthogonalRNN as OrthogonalRNN
    from .layers import SpectralRNN as SpectralRNN
    from .layers import VorontsovRNN as VorontsovRNN
    from .layers import build as build
    from .layers import networks as networks
    from .matrices import SVD as SVD
    from .matrices import BlockTriangular as BlockTriangular
    from .matrices import Cayley as Cayley
    from .matrices import EigenvalueNormalized as EigenvalueNormalized
    from .matrices import Exponential as Exponential
    from .matrices import Givens as Givens
    from .matrices import Householder as Householder
    from .matrices import PlainlyNormalized as PlainlyNormalized
    from .matrices import Renormalized as Renormalized
    from .matrices import Schur as Schur
    from .matrices import SoftMargin as SoftMargin
    from .matrices import SpectralNorm as SpectralNorm
    from .matrices import Stiefel as Stiefel
    from .matrices import UnitaryCayley as UnitaryCayley
    from .matrices import UnitaryGivens as UnitaryGivens
    from .matrices import UnitaryProduct as UnitaryProduct
    from .matrices import eigenvalue_normalized as eigenvalue_normalized
    from .matrices import orthogonal as orthogonal
    from .spectrum import SpectralRadius as SpectralRadius
    from .spectrum import spectral_radius as spectral_radius

__version__ = "0.1.0"

_HOME = {
    "ENRNN": "layers",
    "ENRNNCell": "layers",
    "BakedRNN": "layers",
    "BakedCell": "layers",
    "EXPRNN": "layers",
    "IRNN": "layers",
    "NNRNN": "layers",
    "ORNN": "layers",
    "SCORNN": "layers",
    "SCURNN": "layers",
    "URNN": "layers",
    "FullCapacityURNN": "layers",
    "CGRNN": "layers",
    "EURNN": "layers",
    "GORU": "layers",
    "OrthogonalRNN": "layers",
    "SpectralRNN": "layers",
    "VorontsovRNN": "layers",
    "ClockworkRNN": "layers",
    "HMRNN": "layers",
    "FSRNN": "layers",
    "FSLSTM": "layers",
    "LayerNormLSTMCell": "layers",
    "build": "layers",
    "networks": "layers",
    "BlockTriangular": "matrices",
    "Cayley": "matrices",
    "EigenvalueNormalized": "matrices",
    "SVD": "matrices",
    "Exponential": "matrices",
    "Givens": "matrices",
    "Householder": "matrices",
    "PlainlyNormalized": "matrices",
    "Renormalized": "matrices",
    "Schur": "matrices",
    "SoftMargin": "matrices",
    "SpectralNorm": "matrices",
    "Stiefel": "matrices",
    "UnitaryCayley": "matrices",
    "UnitaryGivens": "matrices",
    "UnitaryProduct": "matrices",
    "orthogonal": "matrices",
    "eigenvalue_normalized": "matrices",
    "spectral_radius": "spectrum",
    "SpectralRadius": "spectrum",
    "functional": "functional",
    "tasks": "tasks",
    "training": "training",
    "recipes": "recipes",
    "citation": "_citation",
}

__all__ = [*_HOME, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f".{_HOME[name]}", __name__)
    value = home if name == _HOME[name] else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
