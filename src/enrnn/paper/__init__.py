"""The paper's experiments: what was published, what to run, and what our runs say to it."""

from ._claims import CLAIMS as CLAIMS
from ._claims import Claim as Claim
from ._collect import collect as collect
from ._found import Found as Found
from ._found import Run as Run
from ._found import read as read
from ._items import ITEMS as ITEMS
from ._items import Item as Item
from ._plan import Plan as Plan
from ._plan import plan as plan
from ._pool import perform as perform
from ._published import TABLE1 as TABLE1
from ._published import TABLE2 as TABLE2
from ._published import TABLE3 as TABLE3
from ._reproduce import reproduce as reproduce
from ._runs import configured as configured
