"""Races: two accesses to one place, one of them a write, of which the later one did not know of the earlier.

That is a mistake even where it did no harm. What is not: accesses that are both strong (atomics, and others that say so), and
lanes of a warp that write the same number to one place in one instruction.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.emulator._machine import EmulationError
from tests.emulator._memory import Array
from tests.emulator._order import END, LATER, OVER, PROXIED, PROXY, SEEN, STRONG, WRITE, Noted, Order


class RaceError(EmulationError):
    """Two accesses that nothing orders."""


def check(order: Order) -> None:
    """There is no race among what was written down, as far as it has not been looked at."""
    trace = _trace(order.noted, order.looked)
    earlier, later = _pairs(trace)
    new = trace.notes[later] >= order.looked
    earlier, later = earlier[new], later[new]
    races = ~_known(order, trace, earlier, later)
    if races.any():
        raise RaceError(_told(order, trace, earlier[races], later[races]))


@dataclass
class Trace:
    """Accesses to what is written at all, word by word: those to one place together, in their order."""

    places: Array
    notes: Array
    """Their numbers in what was written down."""
    kinds: Array
    actors: Array
    times: Array
    threads: Array
    """The actors that did it or asked for it, and what they knew then."""
    clocks: Array
    copies: Array
    groups: Array
    rows: Array
    lanes: Array


def _trace(noted: list[Noted], looked: int) -> Trace:
    """Of places that have to do with what has not been looked at."""
    kept = _kept(noted, looked)
    notes = _joined([np.full(len(which), number, np.int32) for number, which in enumerate(kept)])

    def each(values: Callable[[Noted], Array]) -> Array:
        return _joined([values(note)[which].astype(np.int32) for note, which in zip(noted, kept, strict=True)])

    first = _joined([note.places[which] for note, which in zip(noted, kept, strict=True)])
    many = np.array([note.many for note in noted], np.int64)[notes]
    word = int(np.gcd(np.gcd.reduce(first), np.gcd.reduce(many)))
    words = many // max(word, 1)
    access = np.repeat(np.arange(len(first), dtype=np.int32), words)
    places = first[access] + word * (np.arange(len(access)) - np.repeat(np.cumsum(words) - words, words))
    order = np.argsort(places, kind="stable")
    access = access[order]
    return Trace(
        *(places[order], notes[access], np.array([note.kind for note in noted], np.int32)[notes[access]]),
        *(each(lambda note: note.actors)[access], each(lambda note: note.times)[access]),
        *(each(lambda note: note.knowledge.first + note.by.threads)[access], each(lambda note: note.by.clocks)[access]),
        *(each(lambda note: note.knowledge.copies + note.by.threads)[access], each(lambda note: note.by.groups)[access]),
        *(each(lambda note: note.by.rows)[access], each(lambda note: note.by.lanes)[access]),
    )


PIECE = 16
"""Bytes, of which no access that is smaller has parts of two."""


def _kept(noted: list[Noted], looked: int) -> list[Array]:
    """Of each note the accesses to pieces of memory that somebody writes to, and that somebody has used lately."""
    written = np.unique(_joined([_pieces(note).reshape(-1) for note in noted if note.kind & WRITE]))
    matters = np.intersect1d(written, _joined([_pieces(note).reshape(-1) for note in noted[looked:]]))
    return [np.flatnonzero(_among(_pieces(note), matters).any(1)) for note in noted]


def _pieces(note: Noted) -> Array:
    """The pieces of every access."""
    return note.places[:, None] // PIECE + np.arange(-(-note.many // PIECE))


def _among(values: Array, known: Array) -> Array:
    if not len(known):
        return np.zeros(values.shape, bool)
    found: Array = known[np.minimum(np.searchsorted(known, values), len(known) - 1)] == values
    return found


def _joined(values: list[Array]) -> Array:
    return np.concatenate(values) if values else np.empty(0, np.int64)


def _pairs(trace: Trace) -> tuple[Array, Array]:
    """If these are in order, all are: every access with the last write before it, and a read with the next write. Where there are
    strong writes, which are in no order among themselves, and others, all with all."""
    many, writes, strong = len(trace.places), trace.kinds & WRITE != 0, trace.kinds & STRONG != 0
    if not many:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    index = np.arange(many)
    start = np.flatnonzero(np.concatenate(([True], trace.places[1:] != trace.places[:-1])))
    end = np.append(start[1:], many)
    place = np.repeat(np.arange(len(start)), end - start)
    mixed, weak = (np.bincount(place[which], minlength=len(start)) > 0 for which in (writes & strong, ~strong))
    before = np.concatenate(([-1], np.maximum.accumulate(np.where(writes, index, -1))[:-1]))
    after = np.minimum.accumulate(np.where(writes, index, many)[::-1])[::-1]
    followers = np.flatnonzero((before >= start[place]) & ~mixed[place])
    reads = np.flatnonzero(~writes & (after < end[place]) & ~mixed[place])
    earlier, later = [before[followers], reads], [followers, after[reads]]
    for each in np.flatnonzero(mixed & weak).tolist():
        one, other = start[each] + np.array(np.triu_indices(end[each] - start[each], 1))
        matters = writes[one] | writes[other]
        earlier.append(one[matters])
        later.append(other[matters])
    return np.concatenate(earlier), np.concatenate(later)


def _known(order: Order, trace: Trace, earlier: Array, later: Array) -> Array:
    """Whether the later one knew of the earlier, or need not."""
    kind, by, actors, times = trace.kinds[earlier], trace.kinds[later], trace.actors[earlier], trace.times[earlier]
    itself = (actors == trace.threads[later]) & (times <= trace.clocks[later])
    itself |= (actors == trace.copies[later]) & (times <= trace.groups[later])
    only_over = (kind & WRITE == 0) | (kind & LATER != 0) & (by & WRITE != 0)
    through_proxy = (by & PROXY != 0) & (kind & (WRITE | LATER) == WRITE)
    same = (trace.notes[earlier] == trace.notes[later]) & (trace.threads[earlier] // 32 == trace.threads[later] // 32)
    found = (itself & ~through_proxy) | (kind & by & STRONG != 0) | (same & (kind & by & LATER == 0))
    left, rows = np.flatnonzero(~found), trace.rows[later]
    left = left[np.argsort(rows[left], kind="stable")]
    for these in np.split(left, np.flatnonzero(np.diff(rows[left])) + 1):
        if len(these):
            row = order.rows[int(rows[these[0]])]
            seen, over, proxied = (_reached(row[part], actors[these], times[these]) for part in (SEEN, OVER, PROXIED))
            found[these] = np.where(only_over[these], over, (seen | itself[these]) & (proxied | ~through_proxy[these]))
    left = np.flatnonzero(~found & only_over & (trace.lanes[later] > 0) & (actors // 32 == trace.threads[later] // 32))
    for each in left.tolist():
        found[each] = order.warps[trace.lanes[later[each]]][actors[each] % 32] >= times[each]
    return found


def _reached(known: Array, actors: Array, times: Array) -> Array:
    if not len(known):
        return np.zeros(len(actors), bool)
    return (actors < len(known)) & (known[np.minimum(actors, len(known) - 1)] >= times)


def _told(order: Order, trace: Trace, earlier: Array, later: Array) -> str:
    """Of every two instructions, one such pair."""
    line_of = [each.instruction.line for each in order.noted]
    pairs = [(line_of[one], line_of[other]) for one, other in zip(trace.notes[earlier], trace.notes[later], strict=True)]
    counts, first = collections.Counter(pairs), {pair: i for i, pair in reversed(list(enumerate(pairs)))}
    lines = []
    for pair, i in first.items():
        lines += _named(order, trace, earlier[i]), f"  and {_named(order, trace, later[i])}"
        lines.append(f"  with nothing between them, {counts[pair]} times")
    return "\n".join(lines)


def _named(order: Order, trace: Trace, index: int) -> str:
    note = order.noted[trace.notes[index]]
    grid, thread = note.knowledge.grid, int(trace.threads[index]) - note.knowledge.first
    how, where = "writes" if note.kind & WRITE else "reads", grid.named_place(int(trace.places[index]))
    if note.instruction is END:
        return f"{grid.program.kernel.name}: the end of the block that has {where}"
    line = f"{grid.program.kernel.name}, line {note.instruction.line} of its PTX ({note.instruction.text})"
    return f"{line}: {grid.named(thread)} {how} {where}"
