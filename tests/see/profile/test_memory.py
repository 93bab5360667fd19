"""Memory in a profile: what was made, what was alive at the highest point, and the picture of it."""

import gc

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.see.profile.costs import Place
from wayfare.see.profile.memory import Curve, Memory, in_columns


def test_the_peak_and_what_was_alive_then():
    x = wf.ones(1000)
    with wf.profile() as p:
        a = x + 1
        b = a * 2
        del a
        c = b + 1
        del b, c
    assert p.peak_bytes == 2 * 4000
    # Twice as high: after the second line, and after the third; the first counts.
    found = {(a.place.name, a.place.site.text): (a.count, a.bytes, a.shape, a.dtype) for a in p.alive_at_peak}
    assert found == {
        ("add", "a = x + 1"): (1, 4000, (1000,), "float32"), ("mul", "b = a * 2"): (1, 4000, (1000,), "float32"),
    }  # fmt: skip
    assert [size for _, size in p.memory] == [4000, 8000, 8000]


def test_what_was_there_before_does_not_count():
    x = wf.ones(1000)
    with wf.profile() as p:
        y = x.reshape(10, 100)
        z = y.T
    assert p.peak_bytes == 0 and p.rows("op")[0].bytes == 0
    del z


def test_a_view_of_new_memory_counts_the_memory_once():
    x = wf.randn(3, 4)
    with wf.profile() as p:
        a = x + 1
        kept = [a.T, a[0], a.reshape(-1)]
    assert p.peak_bytes == 48
    del kept


def test_a_graph_that_is_kept_grows():
    x, losses = wf.ones(100).requires_grad_(), []
    with wf.profile() as p:
        for _ in range(20):
            losses.append(x * 2 + 1)
    sizes = [size for _, size in p.memory]
    assert sizes == sorted(sizes)
    (largest, *_) = p.alive_at_peak
    assert largest.count == 20 and "losses.append" in largest.place.site.text


def test_gradients_of_leaves_are_seen():
    x = wf.ones(500).requires_grad_()
    with wf.profile() as p:
        y = x * wf.ones(500)
        y.sum().backward()
    assert p.peak_bytes == 2000 + 4 + 2000
    assert {a.place.name: a.count for a in p.alive_at_peak} == {"mul": 2, "sum": 1}
    del y
    with wf.profile(memory=False) as without:
        (x * x).sum().backward()
    assert without.peak_bytes == 0 and without.memory == [] and without.alive_at_peak == []
    assert without.picture() == "" and "memory: " not in str(without)


def test_nothing_is_kept_alive():
    gc.collect()
    x = wf.ones(10)
    with wf.profile() as p:
        y = x + 1
        array = y._array
        before = len(gc.get_referrers(array))
        del y
    assert len(gc.get_referrers(array)) == before - 1
    assert not p._watch.memory._held


def test_an_address_that_is_used_again_is_another_array():
    memory, place = Memory(), Place("add", "op", None, 0, None)
    for _ in range(100):
        memory.drain()
        memory.hold(np.ones(10), place)
    memory.close()
    assert memory.peak == 80 and memory.now == 0


def test_the_peak_is_exact_and_its_list_nearly():
    memory, place, kept = Memory(), Place("add", "op", None, 0, None), []
    for n in range(2000):
        memory.drain()
        kept.append(np.ones(1))
        memory.hold(kept[-1], place)
        temporary = np.ones(1)
        memory.hold(temporary, place)
        del temporary
        memory.mark(float(n))
    memory.close()
    assert memory.peak == 8 * 2001
    assert sum(a.bytes for a in memory.at_peak) == pytest.approx(memory.peak, rel=0.011)
    assert len(memory.curve.times) <= 1024


def test_a_curve_keeps_its_highest_points():
    curve = Curve()
    sizes = np.random.default_rng(0).integers(0, 10**6, 50_000)
    for at, size in enumerate(sizes):
        curve.add(float(at), int(size))
    assert len(curve.times) <= 1024
    assert max(curve.bytes) == sizes.max()
    assert curve.times == sorted(curve.times)
    assert curve.times[curve.bytes.index(max(curve.bytes))] == sizes.argmax()


def test_columns_of_the_picture():
    curve = Curve()
    for at, size in ((0.0, 1), (0.1, 9), (0.2, 2), (0.9, 5)):
        curve.add(at, size)
    # Where nothing happens, as much is in use as after the last event, not as at its highest before.
    assert in_columns(curve.points(), 4, 1.0) == [9, 2, 2, 5]
    assert in_columns([], 3, 0.0) == [0, 0, 0]


def test_the_picture_is_drawn_for_80_columns():
    model, x = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1)), wf.randn(16, 8)
    with wf.profile() as p:
        for _ in range(3):
            model(x).sum().backward()
    title, *lines, axis = p.picture().split("\n")
    assert title.startswith("memory: at most ") and axis.startswith("0")
    assert len(lines) == 4 and all(len(line) <= 80 for line in lines)
    assert "█" in lines[0]
