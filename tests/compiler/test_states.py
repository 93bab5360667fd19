"""Compiled cells whose states were computed outside from the same weights: loops over time, and trees."""

import weakref

import numpy as np
import pytest

import wayfare as wf
from tests.compiler.checks import numbers
from wayfare import nn
from wayfare.ir.plan.plan import Plan

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        wf.manual_seed(0)
        self.x, self.h = nn.Linear(3, 4, dtype=wf.float64), nn.Linear(4, 4, dtype=wf.float64)

    def forward(self, x, h):
        return (self.x(x) + self.h(h)).tanh()


class Merge(nn.Module):
    def __init__(self):
        super().__init__()
        wf.manual_seed(1)
        self.left, self.right = nn.Linear(3, 6, dtype=wf.float64), nn.Linear(3, 6, dtype=wf.float64)

    def leaf(self, x):
        gate, c = self.left(x).chunk(2, -1)
        return gate.sigmoid() * c, c

    def forward(self, left, right):
        gate, c = (self.left(left[0]) + self.right(right[0])).chunk(2, -1)
        c = c.tanh() + left[1] * right[1]
        return gate.sigmoid() * c, c


def gradients(module, loss):
    module.zero_grad()
    loss.backward()
    return [p.grad.numpy().copy() for p in module.parameters()]


def over_time(step, xs, length):
    h = wf.zeros(4, dtype=wf.float64)
    for x in xs[:length]:
        h = step(x, h)
    return h.square().sum()


def tree(merge, leaf, xs):
    a, b, c = (leaf(x) for x in xs[:3])
    first = merge(a, b)
    # The state of one node goes into two others.
    return (merge(merge(first, c), first)[0] * merge(c, first)[1]).sum()


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_cell_in_a_loop_is_replayed(steps):
    cell, compiled = Cell(), wf.compile(Cell())
    for call in range(4):
        xs = numbers(5, 3, seed=call)
        want = gradients(cell, over_time(cell, xs, steps))
        got = gradients(compiled, over_time(compiled, xs, steps))
        for mine, theirs in zip(got, want, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-12)
    told = compiled.explain().data
    assert told["plain"] == 0 and told["recorded"] == min(steps, 2) and told["replayed"] == 4 * steps - told["recorded"]


def test_a_cell_of_trees_is_replayed():
    plain, compiled = Merge(), wf.compile(Merge())
    for call in range(6):
        xs = numbers(3, 3, seed=call)
        want = gradients(plain, tree(plain, plain.leaf, xs))
        got = gradients(compiled, tree(compiled, compiled.leaf, xs))
        for mine, theirs in zip(got, want, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-12)
    told = compiled.explain().data
    assert told["plain"] == 0 and told["replayed"] > told["recorded"]


def test_what_was_asked_for_between_is_there():
    cell, compiled = Cell(), wf.compile(Cell())
    found = []
    for step in (cell, compiled):
        for call in range(3):
            x = numbers(3, seed=call, grad=True)
            first = step(x, wf.zeros(4, dtype=wf.float64))
            first.retain_grad()
            seen = []
            first.register_hook(lambda g, seen=seen: seen.append(g.numpy().copy()))
            step(x, first).sum().backward()
        found.append([x.grad.numpy(), first.grad.numpy(), *seen])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-12)
    assert compiled.explain().data["plain"] == 0


def test_gradients_of_gradients_through_states():
    cell, compiled = Cell(), wf.compile(Cell())
    found = []
    for step in (cell, compiled):
        for call in range(3):
            x = numbers(3, seed=call, grad=True)
            loss = step(x, step(x, wf.zeros(4, dtype=wf.float64))).square().sum()
            (slope,) = wf.autograd.grad(loss, x, create_graph=True)
            step.zero_grad()
            slope.square().sum().backward()
        found.append([slope.detach().numpy(), x.grad.numpy(), *[p.grad.numpy() for p in step.parameters()]])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)


