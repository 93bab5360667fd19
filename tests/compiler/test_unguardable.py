"""Guards: what cannot be vouched for is told with its reason and its line, and what can is not mistaken for it."""

import collections
import fnmatch
import functools
import itertools
import math
import os
import random
import re
import sys
import threading
import time

import numpy as np
import pytest

import wayfare as wf
from tests.compiler.guarding import guarded
from wayfare import nn
from wayfare.compiler.captures.guards import Guards
from wayfare.compiler.captures.reach import reach

shift = 1



def with_local_import(x):
    import random as dice

    return x * dice.random()


def with_from_import(x):
    from time import time as now

    return x * now()


iterator = iter([1, 2, 3])
count = itertools.count()
dice = np.random.default_rng(0)
of_thread = threading.local()
large = np.zeros(1 << 17)
many = [[number] for number in range(3000)]
clock = time.perf_counter


@functools.lru_cache(None)
def drawn(n):
    return wf.rand(n)


class Tables:
    @functools.cache  # noqa: B019
    def table(self, n):
        return wf.arange(n).float()


tables = Tables()
numbers = functools.cache(wf.rand)

UNGUARDABLE = {
    "clock": (lambda x: x * time.time(), "calls time.time"),
    "clock by another name": (lambda x: x * clock(), "time.perf_counter"),
    "dice": (lambda x: x * random.random(), "random"),
    "numpy's dice": (lambda x: x * np.random.rand(), "random"),
    "numpy's generator": (lambda x: x * dice.normal(), "numpy.random"),
    "new generator": (lambda x: x * np.random.default_rng().normal(), "random"),
    "environment": (lambda x: os.environ.get("A"), "Environ"),
    "getenv": (lambda x: os.getenv("A"), "os.getenv"),
    "file": (lambda x: open("a"), "open"),  # noqa: SIM115
    "input": (lambda x: input(), "calls input"),
    "eval": (lambda x: eval("x"), "calls eval"),
    "frame": (lambda x: sys._getframe(), "sys._getframe"),
    "iterator": (lambda x: next(iterator), "iterator"),
    "counter": (lambda x: next(count), "iterator"),
    "thread local": (lambda x: of_thread.x, "local"),
    "large array": (lambda x: x + large, "make it a tensor"),
    "many values": (lambda x: many[0], "2,000"),
    "cache": (lambda x: x * drawn(1), "caches its results"),
    "cache of a method": (lambda x: x + tables.table(2), "caches its results"),
    "cache of a function of ours": (lambda x: x * numbers(1), "caches its results"),
    "import inside": (with_local_import, "random"),
    "from-import inside": (with_from_import, "time"),
}


@pytest.mark.parametrize("name", UNGUARDABLE)
def test_what_cannot_be_guarded_says_why_and_where(name):
    function, words = UNGUARDABLE[name]
    seen = reach(function)
    assert words in (seen.unguardable or "nothing")
    assert "(test_unguardable.py:" in seen.unguardable
    guards = Guards(seen)
    assert not guards.holds()
    assert words in guards.why()


def test_a_variable_shared_with_a_function_inside_is_its_own_affair():
    def f(x):
        total = 0

        def add(v):
            nonlocal total
            total += v

        add(x)
        return total

    assert reach(f).unguardable is None


def test_a_helper_that_cannot_be_guarded():
    def helper(x):
        return x * time.time()

    assert "time.time" in reach(lambda x: helper(x)).unguardable


def test_methods_nobody_calls_do_not_matter():
    class Trainer:
        def __init__(self):
            self.started = time.time()
            self.k = 2

        def save(self):
            return open("a")

        def times(self, x):
            return x * self.k

    assert reach(Trainer().times).unguardable is None


@pytest.mark.parametrize(
    "function",
    [
        lambda x: print(x, file=sys.stderr),
        lambda x: os.path.join("a", "b"),
        lambda x: math.sqrt(x) + np.sqrt(x) + sum(map(float, [x])),
        lambda x: next(iter([x])),
        lambda x: wf.rand(3) + nn.functional.dropout(x),
        lambda x: collections.OrderedDict(a=x),
        lambda x: [v for v in range(x)],
    ],
)
def test_what_can_be_guarded(function):
    guarded(function)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("filled", [False, True])
def test_what_a_cache_keeps_is_what_python_gets(filled):
    @functools.lru_cache(None)
    def noise(n):
        return wf.rand(n)

    if filled:
        noise(1)
    f = wf.compile(lambda x: x * noise(1))
    with pytest.warns(UserWarning, match=r"caches its results.*test_unguardable.py"):
        found = [f(wf.ones(1)).item() for _ in range(4)]
    assert found == [noise(1).item()] * 4
    noise(1).mul_(10)
    assert f(wf.ones(1)).item() == noise(1).item()


def test_a_cache_of_a_library_is_its_own_affair():
    guarded(lambda x: x * len(re.compile("a").sub("b", "aa")) * fnmatch.translate("a").count("a"))
