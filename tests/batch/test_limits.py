"""`wf.map` at its limits: bad arguments, sizes of zero, cyclic and very deep structures, and memory that stays flat."""

import gc

import numpy as np
import pytest

import wayfare as wf
from tests.batch.checks import agree, numbers, said, still_works, vectors, weight
from wayfare.errors import ArgumentError, ArgumentTypeError, OperationError

# -- bad arguments and odd sizes ---------------------------------------------------------------------------------


def test_unequal_iterables():
    with pytest.raises(ArgumentError, match="2.*3|3.*2"):
        wf.map(lambda a, b: a, [1, 2, 3], [1, 2])
    with pytest.raises(ArgumentError):
        wf.map(lambda a, b: a, [], [1])
    still_works()


def test_what_is_not_a_function_or_not_iterable():
    with pytest.raises(ArgumentTypeError, match="map: "):
        wf.map(3, [1])
    with pytest.raises(ArgumentTypeError, match="map: "):
        wf.map(lambda x: x, 5)
    with pytest.raises((ArgumentTypeError, TypeError), match="map"):
        wf.map(lambda x: x)


def test_an_iterable_that_fails():
    def broken():
        yield wf.ones(2)
        raise OSError("no more data")

    with pytest.raises(OSError, match="no more data"):
        wf.map(lambda x: x * 2, broken())
    still_works()


def test_sizes_of_zero():
    w = weight(3, 3)
    empty = [numbers(0, 3, grad=True), numbers(2, 3, grad=True), numbers(0, 3, grad=True)]
    agree(lambda m: (m @ w).sum(0), empty, leaves=[w, *empty])
    agree(lambda m: wf.cat([m, m]).tanh(), empty, leaves=empty)
    agree(lambda x: x[:0].sum() + x.sum(), xs := vectors(), leaves=xs)
    agree(lambda m: wf.stack([row * 2 for row in m]) if len(m) else m.sum(), empty, leaves=empty)


class Tree:
    """A node with a word and children."""

    def __init__(self, x, *children):
        self.x, self.children = x, list(children)


def total(tree):
    """A recursive function, as a user writes it."""
    h = tree.x
    for child in tree.children:
        h = h + total(child).tanh()
    return h


def test_a_single_node_a_single_example():
    x = numbers(3, grad=True)
    agree(total, [Tree(x)], leaves=[x])


def test_a_shared_child_is_right():
    shared = Tree(numbers(3, seed=1, grad=True))
    top = Tree(numbers(3, seed=2, grad=True), shared, shared)
    agree(total, [top, shared, Tree(numbers(3, seed=3), top, shared)], leaves=[shared.x, top.x])


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_cyclic_structure_is_reported_as_such(length):
    nodes = [Tree(numbers(3, seed=i)) for i in range(length)]
    for i, node in enumerate(nodes):
        node.children = [nodes[(i + 1) % length]]
    with pytest.raises(OperationError) as caught:
        wf.map(total, [Tree(numbers(3)), nodes[0]])
    text = said(caught.value)
    assert "cycl" in text and "total" in text and "example 1" in text
    still_works()


def chain(length):
    """A tree as deep as it is large; each node has the same numbers."""
    x = numbers(3, grad=True)
    node = Tree(x)
    for _ in range(length - 1):
        node = Tree(x, node)
    return node, x


def test_a_chain_of_ten_thousand_nodes():
    (first, x), (second, _) = chain(10_000), chain(300)
    results = wf.map(total, [first, second])
    sum(r.sum() for r in results).backward()
    h = x.detach()
    slope = np.ones(3)
    for _ in range(9_999):
        slope = 1 + (1 - np.tanh(h.numpy()) ** 2) * slope
        h = x.detach() + h.tanh()
    np.testing.assert_allclose(results[0].detach().numpy(), h.numpy(), atol=1e-9)
    np.testing.assert_allclose(x.grad.numpy(), slope, rtol=1e-7)
    while first.children:
        (first,) = first.children


# -- memory ----------------------------------------------------------------------------------------------------


def live_tensors():
    return sum(isinstance(thing, wf.Tensor) for thing in gc.get_objects())


@pytest.mark.parametrize("kind", ["values", "training", "faults"])
def test_two_hundred_maps_leave_nothing_behind(kind, no_cycle_collector):
    w, xs = weight(3, 3), vectors(6)

    def function(x, i):
        h = (x @ w).tanh()
        if h.sum() > 0:
            h = h * 2
        if kind == "faults" and i == 4:
            raise ValueError("again")
        return h

    def step():
        try:
            results = wf.map(function, xs, range(6))
        except ValueError:
            return
        if kind == "training":
            sum(r.sum() for r in results).backward()

    for _ in range(5):
        step()
    before = live_tensors()
    things = len(gc.get_objects())
    for _ in range(200):
        step()
    assert live_tensors() <= before + 2
    assert len(gc.get_objects()) <= things + 200


def test_a_result_does_not_keep_its_map_alive(no_cycle_collector):
    xs = vectors(6, grad=False)
    before = live_tensors()
    kept = wf.map(lambda x: ((x * 2).sin() + x).sum(), xs)[0]
    assert live_tensors() <= before + 3
    assert kept.dim() == 0
