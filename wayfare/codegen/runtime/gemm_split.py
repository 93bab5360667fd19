"""How a large gemm is split over threads: into a grid over the rows and columns of the result."""

from __future__ import annotations

# Below this many multiplications one gemm runs on one thread.
SMALL = 1 << 21
# Multiplications of a part (one or two milliseconds) from which on there are more parts than threads: a thread that
# starts late, or is interrupted by another program, then takes fewer parts.
_PART = 1 << 26
_MOST = 4
# Parts begin at multiples of BLAS's register tiles.
_ROWS, _COLUMNS = 16, 32


def worth_splitting(rows: int, inner: int, columns: int, threads: int) -> bool:
    """Is a gemm large enough for several threads, and can it be split?"""
    return threads > 1 and rows * inner * columns >= SMALL and (rows >= 2 * _ROWS or columns >= 2 * _COLUMNS)


def parts_of(rows: int, inner: int, columns: int, threads: int) -> list[tuple[slice, slice]]:
    """(rows, columns) of each part; the parts have about equal sizes."""
    wanted = threads * max(1, min(_MOST, rows * inner * columns // (_PART * threads)))
    down, across = _grid(rows, columns, wanted)
    return [(row, column) for row in _split(rows, down, _ROWS) for column in _split(columns, across, _COLUMNS)]


def _grid(rows: int, columns: int, wanted: int) -> tuple[int, int]:
    """How many parts down and across, such that packing costs least: every row of parts packs the second matrix, every
    column of parts the first."""
    most_down, most_across = max(1, rows // _ROWS), max(1, columns // _COLUMNS)
    best, least = (1, 1), float("inf")
    for down in range(1, min(wanted, most_down) + 1):
        across = min(-(-wanted // down), most_across)
        unused = max(0, wanted - down * across) + (down * across) % wanted
        cost = (columns * down + rows * across) * (1 + unused)
        if cost < least:
            best, least = (down, across), cost
    return best


def _split(size: int, parts: int, unit: int) -> list[slice]:
    ends = [min(size, -(-(size * k // parts) // unit) * unit) for k in range(1, parts)] + [size]
    starts = [0, *ends[:-1]]
    return [slice(start, end) for start, end in zip(starts, ends, strict=True) if end > start]
