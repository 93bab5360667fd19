"""Compile checks itself: at the 1st, 2nd, 4th, 8th, … replay Python runs too; planted wrong plans are caught."""

import warnings

import numpy as np
import pytest

import wayfare as wf
from tests.compiler.checks import Spoilt, equal, numbers
from wayfare import nn
from wayfare.compiler.costs import Timings
from wayfare.errors import CheckError
from wayfare.optim.replay import GroupStep

CAUGHT = "a replay was found to differ from Python in"


def spoil(compiled, how):
    """Plant a mistake in every plan; fast paths would pass it by."""
    for (entry,) in compiled._cache.entries.values():
        for block in entry.tree.walk():
            if block.plan is not None:
                block.plan = Spoilt(block.plan, how)
    compiled._fast_paths.clear()


def caught(compiled, call, words, until=40):
    """Calls until the mistake is found: a warning with the words, and plain Python from then on."""
    with pytest.warns(UserWarning, match=CAUGHT) as told:
        for number in range(until):
            call(number)
            if compiled.explain().data["python"]:
                break
    (message,) = [str(w.message) for w in told if CAUGHT in str(w.message)]
    for word in words:
        assert word in message, message
    assert "test_self_check.py" in message
    before = compiled.explain().data["replayed"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(5):
            call(number)
    assert compiled.explain().data["replayed"] == before


def warmed(function, *args, calls=4):
    compiled = wf.compile(function)
    for _ in range(calls):
        compiled(*args)
    return compiled


def test_when_replays_are_checked(monkeypatch):
    monkeypatch.setattr(Timings, "loses", lambda self: None)
    monkeypatch.setattr("wayfare.compiler.function._BURSTS", ())
    f = wf.compile(lambda x: x.sin().exp())
    checked = []
    for call in range(40):
        before = f._checked
        f(wf.ones(20))
        if f._checked != before:
            checked.append(call)  # call 0 was recorded
    assert checked == [1, 2, 4, 8, 16, 32]


@pytest.mark.parametrize("check, expected", [(False, 0), (True, 9)])
def test_always_and_never(check, expected):
    f = wf.compile(lambda x: x * 2, check=check)
    for _ in range(10):
        f(wf.ones(3))
    assert f._checked == expected


def test_a_wrong_result():
    f = warmed(lambda x: {"left": x * 2, "right": x.sin()}, numbers(30, 30))

    def wrong(arrays, made):
        made[1][2, 0] += 0.5

    spoil(f, wrong)
    caught(f, lambda _: equal(f(numbers(30, 30))["left"], numbers(30, 30) * 2), ["the result['right']", "1 of 900"])


def test_python_is_what_counts_while_it_is_checked():
    f = wf.compile(lambda x: x.sin() * 2)
    f(numbers(4))
    x = numbers(4)
    f(x)  # the first replay is planned here
    spoil(f, lambda arrays, made: made[0].fill(7.0))
    with pytest.warns(UserWarning, match=CAUGHT):
        equal(f(x), x.sin() * 2)


def test_wrong_memory():
    total = wf.zeros(2, 50, dtype=wf.float64)

    def add(x):
        total.add_(x)
        return x * 2

    f = warmed(add, numbers(50))

    def wrong(arrays, made):
        for array in arrays:
            if array.shape == (2, 50):
                array += 0.25

    spoil(f, wrong)
    caught(f, lambda _: f(numbers(50)), ["the memory of", "total"])


def test_wrong_gradients_inside():
    model = nn.Linear(20, 20).double()

    def step(x):
        model.weight.grad = model.bias.grad = None
        loss = model(x).square().sum()
        loss.backward()
        return loss

    f = warmed(step, numbers(8, 20))

    def wrong(arrays, made):
        for array in made:
            if array.shape == (20, 20):
                array *= 1.5

    spoil(f, wrong)
    caught(f, lambda _: f(numbers(8, 20)), ["the .grad of", "weight"])


def test_wrong_gradients_from_outside():
    w = numbers(30, seed=3, grad=True)
    f = wf.compile(lambda x: (x * w).sin().sum())
    for _ in range(4):
        f(numbers(30)).backward()
    (entry,) = next(iter(f._cache.entries.values()))
    gradient = entry.tree.root.gradient
    for part in gradient._parts.values():
        part.plan = Spoilt(part.plan, lambda arrays, made: [a.__imul__(1.5) for a in made])
    caught(f, lambda _: f(numbers(30)), ["the gradient of"])


def test_wrong_random_numbers():
    f = warmed(lambda x: nn.functional.dropout(x, 0.5).sin(), numbers(40))
    (entry,) = next(iter(f._cache.entries.values()))
    recording = entry.tree.root.recording
    recording.draws = [(generator, count + 1) for generator, count in recording.draws]
    caught(f, lambda _: f(numbers(40)), ["random generator"])


def test_a_wrong_assignment():
    class Box:
        pass

    box = Box()

    def keep(x):
        box.last = x.sin()
        return x.cos()

    f = warmed(keep, numbers(20))
    (entry,) = next(iter(f._cache.entries.values()))
    (effect,) = entry.tree.root.recording.effects
    effect.outputs = entry.tree.root.recording.results[:1]
    caught(f, lambda _: f(numbers(20)), ["box.last"])


def test_a_wrong_state_of_an_optimizer(monkeypatch):
    w = numbers(10, grad=True)
    optimizer = wf.optim.Adam([w], lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = (w * x).sum()
        loss.backward()
        optimizer.step()
        return loss

    f = warmed(step, numbers(10), calls=6)
    advance = GroupStep._advance

    def twice(self):
        advance(self)
        for state in self._states:
            state["step"] += 1

    monkeypatch.setattr(GroupStep, "_advance", twice)
    with pytest.warns(UserWarning, match="a replay was found to differ|plan failed"):
        for _ in range(20):
            f(numbers(10))


def test_an_error_that_only_python_raises():
    f = wf.compile(lambda x: (x * 2).sin())
    for _ in range(2):
        f(wf.ones(3))

    def python(*args):
        raise KeyError("now")

    f._function, plain = python, f._function
    with pytest.raises(KeyError):
        for _ in range(20):
            f(wf.ones(3))
    f._function = plain
    (reason,) = [entry.eager_reason for (entry,) in f._cache.entries.values()]
    assert "Python raises KeyError" in reason


def test_what_is_slower_than_python_is_left_to_it():
    f = wf.compile(lambda x: x + 1)
    with pytest.warns(UserWarning, match=r"replaying it takes .* µs and plain Python .* µs"):
        for _ in range(400):
            f(wf.ones(1))
    told = f.explain().data
    assert told["calls"] == 400 == told["plain"] + told["replayed"] + told["recorded"] + told["timed"]
    assert np.isfinite(told["spent"])


def test_check_must_be_one_of_three():
    with pytest.raises(ValueError, match="check must be None, True or False"):
        wf.compile(lambda x: x, check="often")
    with pytest.raises(CheckError, match="differs from plain Python in the result"):
        f = wf.compile(lambda x: x.sin() * 2, check=True)
        for _ in range(3):
            f(wf.ones(3))
        spoil(f, lambda arrays, made: made[0].fill(9.0))
        f(wf.ones(3))


@pytest.mark.parametrize(("rows", "width"), [(5, 3), (8, 16), (32, 64)])
def test_rounding_errors_that_an_optimiser_scales_up_are_no_difference(rows, width):
    """A normalisation takes the bias before it out again: its gradient is rounding noise, and Adam makes full steps of
    it, in Python and in the plan different ones."""
    wf.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2), nn.LayerNorm(2))
    optimizer = wf.optim.Adam(model.parameters(), lr=0.01)

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    compiled = wf.compile(step)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(40):
            compiled(wf.randn(rows, 10), wf.randn(rows, 2))
    assert compiled.explain().data["plain"] == 0
