"""Alignment of two sequences: pairs of equal items in order, as many as can be found with bounded work.

Equal beginnings and ends are paired first, then items that occur once in each sequence. Short parts between them are
compared item by item. In two long parts without such items, the k-th item of a kind is paired with the k-th.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence

# The most comparisons for one part without unique items.
_MOST = 250_000
# How often a part is divided by its unique items.
_DEEPEST = 40

Pairs = list[tuple[int, int]]


def align(a: Sequence[Hashable], b: Sequence[Hashable]) -> Pairs:
    """Pairs (i, j) with a[i] == b[j]; no item is in two of them."""
    numbers: dict[Hashable, int] = {}
    return _align([numbers.setdefault(x, len(numbers)) for x in a], [numbers.setdefault(x, len(numbers)) for x in b])


def _align(a: list[int], b: list[int]) -> Pairs:
    pairs: Pairs = []
    waiting = [(0, len(a), 0, len(b), _DEEPEST)]
    while waiting:
        a0, a1, b0, b1, depth = waiting.pop()
        while a0 < a1 and b0 < b1 and a[a0] == b[b0]:
            pairs.append((a0, b0))
            a0, b0 = a0 + 1, b0 + 1
        while a0 < a1 and b0 < b1 and a[a1 - 1] == b[b1 - 1]:
            a1, b1 = a1 - 1, b1 - 1
            pairs.append((a1, b1))
        if a0 == a1 or b0 == b1:
            continue
        anchors = _anchors(a[a0:a1], b[b0:b1]) if depth else []
        if anchors:
            last_a, last_b = a0, b0
            for i, j in anchors:
                pairs.append((a0 + i, b0 + j))
                waiting.append((last_a, a0 + i, last_b, b0 + j, depth - 1))
                last_a, last_b = a0 + i + 1, b0 + j + 1
            waiting.append((last_a, a1, last_b, b1, depth - 1))
        elif (a1 - a0) * (b1 - b0) <= _MOST:
            pairs += [(a0 + i, b0 + j) for i, j in _longest_common(a[a0:a1], b[b0:b1])]
        else:
            pairs += [(a0 + i, b0 + j) for i, j in _by_rank(a[a0:a1], b[b0:b1])]
    return sorted(pairs)


def _anchors(a: list[int], b: list[int]) -> Pairs:
    """Items that occur once in each, as many as are in the same order in both."""
    once_a, once_b = Counter(a), Counter(b)
    place = {item: j for j, item in enumerate(b) if once_b[item] == 1}
    both = [(i, place[item]) for i, item in enumerate(a) if once_a[item] == 1 and item in place]
    # The longest rising run of the places in b: tops[n] ends the best run of n + 1, each knows the one before it.
    tops: list[int] = []
    ends: list[int] = []
    before: list[int] = []
    for n, (_, j) in enumerate(both):
        at = bisect_left(tops, j)
        before.append(ends[at - 1] if at else -1)
        if at == len(tops):
            tops.append(j)
            ends.append(n)
        else:
            tops[at], ends[at] = j, n
    chosen: Pairs = []
    n = ends[-1] if ends else -1
    while n >= 0:
        chosen.append(both[n])
        n = before[n]
    return chosen[::-1]


def _longest_common(a: list[int], b: list[int]) -> Pairs:
    """As many pairs as there can be, by the table of all beginnings."""
    rows = [[0] * (len(b) + 1)]
    for x in a:
        last, row = rows[-1], [0]
        for j, y in enumerate(b):
            row.append(last[j] + 1 if x == y else max(last[j + 1], row[j]))
        rows.append(row)
    pairs: Pairs = []
    i, j = len(a), len(b)
    while i and j:
        if a[i - 1] == b[j - 1]:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif rows[i - 1][j] >= rows[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return pairs


def _by_rank(a: list[int], b: list[int]) -> Pairs:
    places: dict[int, list[int]] = {}
    for j in range(len(b) - 1, -1, -1):
        places.setdefault(b[j], []).append(j)
    return [(i, places[item].pop()) for i, item in enumerate(a) if places.get(item)]
