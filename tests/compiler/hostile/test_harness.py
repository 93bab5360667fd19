"""The harness itself: a `compile` that does nothing is right in every case tried, and wrong ones are seen."""

import pytest

import wayfare as wf
from tests.compiler.hostile.collected import ALL
from tests.compiler.hostile.harness import CASES, BadCase, Wrong, family, run


def stale(function):
    """Gives the result of the first call for ever."""
    found = []

    def call(*args):
        if not found:
            found.append(function(*args))
        return found[0]

    return call


def copied(function):
    """Gives a copy where plain Python gives the same object or a view."""
    return lambda *args: function(*args).clone()


def generous(function):
    """Makes a gradient of zeros where there was none."""

    def call(*args):
        made = function(*args)
        for t in made:
            t.sum().backward(retain_graph=True)
        for part in function.__globals__.values():
            if isinstance(part, wf.Tensor) and part.grad is not None:
                part.grad.zero_()
        return made

    return call


def thirsty(function):
    """Draws a random number too many."""
    return lambda *args: (wf.rand(1), function(*args))[1]


def forgetful(function):
    """Forgets, from the third call on, what was written into lists."""
    count = [0]

    def call(*args):
        count[0] += 1
        made = function(*args)
        log = function.__globals__["log"]
        if count[0] > 2:
            log.pop()
        return made

    return call


WRONG = {
    "stale": (stale, "views/add to row"),
    "copied": (copied, "views/what results share: slice"),
    "copied argument": (copied, "views/what results share: requires_grad_"),
    "generous": (generous, "grads/unused outputs: r[0].backward()"),
    "thirsty": (thirsty, "views/add to row"),
    "forgetful": (forgetful, "attributes/own state: list appended, never read"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_seen(monkeypatch, name):
    way, case = WRONG[name]
    monkeypatch.setattr(wf, "compile", way)
    with pytest.raises(Wrong):
        run(case)


@pytest.mark.parametrize("name", ALL[::97])
def test_plain_python_is_like_itself(monkeypatch, name):
    monkeypatch.setattr(wf, "compile", lambda function: function)
    run(name)


def test_a_case_that_raises_must_say_so(monkeypatch):
    monkeypatch.setattr("tests.compiler.hostile.harness.CASES", made := {})
    family("made")("wrong", "@way\ndef f(x):\n    raise ValueError\n")
    assert list(made) == ["made/wrong"] and "made/wrong" not in CASES
    with pytest.raises(BadCase):
        run("made/wrong")
