"""Functions that change what they depend on, or depend on what no guard can see: their Python runs at every call."""

import numpy as np
import pytest

import wayfare as wf
from tests.compiler.checks import numbers, x_of
from tests.compiler.worlds import simple, stay_equal

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs


def test_what_the_function_writes_itself():
    def make(way):
        seen, record = [], {"calls": 0}

        def f(x):
            seen.append(len(seen))
            record["calls"] += 1
            return x * len(seen)

        call = way(f)

        def both(number):
            return [call(x_of(number)).detach(), list(seen), dict(record)]

        return (both,)

    stay_equal(make, python=True)


def test_what_is_made_at_the_first_call_and_kept():
    def make(way):
        kept = {}

        def f(x):
            if "mask" not in kept:
                kept["mask"] = wf.arange(4).double()
            return x * kept["mask"]

        return simple(way(f), lambda: kept.clear(), lambda: kept.update(mask=numbers(4, seed=7)))

    stay_equal(make, python=True)


def test_what_cannot_be_guarded_runs_as_python():
    def make(way):
        dice = np.random.default_rng(0)
        count = iter(range(1000))

        def f(x):
            return x * float(dice.normal()) + next(count)

        return simple(way(f))

    stay_equal(make, python=True)


def test_a_variable_that_the_function_assigns():
    def make(way):
        total = 0

        def f(x):
            nonlocal total
            total += 1
            return x * total

        return simple(way(f))

    stay_equal(make, python=True)
