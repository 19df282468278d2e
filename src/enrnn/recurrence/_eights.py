"""How a recurrence with a large matrix is laid out on a GPU's tensor cores: the shapes of `eights.cu`."""

import math
from typing import TYPE_CHECKING, NamedTuple

from ..nonlinearities import NONLINEARITIES

if TYPE_CHECKING:
    from ._shapes import Limits

SEQUENCES, WARPS, FREE = 8, 8, 4
"""Of a team, as many columns as a product of the tensor cores has; of a thread block; and of these, those that multiply with the
coupling."""


MOST_TILES, MOST_BLOCKS = 3, 16
"""Rows of a thread block, in sixteens, and the blocks of a cluster."""


class Eights(NamedTuple):
    """The compile-time numbers of `eights.cu`."""

    team: int
    """Thread blocks that carry eight sequences."""
    tiles: int
    """Rows of W that a thread block has, in sixteens."""
    teams: int = 1
    """Of a cluster."""
    other_team: int = 0
    other_tiles: int = 1
    """The same of the recurrence that is followed, if any is."""

    def teams_for(self, sequences: int) -> int:
        return self.teams * math.ceil(sequences / (SEQUENCES * self.teams))

    def clusters(self, sequences: int) -> int:
        return self.teams_for(sequences) // self.teams

    def blocks(self, sequences: int) -> int:
        return self.team * self.teams_for(sequences)

    def block(self, backward: bool) -> int:
        """Threads of a block."""
        return 32 * WARPS

    @property
    def stored(self) -> int:
        """Blocks of the other for which the coupling is in shared memory: where registers have room, those beyond one a warp."""
        return max(self.other_team - (WARPS if self.team <= WARPS else 0), 0)

    @property
    def shared_bytes(self) -> int:
        """The size of the kernel's `Shared`."""
        units, slot = 16 * self.tiles, 64 * ((self.tiles + 1) | 1)
        multiplying = WARPS if self.other_team else min(self.team, WARPS)
        state, sums = 2 * self.team * SEQUENCES * slot, 2 * multiplying * SEQUENCES * (units + 4) * 4
        stored = max(self.stored, 1)
        coupling, other = stored * self.tiles * self.other_tiles * 2 * 32 * 16, max(self.other_team, 1) * letter(self.other_tiles)
        return state + sums + WARPS * units * 4 + (2 * WARPS + 2) * 8 + coupling + 2 * SEQUENCES * other

    @property
    def cycles(self) -> float:
        """A step's cost: 2,400 with 15 blocks and 1,750 with 7 on an H200, and 3,000 where one of these followed the other."""
        return 1200 + 600 * math.ceil(self.team / WARPS) + 80 * self.other_team

    def letters(self, sequences: int, copies: int) -> int:
        """Bytes of so many states as they are sent."""
        return copies * self.blocks(sequences) * SEQUENCES * letter(self.tiles)

    @property
    def packing(self) -> tuple[int, int, int]:
        """Thread blocks that lay out the matrices, their threads, and the floats that these take then."""
        own, coupling = WARPS * math.ceil(self.team / WARPS) * self.tiles**2, self.other_team * self.tiles * self.other_tiles
        words = self.team * (own + coupling) if self.other_team else self.team * own + self.tiles
        warps = math.ceil(self.team / WARPS) + (self.other_team > 0 and self.team <= WARPS) + math.ceil(self.stored / FREE)
        return self.team * WARPS * self.tiles, 32 * warps, words * 2 * 32 * 4 + self.team * WARPS * 16 * self.tiles

    def defines(self, parts: int, backward: bool, lengths: bool, limits: "Limits") -> dict[str, int]:
        """What the compiler has to be told: the same with and without lengths, on any chip."""
        given = {name.upper(): value for name, value in self._asdict().items()}
        return given | {"CLUSTER": self.team * self.teams, "SHARED_BYTES": self.shared_bytes}


def letter(tiles: int) -> int:
    """Bytes of what a block sends of a sequence: all its units, and their scale."""
    return 64 * tiles + 16


def eights_for(n: int, sequences: int, nonlinearity: str, limits: "Limits", other: Eights | None = None) -> Eights | None:
    """The layout for n units, alone or following another; None if there is none, or clusters would have to wait for others.

    Small teams are put two to a cluster, for otherwise each would take a place where a large one could have been."""
    team = math.ceil(n / (16 * MOST_TILES))
    teams = 2 if 2 * team <= MOST_BLOCKS and sequences > SEQUENCES else 1
    layout = Eights(team, MOST_TILES, teams, *((other.team, other.tiles) if other else ()))
    if NONLINEARITIES[nonlinearity].parts > 1 or not 2 <= team <= team * teams <= len(limits.clusters):
        return None
    fits = layout.shared_bytes <= limits.shared and layout.clusters(sequences) <= limits.clusters[team * teams - 1]
    return layout if fits else None
