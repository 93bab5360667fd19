"""Compiled cells whose states were computed outside from the same weights: loops over time, and trees."""

import numpy as np
import pytest

import wayfare as wf
from tests.compiled.checks import numbers
from wayfare import nn


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
        slopes = []
        for function in (lambda x, y: (x * y + w.sum()).sin(), f):
            w.grad = None
            y = (x @ w).tanh()
            x.grad = None
            function(x, function(y, x)).sum().backward()
            slopes.append((x.grad.numpy().copy(), w.grad.numpy().copy()))
        for mine, theirs in zip(*slopes, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-12)
    assert f.explain().data["plain"] == 0
