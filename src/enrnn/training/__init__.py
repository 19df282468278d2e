"""How it is learned: a run is a configuration; `train` does it, or goes on with it."""

from ._config import Config as Config
from ._config import ModelSettings as ModelSettings
from ._config import OptimizerSettings as OptimizerSettings
from ._config import RunSettings as RunSettings
from ._container import DamagedError as DamagedError
from ._contract import attach as attach
from ._evaluate import evaluate as evaluate
from ._folder import BusyError as BusyError
from ._folder import RunError as RunError
from ._folder import RunFolder as RunFolder
from ._loop import load_model as load_model
from ._loop import resume as resume
from ._loop import train as train
from ._model import Network as Network
from ._optimizers import Adagrad as Adagrad
from ._optimizers import RMSPropTF as RMSPropTF
from ._signals import StoppedError as StoppedError
from ._step import NotFiniteError as NotFiniteError
from ._tensorboard import TensorBoard as TensorBoard
from ._watch import Progress as Progress
from ._watch import Start as Start
from ._watch import Watch as Watch
from ._watch import Watches as Watches
