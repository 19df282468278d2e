"""What is learned: the paper's four tasks and pixel-by-pixel MNIST, each a frozen set of settings whose `load` makes the data."""

from ._task import Batch as Batch
from ._task import Data as Data
from ._task import Features as Features
from ._task import Symbols as Symbols
from ._task import Task as Task
from .adding import Adding as Adding
from .characters import Characters as Characters
from .copying import Copying as Copying
from .pixels import Pixels as Pixels
from .speech import Speech as Speech

TASKS: dict[str, type[Task]] = {task.name: task for task in (Adding, Copying, Speech, Characters, Pixels)}
"""Every task by its name."""
