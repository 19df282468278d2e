"""How the recurrence is run over a sequence: a readable specification, and faster ways tested against it."""

from ._dispatch import BACKENDS as BACKENDS
from ._dispatch import backend_used as backend_used
from ._dispatch import long_short_recurrence as long_short_recurrence
from ._dispatch import recurrence as recurrence
