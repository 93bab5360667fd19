"""The self-check is nobody's backward pass: hooks are not called for it, and no gradient is kept for it."""

import warnings

import numpy as np
import pytest

import wayfare as wf
from tests.compiler.checks import Spoilt, equal, numbers
from wayfare.compiler.costs import Timings

CALLS = 20  # replays are compared with Python in some of them


@pytest.fixture(autouse=True)
def always_replayed(monkeypatch):
    monkeypatch.setattr(Timings, "loses", lambda self: None)


def by_backward(f, h):
    f(h).sum().backward()
    return h.grad


def by_grad(f, h):
    (found,) = wf.autograd.grad(f(h).sum(), h)
    return found, h.grad


def by_backward_of_two(f, h):
    (f(h) * f(h * 2)).sum().backward()
    return h.grad


def of_several(x):
    return x.reshape(3, 2).unbind(1)[0]


HOOKS = {
    "seen": lambda seen, g: seen.append(g.clone()),
    "changed": lambda seen, g: g * 10,
    "both": lambda seen, g: seen.append(g.clone()) or g * 10,
}


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("ask", [by_backward, by_grad, by_backward_of_two])
@pytest.mark.parametrize("make", [lambda x: x * 1, of_several])
@pytest.mark.parametrize("retain", [False, True])
def test_of_an_argument_that_was_computed(hook, ask, make, retain):
    function = lambda h: h.tanh() * h
    _same_in_both(wf.compile(function), function, hook, ask, make, retain)


def _same_in_both(compiled, function, hook, ask, make, retain):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a hook that changes a gradient is no mistake of the plan
        for call in range(CALLS):
            found = []
            for f in (compiled, function):
                x, seen = numbers(6, seed=call, grad=True), []
                h = make(x)
                if retain:
                    h.retain_grad()
                h.register_hook(lambda g, seen=seen: HOOKS[hook](seen, g))
                found.append([ask(f, h), seen, x.grad])
            equal(*found)
    data = compiled.explain().data
    assert compiled._checked and data["replayed"]


@pytest.mark.parametrize("hook", HOOKS)
def test_of_a_captured_tensor_that_was_computed(hook):
    found = []
    for way in (wf.compile, lambda function: function):
        x, seen = numbers(3, grad=True), []
        h = x * 1
        h.retain_grad()
        h.register_hook(lambda g, seen=seen: HOOKS[hook](seen, g))
        f = way(lambda y, h=h: h.tanh() * y)
        for call in range(CALLS):
            f(numbers(3, seed=call)).sum().backward(retain_graph=True)
        found.append([h.grad, x.grad, seen])
    equal(*found)


def test_hooks_of_the_node():
    f = wf.compile(lambda h: h.tanh())
    for _ in range(CALLS):
        x, seen = numbers(3, grad=True), []
        h = x * 1
        h.grad_fn.register_hook(lambda ins, outs, seen=seen: seen.append(1))
        h.grad_fn.register_prehook(lambda outs, seen=seen: seen.append(2))
        f(h).sum().backward()
        assert seen == [2, 1]
    assert f._checked


def test_of_a_leaf():
    f = wf.compile(lambda x: x.tanh())
    for _ in range(CALLS):
        x, seen = numbers(3, grad=True), []
        x.register_hook(lambda g, seen=seen: seen.append(1))
        x.register_post_accumulate_grad_hook(lambda t, seen=seen: seen.append(2))
        f(x).sum().backward()
        assert seen == [1, 2]


def test_an_argument_that_is_written():
    """What it was before is what the gradient is of."""
    function = lambda h: h.mul_(2).tanh()
    compiled, found = wf.compile(function), []
    for f in (compiled, function):
        for call in range(CALLS):
            x, seen = numbers(3, seed=call, grad=True), []
            h = x * 1
            h.register_hook(lambda g, seen=seen: seen.append(g.clone()))
            f(h).sum().backward()
            found.append([x.grad, seen])
    equal(found[:CALLS], found[CALLS:])


def test_a_wrong_gradient_is_found_beside_a_hook():
    """The gradient is compared before the hook has its say."""
    f = wf.compile(lambda h: h.tanh() * h)

    def call(number):
        h = numbers(3, seed=number, grad=True) * 1
        h.register_hook(lambda g: g * 10)
        f(h).sum().backward()

    for number in range(6):
        call(number)
    ((entry,),) = f._cache.entries.values()
    for part in entry.tree.root.gradient._parts.values():
        part.plan = Spoilt(part.plan, lambda arrays, made: np.multiply(made[0], 2, out=made[0]))
    with pytest.warns(UserWarning, match="a replay was found to differ from Python in the gradient of argument 0"):
        for number in range(6, CALLS + 6):
            call(number)