def test_a_state_and_what_it_was_made_from_are_both_arguments():
    w = numbers(3, 3, seed=9, grad=True)
    f = wf.compile(lambda x, y: (x * y + w.sum()).sin())
    for call in range(4):
        x = numbers(3, seed=call, grad=True)
        gradients = []
        for function in (lambda x, y: (x * y + w.sum()).sin(), f):
            w.grad = None
            y = (x @ w).tanh()
            x.grad = None
            function(x, function(y, x)).sum().backward()
            gradients.append((x.grad.numpy().copy(), w.grad.numpy().copy()))
        for mine, theirs in zip(*gradients, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-12)
    assert f.explain().data["plain"] == 0


def test_one_plan_serves_gradients_however_they_lie(monkeypatch):
    """The gradient of a sum is one number stretched, that of a state an array: no plan of its own for each."""
    made = []
    plan = Plan.__init__
    monkeypatch.setattr(Plan, "__init__", lambda self, name, *rest: (made.append(name), plan(self, name, *rest))[1])
    compiled = wf.compile(Cell())
    for last in (lambda h: h.sum(), lambda h: h.square().sum(), lambda h: h[:2].sum(), lambda h: h.sum()):
        h = wf.zeros(4, dtype=wf.float64)
        for x in numbers(4, 3):
            h = compiled(x, h)
        last(h).backward()
    # Two kinds of calls, because the first state requires no gradient.
    assert sorted(made) == ["Cell", "Cell", "Cell_backward", "Cell_backward"]


# -- by fast paths


def test_calls_that_will_be_differentiated_have_shortcuts(taken):
    cell, compiled = Cell(), wf.compile(Cell())
    for call in range(5):
        before = taken[0]
        xs = numbers(6, 3, seed=call)
        got = gradients(compiled, over_time(compiled, xs, 6))
        for mine, theirs in zip(got, gradients(cell, over_time(cell, xs, 6)), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-12)
    assert taken[0] == before + 6


def test_several_results_some_without_a_gradient(taken):
    def f(x, w):
        y = x * w
        return y.sum(), (y.detach() * 2, {"more": y.exp()})

    compiled = wf.compile(f)
    for call in range(5):
        found = []
        for way in (f, compiled):
            x, w = numbers(3, seed=call), numbers(3, seed=7, grad=True)
            total, (still, rest) = way(x, w)
            assert total.requires_grad and rest["more"].requires_grad and not still.requires_grad
            (total * 3 + rest["more"].square().sum()).backward()
            found.append([w.grad.numpy(), still.numpy(), total.detach().numpy()])
        for mine, theirs in zip(*found, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-12)
    assert taken[0] > 0


def test_the_node_has_the_line_of_the_call():
    w = numbers(3, grad=True)
    compiled = wf.compile(lambda x: (x * w).exp())
    lines = [str(compiled(x).grad_fn.site) for x in numbers(6, 3)]
    assert compiled._fast_paths and len(set(lines[1:])) == 1 and lines[-1].startswith("test_states.py:")


def test_a_weight_that_is_frozen_is_seen(taken):
    compiled = wf.compile(Cell())
    x, h = numbers(3), wf.zeros(4, dtype=wf.float64)
    for _ in range(12):
        compiled(x, h)
    assert taken[0] > 0, compiled.explain()
    for p in compiled.parameters():
        p.requires_grad_(False)
    assert not compiled(x, h).requires_grad
    compiled.x.bias.requires_grad_()
    compiled(x, h).sum().backward()
    assert compiled.x.bias.grad is not None and compiled.h.bias.grad is None
    with wf.no_grad():
        assert not compiled(x, h).requires_grad


def test_a_write_between_call_and_gradient_is_refused(taken):
    w = numbers(3, grad=True)
    f = wf.compile(lambda x: (x * w).exp() * x)
    for call in range(5):
        x = numbers(3, seed=call)
        made = f(x)
        x.add_(1)
        with pytest.raises(wf.errors.InPlaceError, match="expected version 0"):
            made.sum().backward()
    assert taken[0] > 0


def test_nothing_is_kept_when_the_gradient_has_come(taken):
    compiled = wf.compile(Cell())
    for call in range(6):
        x = numbers(3, seed=call)
        gone = weakref.ref(x)
        made = compiled(x, wf.zeros(4, dtype=wf.float64))
        made.sum().backward()
        del x
        assert gone() is None or call == 0  # a recording leaves a cycle behind
        with pytest.raises(wf.errors.GraphError, match="retain_graph"):
            made.sum().backward()
    assert taken[0] > 0
