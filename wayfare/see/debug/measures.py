"""Statistics of many arrays: each is copied when it is seen, and the statistics of all are computed together later.

No array is kept. A small array is copied, which is quick. For a larger one a few hundred elements are copied, and
its extremes and means are computed at once, so that a single NaN is never missed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from wayfare.core.device import BACKENDS, to_host

Array = np.ndarray[Any, np.dtype[Any]]

# Arrays up to this size are copied whole.
COPIED = 8192
# The histogram is made from this many elements, spread evenly over the array.
SAMPLE = 512
# Arrays up to this size are shown whole, and kept until they are asked for.
WHOLE = 64
# From this many elements on, even the extremes are those of a (larger) sample: a pass over all would cost too much.
_HUGE = 1 << 21
# Statistics are computed when this many bytes are pending, for this many elements at a time.
_PENDING = 1 << 27
_AT_ONCE = 1 << 18
_BINS, _FEW_BINS, _FEWEST = 24, 12, 8
# The most elements that are shown; in a run of many thousand values only the first ones show theirs.
_SHOWN = 1 << 20


class Exact(NamedTuple):
    """What is known of a whole array beside its sample."""

    size: int
    low: float
    high: float
    mean: float
    mean_square: float
    nans: int
    infinite: int


class Statistics(NamedTuple):
    """The numbers of one array. Histogram and zeros of a large one are those of a sample of `looked_at` elements."""

    low: float
    high: float
    mean: float
    deviation: float
    nans: int
    infinite: int
    zeros: int
    counts: list[int]
    first: float  # where the histogram begins and ends
    last: float
    looked_at: int | None


class Measures:
    """Statistics of arrays, by the number `take` gave for each."""

    def __init__(self) -> None:
        self.count = 0
        # (number, copy, is it to be shown?)
        self._pending: list[tuple[int, Array, bool]] = []
        self._bytes = 0
        self._exact: dict[int, Exact] = {}
        # Elements of arrays shown whole, row after row, and the corners of larger ones.
        self._whole: dict[int, list[Any]] = {}
        self._corners: dict[int, Array] = {}
        self._room = _SHOWN
        self._numbers: list[tuple[Array, Array, Array, int]] = []
        # Views, and what they are views of.
        self._same: dict[int, int] = {}

    def take(self, array: Array, show: bool) -> int:
        """Copy what is needed of an array, and return its number. With `show`, its elements are kept as well."""
        number = self.count
        self.count = number + 1
        if array.__class__ in BACKENDS:
            array = to_host(array)
        if array.size > COPIED:
            if show and self._room > 0:
                self._corners[number] = _corners(array)
                self._room -= WHOLE
            array, show = self._sample(number, array), False
        else:
            array = array.copy()
        self._pending.append((number, array, show))
        # The array object itself takes memory, too.
        self._bytes += array.nbytes + 200
        if self._bytes > _PENDING:
            self._work_out()
        return number

    def take_view(self, array: Array, source: int, show: bool) -> int:
        """The same for a view of all elements of an array that was taken: the statistics are equal."""
        number = self.count
        self.count = number + 1
        self._same[number] = source
        if show:
            self._corners[number] = _corners(to_host(array))
        return number

    def _sample(self, number: int, array: Array) -> Array:
        """A few elements of a large array. Statistics that need all elements are computed now."""
        size = array.size
        if 0 in array.strides:
            # Stretched by broadcasting: the same few elements again and again.
            array = array[tuple([slice(0, 1) if s == 0 else slice(None) for s in array.strides])]
        flat = array.reshape(-1) if array.flags.c_contiguous else array.T.reshape(-1)
        # An odd step does not stay in one column of a matrix whose width is even.
        sample = flat if flat.size <= SAMPLE else flat[:: flat.size // SAMPLE | 1]
        self._exact[number] = _exact(size, flat)
        return sample.copy()

    def whole(self) -> dict[int, list[Any]]:
        """The elements of the small arrays that were to be shown, row after row, rounded."""
        self._work_out()
        return self._whole

    def corners(self) -> dict[int, Array]:
        """The corners of the larger arrays that were to be shown."""
        self._work_out()
        return self._corners

    def all(self) -> list[Statistics]:
        """The statistics of every array, in the order they were taken."""
        self._work_out()
        found: list[Any] = [None] * self.count
        for numbers, fields, counts, size in self._numbers:
            rows = zip(numbers.tolist(), fields.tolist(), counts.tolist(), strict=True)
            for number, (low, high, mean, deviation, nans, infinite, zeros), bins in rows:
                whole = Statistics(
                    low, high, mean, deviation, int(nans), int(infinite), int(zeros), bins, low, high, None
                )
                exact = self._exact.get(number)
                found[number] = whole if exact is None else _combined(whole, exact, size)
        for number, source in self._same.items():
            found[number] = found[source]
        return found

    def _work_out(self) -> None:
        pending, self._pending, self._bytes = self._pending, [], 0
        by_kind: dict[tuple[int, str], list[tuple[int, Array]]] = {}
        whole = set()
        for number, array, show in pending:
            if show and self._room > 0:
                self._room -= min(array.size, WHOLE)
                if array.size <= WHOLE:
                    whole.add(number)
                else:
                    self._corners[number] = _corners(array)
            if array.size > SAMPLE and number not in self._exact:
                array = self._sample(number, array)
            by_kind.setdefault((array.size, array.dtype.char), []).append((number, array.reshape(-1)))
        for (size, _), members in by_kind.items():
            step = max(1, _AT_ONCE // max(size, 1))
            for start in range(0, len(members), step):
                part = members[start : start + step]
                numbers = [number for number, _ in part]
                rows = np.stack([flat for _, flat in part])
                if size <= WHOLE:
                    elements = zip(numbers, rounded(rows), strict=True)
                    self._whole.update([(number, row) for number, row in elements if number in whole])
                self._numbers.append((np.array(numbers), *_statistics(rows), size))


def _exact(size: int, flat: Array) -> Exact:
    """Extremes and means of a large array. A huge one is sampled, but any NaN or infinity is found."""
    usual = flat.dtype.kind == "f" and flat.dtype.itemsize >= 4
    part = flat
    if usual and flat.size > _HUGE:
        part = flat[:: flat.size // (128 * SAMPLE) | 1]
    low, high = float(np.minimum.reduce(part)), float(np.maximum.reduce(part))
    if usual:
        mean = float(np.add.reduce(part)) / part.size
        square = float(np.dot(flat, flat)) / flat.size
    else:
        # The deviation is then that of the sample.
        mean, square = float(np.add.reduce(part, dtype=np.float64)) / part.size, 0.0
    if -np.inf < low and high < np.inf and (part is flat or square < np.inf):
        return Exact(size, low, high, mean, square, 0, 0)
    # Something is not finite, or its square is not: count, and use the other elements.
    finite = np.isfinite(flat)
    nans, times = int(np.isnan(flat).sum()), size // flat.size
    good = flat[finite].astype(np.float64)
    if not good.size:
        return Exact(size, np.nan, np.nan, np.nan, np.nan, times * nans, size - times * nans)
    infinite = times * (flat.size - good.size - nans)
    return Exact(size, float(good.min()), float(good.max()), float(good.mean()), float(good @ good) / good.size,
                 times * nans, infinite)  # fmt: skip


def _combined(sample: Statistics, exact: Exact, looked_at: int) -> Statistics:
    """Exact numbers where they are known; the rest is estimated from the sample."""
    variance = exact.mean_square - exact.mean**2
    # The difference of nearly equal numbers is noise.
    steady = variance > 1e-3 * exact.mean_square
    return Statistics(
        exact.low, exact.high, exact.mean, variance**0.5 if steady else sample.deviation, exact.nans, exact.infinite,
        round(sample.zeros * exact.size / looked_at), sample.counts, sample.first, sample.last, looked_at,
    )  # fmt: skip


def _statistics(rows: Array) -> tuple[Array, Array]:
    """(low, high, mean, deviation, NaN, infinite, zeros) of each row, and its histogram between low and high."""
    count, size = rows.shape
    fields = np.zeros((count, 7))
    if not size:
        fields[:, :4] = np.nan
        return fields, np.zeros((count, 0), np.int64)
    wide = rows.astype(np.float64)
    finite = np.isfinite(wide)
    if finite.all():
        low, high = wide.min(axis=1), wide.max(axis=1)
        mean = wide.mean(axis=1)
        deviation = np.sqrt(np.maximum(np.square(wide - mean[:, None]).mean(axis=1), 0))
        kept = None
    else:
        kept = finite
        number = finite.sum(axis=1)
        low = np.where(finite, wide, np.inf).min(axis=1)
        high = np.where(finite, wide, -np.inf).max(axis=1)
        safe = np.where(finite, wide, 0)
        mean = safe.sum(axis=1) / np.maximum(number, 1)
        deviation = np.sqrt((np.square(np.where(finite, wide - mean[:, None], 0))).sum(axis=1) / np.maximum(number, 1))
        fields[:, 4] = np.isnan(wide).sum(axis=1)
        fields[:, 5] = size - number - fields[:, 4]
        nothing = number == 0
        for values in (low, high, mean, deviation):
            values[nothing] = np.nan
        wide = safe
    fields[:, 0], fields[:, 1], fields[:, 2], fields[:, 3] = low, high, mean, deviation
    fields[:, 6] = (rows == 0).sum(axis=1)
    return fields, _histograms(wide, low, high, kept)


def _histograms(wide: Array, low: Array, high: Array, kept: Array | None) -> Array:
    count, size = wide.shape
    bins = 0 if size < _FEWEST else _FEW_BINS if size < 100 else _BINS
    if not bins:
        return np.zeros((count, 0), np.int64)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        scale = np.where(high > low, bins / (high - low), 0)
        scale[~np.isfinite(scale)] = 0
        start = np.where(np.isfinite(low), low, 0)
        places = ((wide - start[:, None]) * scale[:, None]).astype(np.int64)
    np.clip(places, 0, bins - 1, out=places)
    places += np.arange(count)[:, None] * bins
    chosen = places.reshape(-1) if kept is None else places[kept]
    return np.bincount(chosen, minlength=count * bins).reshape(count, bins)


def digits(values: Any, count: int = 6) -> Any:
    """Numbers rounded to `count` digits, all at once."""
    with np.errstate(all="ignore"):
        scale = 10.0 ** (count - 1 - np.floor(np.log10(np.abs(values))))
        found = np.round(values * scale) / scale
    return np.where(np.isfinite(found), found, values)


def rounded(array: Array) -> list[Any]:
    """An array as nested lists for a file: of few digits, and with text for what is not finite."""
    if array.dtype.kind in "bui":
        return array.tolist()  # type: ignore[no-any-return]
    wide = digits(array.astype(np.float64))
    found: list[Any] = wide.tolist()
    return found if np.isfinite(wide).all() else _with_text(found)


def _with_text(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_text(v) for v in value]
    return value if np.isfinite(value) else str(value)


def _corners(array: Array) -> Array:
    """The first and last three elements along each dimension; fewer where there are many dimensions."""
    edge = 3 if array.ndim <= 3 else 1
    for dim in range(array.ndim):
        size = array.shape[dim]
        if size > 2 * edge:
            chosen = (slice(None),) * dim
            array = np.concatenate([array[(*chosen, slice(0, edge))], array[(*chosen, slice(size - edge, size))]], dim)
    return array.copy()

