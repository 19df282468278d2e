"""What a user puts into a model."""

from ._baked import BakedCell as BakedCell
from ._baked import BakedRNN as BakedRNN
from ._enrnn import ENRNN as ENRNN
from ._enrnn import ENRNNCell as ENRNNCell
