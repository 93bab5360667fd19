"""Folding repeated parts of a sequence: a loop that ran 37 times is shown once, ×37.

    fold("abcbcbcd") → [One(0), Repeat(1, 2, 3, [One(1), One(2)]), One(7)]
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from typing import Any

# How far ahead the second iteration of a loop is searched, and at how many positions that could be its start.
_LONGEST = 4000
_TRIES = 16


class One:
    """A single item."""

    __slots__ = ("start",)

    def __init__(self, start: int) -> None:
        self.start = start

    @property
    def size(self) -> int:
        """How many items of the sequence this is."""
        return 1


class Repeat:
    """A part that repeats several times in a row; `body` is its first repetition."""

    __slots__ = ("body", "start", "times", "width")

    def __init__(self, start: int, width: int, times: int, body: list[Any]) -> None:
        self.start, self.width, self.times = start, width, times
        self.body = body

    @property
    def size(self) -> int:
        """How many items of the sequence this is."""
        return self.width * self.times


Part = One | Repeat


def fold(keys: Sequence[Hashable]) -> list[Part]:
    """The sequence with its repetitions folded, also nested ones. Items are compared by their keys."""
    numbers: dict[Hashable, int] = {}
    marks = [numbers.setdefault(key, len(numbers)) for key in keys]
    parts: list[Part] = [One(i) for i in range(len(marks))]
    # Short loops before long ones: a loop is more than twice as long as one inside it.
    longest = 1
    while longest < 2 * min(len(parts), _LONGEST):
        folded = _once(parts, marks, longest)
        if len(folded) == len(parts):
            longest *= 2
        else:
            parts = folded
            marks = [numbers.setdefault(_key(part, keys), len(numbers)) for part in parts]
    return parts


def _key(part: Part, keys: Sequence[Hashable]) -> Hashable:
    if isinstance(part, One):
        return keys[part.start]
    return ("repeat", part.times, tuple(_key(inner, keys) for inner in part.body))


def _once(parts: list[Part], marks: list[int], longest: int) -> list[Part]:
    places: dict[int, list[int]] = {}
    for i, mark in enumerate(marks):
        places.setdefault(mark, []).append(i)
    # Length of an iteration → the next position that differs from the one that far ahead; valid until it is passed.
    differs: dict[int, int] = {}
    out: list[Part] = []
    i = 0
    while i < len(marks):
        width, times = _loop_at(i, marks, places[marks[i]], differs, longest)
        if times < 2:
            out.append(parts[i])
            i += 1
            continue
        body = parts[i : i + width]
        out.append(Repeat(body[0].start, sum(part.size for part in body), times, body))
        i += width * times
    return out


def _loop_at(i: int, marks: list[int], alike: list[int], differs: dict[int, int], longest: int) -> tuple[int, int]:
    """(width of a turn, how many) of the loop that begins at a place; the shortest turn that comes twice."""
    first = bisect_right(alike, i)
    for other in alike[first : first + _TRIES]:
        width = other - i
        if width > longest:
            break
        end = differs.get(width, -1)
        if end <= i:
            end = i
            last = len(marks) - width
            while end < last and marks[end] == marks[end + width]:
                end += 1
            differs[width] = end
        times = (end - i) // width + 1
        if times > 1:
            return width, times
    return 0, 1
