"""A number that a function returns as it is decides nothing; one that anything else is made of does."""

import math

import numpy as np
import pytest

import wayfare as wf

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs


def held_up(x):
    with wf.no_grad():
        return x.sum().item()


def caught(x):
    try:
        return x.item()
    except RuntimeError:
        return x.sum() * 2


def doubled(number):
    return number * 2


WAYS = {
    "as it is": lambda x: x.sum().item(),
    "made whole": lambda x: int(x.sum()),
    "made a float": lambda x: float(x.sum()),
    "its root": lambda x: math.sqrt(x.sum()),
    "its text": lambda x: str(x.sum().item()),
    "handed on": lambda x: doubled(x.sum().item()),
    "in a pair": lambda x: (x.sum().item(), 1),
    "out of a block": held_up,
    "caught": caught,
    "compared": lambda x: x.sum().item() > 5,
}


@pytest.mark.parametrize("name", WAYS)
def test_each_use_of_a_number(name):
    way = WAYS[name]
    compiled = wf.compile(way)
    for value in (1.0, 1.0, 1.0, 4.0, 4.0, 9.0, 2.0):
        x = wf.tensor([value, 0.0])
        got, want = compiled(x), way(x)
        assert type(got) is type(want)
        np.testing.assert_equal(np.asarray(got), np.asarray(want))


def test_only_what_is_returned_as_it_is_needs_no_python():
    compiled = wf.compile(WAYS["as it is"])
    for value in range(6):
        assert compiled(wf.full((2,), float(value))) == 2.0 * value
    assert compiled.explain().data["replayed"] == 5


def depth(x, n=0):
    if n == 2:
        return x.sum().item()
    return depth(x, n + 1) + 1


def test_a_number_that_an_inner_call_of_the_same_function_returns(monkeypatch):
    plain = depth
    compiled = wf.compile(plain)
    monkeypatch.setitem(globals(), "depth", compiled)
    for value in (1.0, 1.0, 2.0, 3.0, 5.0):
        assert compiled(wf.tensor([value])) == value + 2
