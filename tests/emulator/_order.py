"""What threads know of each other: who can rely on what another one did.

That a run went well says little, since the next one may take another turn. So whatever is done to memory is written down, and
what the thread knew then: how far all others had come when they last told anybody, directly or through others (a vector clock).
Threads tell each other at barriers, by mbarriers, by releases and acquires, and at the end of kernels. `_races.py` looks for
accesses that did not know of each other.

Three kinds of actors have a time: threads; the copies that a thread asks for by `cp.async`, whose time is the number of the
group; and mbarriers, for the copies and letters that they count, whose time is the phase. A thread's knowledge is a row of these
times, or rather four (`SEEN` and the others). Threads that know the same share a row; what a thread knows of itself is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tests.emulator._memory import Array
from tests.emulator._onlooker import READS, WRITES, Asked, Onlooker
from tests.emulator._ptx import Instruction

if TYPE_CHECKING:
    from tests.emulator._machine import Grid, Progress

WRITE, STRONG, PROXY, LATER = 1, 2, 4, 8
"""What an access is, which is a read else. Strong ones, atomics and the like, do not race with each other; some are made by the
asynchronous proxy; and some later than they were asked for."""

Row = tuple[Array, ...]
SEEN, OVER, PROXIED, FENCED = range(4)
"""The parts of a row. Until when what an actor did is seen; until when it is over, for reads and what is done later, which takes
less; and of what is seen, until when a fence has passed it on to the asynchronous proxy, and to the whole chip."""

END = Instruction(0, "its end", None, False, ("ret",), ())
"""Of a thread block."""

TIME = np.int16
EVER = 2**15 - 1
"""Later than any time."""

SEMANTICS = {"weak", "relaxed", "acquire", "release", "acq_rel", "sc", "volatile"}
ACQUIRES, RELEASES = {"acquire", "acq_rel", "sc"}, {"release", "acq_rel", "sc"}
SCOPES = {"cta": "cta", "cluster": "cluster", "gpu": "gpu", "sys": "gpu", "gl": "gpu"}


class Noted(NamedTuple):
    """Accesses of one instruction."""

    knowledge: Knowledge
    instruction: Instruction
    kind: int
    many: int
    """Bytes, of each."""
    places: Array
    actors: Array
    times: Array
    by: Asked


class Release(NamedTuple):
    """What a thread tells to whoever reads what it wrote."""

    row: int
    scope: str
    grid: Grid
    thread: int


@dataclass
class Bell:
    """An mbarrier."""

    actor: int
    phase: int = 0
    telling: Row | None = None
    """What those know that have arrived in this phase."""
    told: int = 0
    """The row of the phase before."""


class Order:
    """Of kernels that run together: all rows, and what was written down."""

    ROOM = 1 << 28
    """Bytes of rows from which on it is time to look, and to forget some."""

    def __init__(self, look: Callable[[Order], None]) -> None:
        self._look, self.looked = look, 0
        """For races; and how much of what was written down had been looked at then."""
        self._grids: list[Knowledge] = []
        self._bytes = 0
        self.rows: list[Row] = [(np.zeros(0, TIME),) * 4]
        self.warps = [np.zeros(32, np.int32)]
        """By numbers: times of a warp's lanes when they exchanged something."""
        self.noted: list[Noted] = []
        self.bells: dict[int, Bell] = {}
        self.released: dict[int, list[Release]] = {}
        """By place, what whoever wrote there last tells."""
        self.actors = 0
        self._joined: dict[tuple[int, int], int] = {}
        self._left: dict[tuple[int, str], int] = {}

    def begins(self, grid: Knowledge) -> None:
        self._grids.append(grid)

    def end(self) -> None:
        """Give memory back now: grids hold this, and are held by it."""
        self._grids, self.noted, self.rows = [], [], []

    def look(self) -> None:
        self._look(self)
        self.looked = len(self.noted)

    def tidy(self) -> None:
        """If there are too many rows, forget those that nobody will learn: of accesses that have been looked at, later ones need
        to know no more than when they were."""
        if self._bytes > self.ROOM:
            self.look()
            left = {0, *self._left.values(), *(bell.told for bell in self.bells.values())}
            left.update(each.row for said in self.released.values() for each in said)
            for grid in self._grids:
                left |= grid.rows_left()
            self.rows = [row if number in left else self.rows[0] for number, row in enumerate(self.rows)]
            self._bytes, self._joined = 0, {}

    def new_actors(self, many: int) -> int:
        first = -(-self.actors // 32) * 32 if many > 1 else self.actors  # so that warps can be told from their numbers
        self.actors = first + many
        return first

    def new_row(self, row: Row) -> int:
        self.rows.append(row)
        self._bytes += sum({id(part): part.nbytes for part in row}.values())
        return len(self.rows) - 1

    def part(self, known: Array) -> Array:
        """As long as they are now, to be changed."""
        return np.concatenate((known, np.zeros(self.actors - len(known), TIME)))

    def union(self, rows: Iterable[Row]) -> Row:
        """What any of them knows."""
        return tuple(self._latest(parts) for parts in zip(*rows, strict=True))

    def _latest(self, parts: tuple[Array, ...]) -> Array:
        different = list({id(each): each for each in parts if len(each)}.values())
        if len(different) < 2:
            return different[0] if different else parts[0]
        found = self.part(different[0])
        for each in different[1:]:
            np.maximum(found[: len(each)], each, out=found[: len(each)])
        return found

    def join(self, one: int, other: int) -> int:
        if one == other or other == 0:
            return one
        if (one, other) not in self._joined:
            self._joined[one, other] = self.new_row(self.union((self.rows[one], self.rows[other])))
        return self._joined[one, other]

    def leave(self, progress: Progress, how: str, row: Row) -> None:
        """What is known once a kernel is done, or lets others begin."""
        key = id(progress), how
        self._left[key] = self.join(self.new_row(row), self._left.get(key, 0))

    def known_of(self, progress: Progress, how: str) -> int:
        """Of what ran before all this, nothing has to be."""
        return self._left.get((id(progress), how), 0)


class Knowledge(Onlooker):
    """Of the threads of a grid."""

    def __init__(self, order: Order, grid: Grid) -> None:
        self.order, self.grid = order, grid
        self.first = self.copies = order.new_actors(grid.threads)
        if any(each.opcode[:2] == ("cp", "async") and "bulk" not in each.opcode for each in grid.program.kernel.instructions):
            self.copies = order.new_actors(grid.threads)
        begin = 0
        for progress, how in grid.launch.after:
            begin = order.join(begin, order.known_of(progress, how))
        order.begins(self)
        self._rows, self._lanes = np.full(grid.threads, begin), np.zeros(grid.threads, np.int64)
        self._clocks, self._groups = np.ones(grid.threads, np.int32), np.zeros(grid.threads, np.int32)
        self._has_read = np.zeros(grid.threads, bool)
        """Since it last exchanged anything with other lanes."""
        self._bells: list[Bell] = []
        self._fenced: dict[int, dict[str, Release]] = {}
        """What a thread knew at its last fence of each scope."""
        self._heard: dict[int, list[Release]] = {}
        """What it was told by what it has read, and knows from its next fence on."""
        self._telling: dict[int, Row] = {}
        """What those know of a cluster that have arrived."""
        self._told: dict[int, int] = {}
        self._sent: list[tuple[Array, int]] = []
        """Where something was done to the shared memory of perhaps another block, and to how many bytes."""
        self._left_with = np.zeros(grid.blocks, np.int64)
        """The row of all that a block's threads knew when it ended."""

    def rows_left(self) -> set[int]:
        """That somebody knows, or may learn."""
        releases = [each for said in self._fenced.values() for each in said.values()]
        releases += [each for heard in self._heard.values() for each in heard]
        arrays = [self._rows, self._left_with, *(each.rows for each in self.grid.asynchronous.asked())]
        return {each.row for each in releases} | set(self._told.values()) | set(np.concatenate(arrays).tolist())

    # Telling and learning.

    def asked(self, threads: Array) -> Asked:
        found = self._known(threads)
        self._clocks[threads] += 1
        assert len(threads) == 0 or self._clocks[threads].max() < EVER, "times are too short for so long a run"
        return found

    def _known(self, threads: Array) -> Asked:
        return Asked(threads, *(each[threads] for each in (self._clocks, self._groups, self._rows, self._lanes)))

    def _together(self, known: Asked, *more: Row) -> Row:
        """What some threads know together, and of what each knows of itself that it is over."""
        row = self.order.union([*(self.order.rows[each] for each in np.unique(known.rows).tolist()), *more])
        over = self._with_themselves(row[OVER], known)
        for lanes in np.unique(known.lanes).tolist():
            for warp in np.unique(known.threads[known.lanes == lanes] // 32).tolist() if lanes else []:
                here = slice(self.first + 32 * warp, self.first + 32 * (warp + 1))
                over[here] = np.maximum(over[here], self.order.warps[lanes])
        return _changed(row, over=over)

    def _with_themselves(self, times: Array, known: Asked) -> Array:
        found = self.order.part(times)
        for first, own in ((self.copies, known.groups), (self.first, known.clocks)):
            found[first + known.threads] = np.maximum(found[first + known.threads], own)
        return found

    def _tell(self, threads: Array, *more: Row) -> Row:
        known = self.asked(threads)
        row = self._together(known, *more)
        return _changed(row, seen=self._with_themselves(row[SEEN], known))

    def _learn(self, threads: Array, row: int) -> None:
        for known in np.unique(self._rows[threads]).tolist():
            self._rows[threads[self._rows[threads] == known]] = self.order.join(known, row)

    # Barriers, and what lanes do together.

    def met(self, threads: Array, groups: Array) -> None:
        for group in np.unique(groups):
            these = threads[groups == group]
            self._rows[these] = self.order.new_row(self._tell(these))

    def exchanged(self, threads: Array) -> None:
        """What a lane gives to others it has read before: so its reads are over."""
        warps = threads // 32
        for warp in np.unique(warps[self._has_read[threads]]).tolist():
            these = threads[warps == warp]
            clocks = np.where(np.isin(np.arange(32 * warp, 32 * (warp + 1)), these), self._clocks[32 * warp : 32 * (warp + 1)], 0)
            for before in np.unique(self._lanes[these]).tolist():
                clocks = np.maximum(clocks, self.order.warps[before])
            self.order.warps.append(clocks)
            self._lanes[these] = len(self.order.warps) - 1
            self._clocks[these] += 1
            self._has_read[these] = False

    def arrived(self, threads: Array) -> None:
        for cluster in np.unique(self.grid.cluster[threads]).tolist():
            before = [self._telling[cluster]] if cluster in self._telling else []
            self._telling[cluster] = self._tell(threads[self.grid.cluster[threads] == cluster], *before)

    def all_arrived(self, cluster: int) -> None:
        self._told[cluster] = self.order.new_row(self._telling.pop(cluster))

    def went_on(self, threads: Array) -> None:
        for cluster in np.unique(self.grid.cluster[threads]).tolist():
            self._learn(threads[self.grid.cluster[threads] == cluster], self._told[cluster])

    # mbarriers. To use one is an access to where it is, so that it must have been made before.

    def opened(self, instruction: Instruction, thread: int, bell: int) -> None:
        self.order.bells[bell] = Bell(self.order.new_actors(1))
        self._bells.append(self.order.bells[bell])
        self._note(instruction, WRITE, 8, np.array([bell]), np.array([thread]))

    def rang(self, instruction: Instruction, thread: int, bell: int) -> None:
        threads = np.array([thread])
        self._note(instruction, STRONG, 8, np.array([bell]), threads)
        self._ring(bell, self._tell(threads))

    def _ring(self, bell: int, row: Row) -> None:
        rung = self.order.bells[bell]
        rung.telling = row if rung.telling is None else self.order.union((rung.telling, row))

    def rung_out(self, bell: int) -> None:
        rung = self.order.bells[bell]
        rung.phase += 1
        row = rung.telling or self.order.rows[0]
        seen, over = (self.order.part(row[part]) for part in (SEEN, OVER))
        seen[rung.actor] = over[rung.actor] = rung.phase
        rung.told, rung.telling = self.order.new_row(_changed(row, seen=seen, over=over)), None

    def heard(self, instruction: Instruction, threads: Array, bells: Array) -> None:
        self._note(instruction, STRONG, 8, bells, threads)
        for bell in np.unique(bells).tolist():
            self._learn(threads[bells == bell], self.order.bells[bell].told)

    # Copies and letters.

    def copied(self, instruction: Instruction, how: str, asked: Asked, places: Array, many: int, groups: Array) -> None:
        self._write_down(instruction, LATER | (how == WRITES), many, places, self.copies + asked.threads, groups + 1, asked)

    def waited(self, threads: Array, groups: Array) -> None:
        self._groups[threads] = np.maximum(self._groups[threads], groups)

    def carried(self, instruction: Instruction, how: str, asked: Asked, places: Array, many: int, bells: Array) -> None:
        kind = LATER | (how == WRITES) | (PROXY if "bulk" in instruction.opcode else 0)
        self._sent.append((places, many))
        self._write_down(instruction, kind, many, places, *self._phases(bells), asked)

    def counted(self, instruction: Instruction, asked: Asked, bells: Array) -> None:
        """Whoever hears of it knows of those that asked what was over then; and if the proxy has read it, what that saw."""
        self._write_down(instruction, LATER | STRONG, 8, bells, *self._phases(bells), asked)
        self._sent.append((bells, 8))
        for bell in np.unique(bells).tolist():
            row = self._together(asked.some(bells == bell))
            passed = np.minimum(row[SEEN], row[PROXIED]) if "bulk" in instruction.opcode and len(row[PROXIED]) else row[SEEN][:0]
            self._ring(bell, _changed(row, seen=passed))

    def _phases(self, bells: Array) -> tuple[Array, Array]:
        rung = [self.order.bells[each] for each in bells.tolist()]
        return np.array([each.actor for each in rung]), np.array([each.phase + 1 for each in rung])

    # Reads and writes.

    def accessed(self, instruction: Instruction, how: str, threads: Array, places: Array, many: int) -> None:
        self.order.tidy()
        semantics, scope = _semantics(instruction)
        self._note(instruction, (0 if how == READS else WRITE) | (0 if semantics == "weak" else STRONG), many, places, threads)
        if how != WRITES:
            self._has_read[threads] = True
        if "shared::cluster" in instruction.opcode:
            self._sent.append((places, many))
        if how == READS and semantics != "weak":
            self._hear(threads, places, scope, semantics in ACQUIRES)
        if how == WRITES:
            self._say(threads, places, scope, semantics)

    def changed(self, instruction: Instruction, thread: Array, place: Array) -> None:
        semantics, scope = _semantics(instruction)
        self._hear(thread, place, scope, semantics in ACQUIRES)
        before = self.order.released.get(int(place[0]), [])
        self._say(thread, place, scope, semantics, before)

    def _hear(self, threads: Array, places: Array, scope: str, acquires: bool) -> None:
        if not self.order.released:
            return
        for thread, place in zip(threads.tolist(), places.tolist(), strict=True):
            heard = [each for each in self.order.released.get(place, []) if self._within(thread, scope, each)]
            if acquires:
                self._learn_of(thread, heard)
            elif heard:
                self._heard.setdefault(thread, []).extend(heard)

    def _learn_of(self, thread: int, releases: list[Release]) -> None:
        for each in releases:
            self._learn(np.array([thread]), each.row)

    def _within(self, thread: int, scope: str, release: Release) -> bool:
        """Whether each is in the scope of the other."""
        for each in {scope, release.scope} - {"gpu"}:
            part = self.grid.block if each == "cta" else self.grid.cluster
            if self.grid is not release.grid or part[thread] != part[release.thread]:
                return False
        return True

    def _say(self, threads: Array, places: Array, scope: str, semantics: str, before: Iterable[Release] = ()) -> None:
        """By what they write there; where an atomic has changed it, what was said before is still said."""
        if not self.order.released and not self._fenced and semantics not in RELEASES:
            return
        for thread, place in zip(threads.tolist(), places.tolist(), strict=True):
            said = list(before)
            if semantics in RELEASES:
                said.append(Release(self.order.new_row(self._tell(np.array([thread]))), scope, self.grid, thread))
            elif semantics != "weak" and thread in self._fenced:
                said += self._fenced[thread].values()
            self.order.released.pop(place, None)
            if said:
                self.order.released[place] = said

    def fenced(self, instruction: Instruction, threads: Array) -> None:
        """For whom `fence.mbarrier_init` is, hears of it at a barrier, too."""
        opcode = instruction.opcode
        if "proxy" in opcode:
            self._fence(threads, "proxied", PROXIED)
        elif "mbarrier_init" not in opcode:
            scope = next(SCOPES[each] for each in opcode if each in SCOPES)
            for thread in threads.tolist():
                self._learn_of(thread, self._heard.pop(thread, []))
                row = self.order.new_row(self._tell(np.array([thread])))
                self._fenced.setdefault(thread, {})[scope] = Release(row, scope, self.grid, thread)
            if scope == "gpu":
                self._fence(threads, "fenced", FENCED)

    def _fence(self, threads: Array, name: str, part: int) -> None:
        for known in np.unique(self._rows[threads]).tolist():
            these, row = threads[self._rows[threads] == known], self.order.rows[known]
            passed = self._with_themselves(self.order.union((row, (row[SEEN],) * 4))[part], self.asked(these))
            self._rows[these] = self.order.new_row(_changed(row, **{name: passed}))

    # Blocks and kernels.

    def left(self, block: int) -> None:
        threads = self.grid.ids[self.grid.block == block]
        self._left_with[block] = self.order.new_row(self._tell(threads))

    def waited_for_the_one_before(self, threads: Array) -> None:
        if self.grid.launch.before is not None:
            self._learn(threads, self.order.known_of(self.grid.launch.before, "done"))

    def let(self, threads: Array) -> None:
        """Whoever begins because of it can rely on what was passed on to the whole chip."""
        for known in np.unique(self._rows[threads]).tolist():
            row = self.order.rows[known]
            length = min(len(row[SEEN]), len(row[FENCED]))
            passed = np.minimum(row[SEEN][:length], row[FENCED][:length])
            self.order.leave(self.grid.launch.progress, "lets", (passed,) * 4)

    def ended(self) -> None:
        self._leave_shared_memory()
        row = self.order.union(self.order.rows[each] for each in np.unique(self._rows).tolist())
        known = self.order.part(row[SEEN])
        for first in (self.first, self.copies):
            known[first : first + self.grid.threads] = EVER
        known[[bell.actor for bell in self._bells]] = EVER
        self.order.leave(self.grid.launch.progress, "done", (known,) * 4)

    def _leave_shared_memory(self) -> None:
        """As if a block that ends wrote to all that others have used of its shared memory."""
        shared = self.grid.shared
        for many in {many for _, many in self._sent}:
            places = np.unique(np.concatenate([each for each, as_many in self._sent if as_many == many]))
            places = places[places >= shared.first]
            blocks = (places - shared.first) // shared.stride
            by = self._known(blocks * self.grid.room)._replace(rows=self._left_with[blocks])
            self._write_down(END, WRITE, many, places, self.first + by.threads, by.clocks, by)

    # What is written down.

    def _note(self, instruction: Instruction, kind: int, many: int, places: Array, threads: Array) -> None:
        known = self._known(threads)
        self._write_down(instruction, kind, many, places, self.first + threads, known.clocks, known)

    def _write_down(
        self, instruction: Instruction, kind: int, many: int, places: Array, actors: Array, times: Array, by: Asked
    ) -> None:
        self.order.noted.append(Noted(self, instruction, kind, many, places, actors, times, by))


def _changed(row: Row, **parts: Array) -> Row:
    return tuple(parts.get(name, part) for name, part in zip(("seen", "over", "proxied", "fenced"), row, strict=True))


def _semantics(instruction: Instruction) -> tuple[str, str]:
    """Of a read or write, and its scope; if it says nothing, as PTX has it."""
    opcode = instruction.opcode
    semantics = next((each for each in opcode if each in SEMANTICS), "relaxed" if opcode[0] == "atom" else "weak")
    return semantics, next((SCOPES[each] for each in opcode if each in SCOPES), "gpu")
