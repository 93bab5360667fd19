"""Which tensors overlap in memory, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wayfare.core.device import address, extent
from wayfare.core.tensor import Tensor
from wayfare.core.write_clock import owner_of

Relations = tuple[tuple[Any, ...], ...]


def overlap(a: Any, b: Any) -> int | None:
    """How many bytes the second array starts after the first, if their extents overlap; else None."""
    first, second = extent(a), extent(b)
    if first[0] >= second[1] or second[0] >= first[1]:
        return None
    return address(b) - address(a)


def relations(tensors: Sequence[Tensor], labels: Sequence[Any] | None = None) -> Relations:
    """Every overlapping pair: (label of the first, of the second, bytes between their starts, are they one object).

    Without `labels`, the positions in the sequence are the labels.
    """
    by_owner: dict[int, list[int]] = {}
    for place, t in enumerate(tensors):
        by_owner.setdefault(id(owner_of(t._array)), []).append(place)
    found = []
    for places in by_owner.values():
        for number, i in enumerate(places):
            for j in places[number + 1 :]:
                a, b = tensors[i], tensors[j]
                apart = overlap(a._array, b._array)
                if apart is not None:
                    here, there = (i, j) if labels is None else (labels[i], labels[j])
                    found.append((here, there, apart, a is b))
    return tuple(found)


def relations_between(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> Relations:
    """Every overlapping pair of one of the tensors (by position) and one of the others (by id)."""
    by_owner: dict[int, list[Tensor]] = {}
    for t in others:
        by_owner.setdefault(id(owner_of(t._array)), []).append(t)
    found = []
    for place, t in enumerate(tensors):
        for other in by_owner.get(id(owner_of(t._array)), ()):
            apart = overlap(t._array, other._array)
            if apart is not None:
                found.append((place, id(other), apart, t is other))
    return tuple(found)
