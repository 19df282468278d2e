"""How recurrences with large matrices are laid out on a GPU's tensor cores: the shapes of `eights.cu` and `coupling.cu`."""

import math
from typing import TYPE_CHECKING, NamedTuple

from ..nonlinearities import NONLINEARITIES

if TYPE_CHECKING:
    from ._shapes import Limits

SEQUENCES, WARPS = 8, 8
"""Of a team, as many columns as a product of the tensor cores has; and of a thread block."""

TILES, MOST_BLOCKS = 3, 16
"""Rows of a thread block, in sixteens, and the most blocks of a cluster."""

LETTER = 64 * TILES + 16
"""Bytes of what a thread block sends of a sequence: two halves of every unit, and their scale."""

SUMS = SEQUENCES * (16 * TILES + 4) * 4
"""Bytes of what a share of the columns adds to a product."""

RING = 2
"""States, of as many teams as are multiplied together, that a thread block of `coupling.cu` has room for."""


class Packed(NamedTuple):
    """A matrix that is multiplied with letters, as the thread blocks of a team want it that have its rows."""

    team: int
    from_team: int
    """The blocks that the letters come from."""
    shares: int
    """Warps that share out its columns."""

    @property
    def sources(self) -> int:
        """Blocks whose letters a share is multiplied with."""
        return math.ceil(self.from_team / self.shares)

    @property
    def words(self) -> int:
        """Of 16 bytes, a lane's halves of 16 x 16 numbers each."""
        return self.team * self.shares * self.sources * TILES**2 * 2 * 32

    @property
    def floats(self) -> int:
        """Those words, and what 1 stands for in each row."""
        return 4 * self.words + self.team * 16 * TILES

    @property
    def warps(self) -> int:
        """That lay it out, with eight rows and the letters of a block each."""
        return self.team * TILES * 2 * self.shares * self.sources

    @property
    def defines(self) -> dict[str, int]:
        return {name.upper(): value for name, value in self._asdict().items()} | {"TILES": TILES}


class Eights(NamedTuple):
    """The compile-time numbers of `eights.cu`."""

    team: int
    """Thread blocks that carry eight sequences."""
    teams: int = 1
    """Of a cluster."""
    follows: bool = False
    """Whether it gains what another recurrence gives."""

    def teams_for(self, sequences: int) -> int:
        return self.teams * math.ceil(sequences / (SEQUENCES * self.teams))

    @property
    def cluster(self) -> int:
        return self.team * self.teams

    def clusters(self, sequences: int) -> int:
        return self.teams_for(sequences) // self.teams

    def blocks(self, sequences: int) -> int:
        return self.team * self.teams_for(sequences)

    def block(self, backward: bool) -> int:
        """Threads of a block."""
        return 32 * WARPS

    @property
    def shared_bytes(self) -> int:
        """The size of the kernel's `Shared`."""
        slot = 64 * ((TILES + 1) | 1)
        return 2 * self.team * SEQUENCES * slot + 2 * min(self.team, WARPS) * SUMS + 2 * WARPS * 8

    @property
    def cycles(self) -> float:
        """A step's cost: 2,400 with 15 blocks and 1,750 with 7 on an H200."""
        return 1200 + 600 * math.ceil(self.team / WARPS)

    def letters(self, sequences: int, copies: int) -> int:
        """Bytes of so many states as they are sent."""
        return copies * self.blocks(sequences) * SEQUENCES * LETTER

    @property
    def packed(self) -> "Packed":
        """How its matrix is laid out."""
        return Packed(self.team, self.team, WARPS)

    def defines(self, parts: int, backward: bool, lengths: bool, limits: "Limits") -> dict[str, int]:
        """What the compiler has to be told: the same with and without lengths, on any chip."""
        given = self.packed.defines
        own = {"TEAMS": self.teams, "FOLLOWS": int(self.follows), "CLUSTER": self.cluster, "SHARED_BYTES": self.shared_bytes}
        return given | own


class Coupling(NamedTuple):
    """The compile-time numbers of `coupling.cu`."""

    team: int
    """Of the recurrence that gains."""
    from_team: int
    """Of the one that is followed."""
    groups: int
    """Of teams: each has as many thread blocks as a team, and one team or more."""
    at_once: int
    """Teams that a warp multiplies with."""

    @property
    def cluster(self) -> int:
        return self.team * self.groups

    @property
    def shares(self) -> int:
        """Warps that share out the columns: all, or where registers have room half of them, and the others have other teams."""
        return WARPS if self.from_team > WARPS else WARPS // 2

    @property
    def together(self) -> int:
        """Teams that all warps of a block multiply with."""
        return self.at_once * WARPS // self.shares

    @property
    def threads(self) -> int:
        """Of a block."""
        return 32 * WARPS

    def each(self, sequences: int) -> int:
        """Teams of a group."""
        return math.ceil(math.ceil(sequences / SEQUENCES) / self.groups)

    def cycles(self, sequences: int) -> float:
        """A step's cost."""
        return self.each(sequences) * (100 + 500 * math.ceil(self.from_team / WARPS))

    @property
    def shared_bytes(self) -> int:
        """The size of the kernel's `Shared`."""
        ring = RING * self.together * self.from_team * SEQUENCES * LETTER
        return ring + 2 * self.together * min(self.from_team, self.shares) * SUMS + (RING + 2) * 8

    @property
    def packed(self) -> "Packed":
        """How its matrix is laid out."""
        return Packed(self.team, self.from_team, self.shares)

    def gained(self, sequences: int, copies: int) -> int:
        """The floats of so many states of the recurrence that gains."""
        return copies * math.ceil(sequences / SEQUENCES) * SEQUENCES * self.team * 16 * TILES

    @property
    def defines(self) -> dict[str, int]:
        given = self.packed.defines
        return given | {"AT_ONCE": self.at_once, "CLUSTER": self.cluster, "SHARED_BYTES": self.shared_bytes}


def eights_for(n: int, sequences: int, nonlinearity: str, limits: "Limits") -> Eights | None:
    """The layout for n units; None if there is none, or clusters would have to wait for others.

    Small teams are put two to a cluster, for otherwise each would take a place where a large one could have been."""
    team = math.ceil(n / (16 * TILES))
    teams = 2 if 2 * team <= MOST_BLOCKS and sequences > SEQUENCES else 1
    layout = Eights(team, teams)
    if NONLINEARITIES[nonlinearity].parts > 1 or not 2 <= team <= layout.cluster <= len(limits.clusters):
        return None
    fits = layout.shared_bytes <= limits.shared and layout.clusters(sequences) <= limits.clusters[layout.cluster - 1]
    return layout if fits else None


def coupling_for(leads: Eights, follows: Eights, sequences: int, limits: "Limits") -> Coupling:
    """In one cluster, as large as it may be: if the follower has a layout, so has this."""
    teams, most = math.ceil(sequences / SEQUENCES), min(MOST_BLOCKS, len(limits.clusters))
    each = math.ceil(teams / min(teams, most // follows.team))
    layout = Coupling(follows.team, leads.team, math.ceil(teams / each), 1)
    return layout._replace(at_once=min(2, math.ceil(each * layout.shares / WARPS)))
