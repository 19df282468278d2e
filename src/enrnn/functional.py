"""The stateless pieces: recurrences and nonlinearities as functions."""

from .nonlinearities import modrelu as modrelu
from .recurrence import long_short_recurrence as long_short_recurrence
from .recurrence import recurrence as recurrence
