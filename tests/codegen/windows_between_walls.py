"""Loops with windows on arrays that end before memory nobody may touch: reading or writing outside ends the process.

    python -m tests.codegen.windows_between_walls COUNT
"""

import sys

import numpy as np

from tests.codegen.window_loops import random_arrays, random_windows
from tests.guarded_memory import GuardedMemory
from wayfare.codegen.routines import columns, depthwise, indexed, max_pooling, scans, segments
from wayfare.codegen.routines.windows import Slide
from wayfare.codegen.runtime import kernel as native
from wayfare.codegen.runtime import work_split
from wayfare.core.config import settings


def random_loops(count):
    for seed in range(count):
        rng = np.random.default_rng(seed)
        loop = random_windows(rng)
        kernel = native.Kernel(loop)
        for _ in range(4):
            settings.num_threads = int(rng.integers(1, 4))
            inputs, outputs, shape, axes = random_arrays(rng, loop)
            given, made = ([np.array(a, order="C") for a in arrays] for arrays in (inputs, outputs))
            kernel.into(given, made, shape, axes)


def images(rng):
    shape = tuple(int(n) for n in rng.integers((1, 1, 1, 1), (4, 4, 20, 40)))
    how = [tuple(int(n) for n in rng.integers(*ends, 2)) for ends in ((1, 4), (1, 4), (0, 3), (1, 3))]
    counts = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in zip(shape[2:], *how, strict=True))
    if min(counts) < 1:
        return
    slide = Slide(*how, counts)
    x, weight = (rng.standard_normal(s).astype(np.float32) for s in (shape, (shape[1], 1, *slide.kernel)))
    for channels_first in (False, True):
        columns.add_columns(columns.columns(x, slide, channels_first), shape, slide, channels_first)
    g = depthwise.forward(x, weight, slide)
    depthwise.by_input(g, weight, shape, slide)
    depthwise.by_weight(x, g, slide)
    max_pooling.max_over_windows(x, max_pooling.window_table(shape[2:], slide), counts)


def tables(rng):
    table, chosen = rng.standard_normal((50, int(rng.integers(1, 40)))).astype(np.float32), rng.integers(0, 50, 30)
    indexed.gather_rows(table, chosen)
    indexed.add_rows(table, chosen, table[chosen])
    indexed.gather_along(table, rng.integers(0, 50, (9, table.shape[1])), 0)
    for axis in (0, 1):
        scans.running("add", table, axis, bool(axis))
        scans.linear(table, table, axis, bool(axis))
    offsets = np.array([0, 3, 3, 50])
    segments.combine(table, segments.reduce(table, offsets, "add"), offsets, "sub")


if __name__ == "__main__":
    columns.COLUMNS_FROM = depthwise.DEPTHWISE_FROM = max_pooling.MAX_POOL_FROM = 0
    indexed.GATHER_FROM = indexed.ADD_FROM = scans.NATIVE_FROM = segments.NATIVE_FROM = 0
    work_split._SPLIT, settings.cache_folder = -1, None
    memory = GuardedMemory()
    memory.start()
    random_loops(int(sys.argv[1]))
    for number in range(4 * int(sys.argv[1])):
        images(np.random.default_rng(number))
        tables(np.random.default_rng(number))
    assert not memory.damaged
    print("no wall was touched")
