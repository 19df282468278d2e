"""What a user puts into a model."""

from ._baked import BakedCell as BakedCell
from ._baked import BakedRNN as BakedRNN
from ._enrnn import ENRNN as ENRNN
from ._enrnn import ENRNNCell as ENRNNCell
from ._exprnn import EXPRNN as EXPRNN
from ._irnn import IRNN as IRNN
from ._networks import Network as Network
from ._networks import build as build
from ._networks import networks as networks
from ._nnrnn import NNRNN as NNRNN
from ._ornn import ORNN as ORNN
from ._orthogonal_rnn import OrthogonalRNN as OrthogonalRNN
from ._scornn import SCORNN as SCORNN
from ._spectral_rnn import SpectralRNN as SpectralRNN
from ._vorontsov_rnn import VorontsovRNN as VorontsovRNN
