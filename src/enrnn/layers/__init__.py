"""What a user puts into a model."""

from ._baked import BakedCell as BakedCell
from ._baked import BakedRNN as BakedRNN
from ._cgrnn import CGRNN as CGRNN
from ._clockwork import ClockworkRNN as ClockworkRNN
from ._enrnn import ENRNN as ENRNN
from ._enrnn import ENRNNCell as ENRNNCell
from ._eurnn import EURNN as EURNN
from ._exprnn import EXPRNN as EXPRNN
from ._fsrnn import FSLSTM as FSLSTM
from ._fsrnn import FSRNN as FSRNN
from ._full_capacity_urnn import FullCapacityURNN as FullCapacityURNN
from ._goru import GORU as GORU
from ._hmrnn import HMRNN as HMRNN
from ._irnn import IRNN as IRNN
from ._layer_norm_lstm import LayerNormLSTMCell as LayerNormLSTMCell
from ._networks import Network as Network
from ._networks import build as build
from ._networks import networks as networks
from ._nnrnn import NNRNN as NNRNN
from ._ornn import ORNN as ORNN
from ._orthogonal_rnn import OrthogonalRNN as OrthogonalRNN
from ._scornn import SCORNN as SCORNN
from ._scurnn import SCURNN as SCURNN
from ._spectral_rnn import SpectralRNN as SpectralRNN
from ._urnn import URNN as URNN
from ._vorontsov_rnn import VorontsovRNN as VorontsovRNN
