"""Writes in place between a compiled call and its gradient: an error just where there is one without compile."""

import pytest

import wayfare as wf
from tests.compiler.checks import numbers
from tests.compiler.twins import leaf, twin
from wayfare import nn
from wayfare.autograd import grad

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs


def after(write, create=False):
    """A scenario: call, write, then the gradient of the first result."""

    def scenario(way):
        x = leaf(3)
        h = x * 1
        made = way(h)
        results = made if isinstance(made, (tuple, list)) else [made]
        write(h, *results)
        if create:
            (g,) = grad(results[0].sum(), x, create_graph=True)
            return g, grad(g.sum(), x, allow_unused=True)
        results[0].sum().backward()
        return x.grad

    return scenario


def quietly(write):
    def written(*args):
        with wf.no_grad():
            write(*args)

    return written


def tanh_and_view(x):
    y = x.tanh()
    return y, y[:2]


def tanh_and_more(x):
    y = x.tanh()
    return y * 2, y


def tanh_and_detached(x):
    y = x.tanh()
    return y, y.detach()


def two_rows(x):
    y = x.tanh()
    return y[:2], y[1:]


def written_inside(x):
    y = (x * 1).exp_()
    return y * 2, y


WRITES = {
    "a result that is kept": (lambda x: x.tanh(), lambda h, y: y.mul_(2)),
    "a result that is not": (lambda x: x * 2, lambda h, y: y.mul_(2)),
    "a result whose shape is kept": (lambda x: x.expand(2, 3).sum(0), lambda h, y: y.mul_(2)),
    "a view of a result": (tanh_and_view, lambda h, y, v: v.mul_(2)),
    "a part of a result": (lambda x: x.tanh(), lambda h, y: y[:1].zero_()),
    "the only view of what is kept": (lambda x: x.tanh()[:2], lambda h, v: v.mul_(2)),
    "another view of what is kept": (two_rows, lambda h, u, v: v.mul_(2)),
    "another result that is kept": (tanh_and_more, lambda h, z, y: y.mul_(2)),
    "a detached result": (tanh_and_detached, lambda h, y, d: d.mul_(2)),
    "an equal result in other memory": (lambda x: (x.tanh(), x.tanh()), lambda h, y, z: z.mul_(2)),
    "a result written inside before": (written_inside, lambda h, z, y: y.mul_(2)),
    "an argument that is kept": (lambda x: x * x, lambda h, y: h.add_(1)),
    "an argument that is not": (lambda x: (x + 1).tanh(), lambda h, y: h.add_(1)),
    "an argument of which a view is kept": (lambda x: x[1:].square(), lambda h, y: h[:1].add_(1)),
    "an argument handed back": (lambda x: (x.square(), x), lambda h, y, same: same.add_(1)),
    "an argument handed back in part": (lambda x: (x.square(), x[:2]), lambda h, y, part: part.add_(1)),
    "an argument detached": (lambda x: (x.square(), x.detach()), lambda h, y, same: same.add_(1)),
}


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_written_before_backward(name, create):
    function, write = WRITES[name]
    twin(function, after(quietly(write), create))
    if "argument" not in name:
        twin(function, after(write, create))


def test_the_base_of_an_argument():
    def scenario(way, write):
        x = leaf(4)
        h = x * 1
        y = way(h[1:])
        with wf.no_grad():
            write(h)
        y.sum().backward()
        return x.grad

    for f in (lambda x: x * x, lambda x: x + 1):
        twin(f, lambda way: scenario(way, lambda h: h.add_(1)))
        twin(f, lambda way: scenario(way, lambda h: h[:1].add_(1)))


def test_an_argument_that_the_call_writes_itself():
    def f(x, buffer):
        buffer.add_(1)
        return x * buffer

    def scenario(way, again):
        x, buffer = leaf(3), numbers(3, seed=1)
        y = way(x, buffer)
        if again:
            buffer.add_(1)
        y.sum().backward()
        return x.grad, buffer

    for again in (False, True):
        twin(f, lambda way, a=again: scenario(way, a))


def test_parameters_stepped_between():
    def scenario(way, layer, x):
        optimizer = wf.optim.SGD(layer.parameters(), lr=0.0)
        optimizer.zero_grad()
        first = way(x)
        way(x).sum().backward()
        optimizer.step()
        first.sum().backward()
        return x.grad, *[p.grad for p in layer.parameters()]

    # The weight of a linear layer is kept only if its input wants a gradient.
    layer = nn.Linear(3, 2).double()
    twin(lambda x: layer(x), lambda way: scenario(way, layer, leaf(4, 3)))
    twin(lambda x: layer(x), lambda way: scenario(way, layer, numbers(4, 3)))


def test_memory_that_was_replaced_is_not_written():
    def scenario(way, create):
        x = leaf(3)
        y = way(x)
        x.data = numbers(3, seed=9)
        (g,) = grad(y.sum(), x, create_graph=create)
        return (g, grad(g.sum(), x)) if create else g

    for create in (False, True):
        twin(lambda x: x * x * x, lambda way, c=create: scenario(way, c))


def test_only_what_the_gradient_goes_through_is_looked_at():
    def scenario(way, used):
        x, w = leaf(3), leaf(3, seed=1)
        outs = way(x, w)
        with wf.no_grad():
            outs[0].mul_(2)
        outs[used].sum().backward()
        return x.grad, w.grad

    for used in (0, 1):
        twin(lambda x, w: (x.tanh(), (x * w).sigmoid()), lambda way, u=used: scenario(way, u))


def test_the_message():
    compiled = wf.compile(lambda x: x.tanh())
    for _ in range(3):
        y = compiled(leaf(3))
        y.mul_(2)
        with pytest.raises(wf.errors.InPlaceError, match=r"^tanh on line test_outside_writes.py:\d+ kept a tensor for "
                           "its gradient that was modified by an in-place operation since: it is at version 1, "
                           "expected version 0"):  # fmt: skip
            y.sum().backward()
