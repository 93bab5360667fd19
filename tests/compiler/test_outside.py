"""A compiled function among other things: differentiated from outside, nested, recursive, in two threads."""

import threading

import pytest

import wayfare as wf
from tests.compiler.checks import CALLS, check, equal, numbers, x_of
from wayfare import nn
from wayfare.nn import functional as F

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs

# -- gradients from outside ------------------------------------------------------------------------------------------


def net(x, w):
    return ((x @ w).tanh() @ w.T).square()


def test_gradients_accumulate_over_calls():
    compiled = wf.compile(net)
    grads = []
    for way in (compiled, net):
        w = numbers(4, 2, seed=1, grad=True)
        for call in range(CALLS):
            (way(x_of(call), w).sum() + way(x_of(call + 1), w).sum()).backward()
        grads.append(w.grad)
    equal(*grads)


def test_a_graph_kept_and_walked_twice():
    compiled = wf.compile(net)
    for call in range(CALLS):
        x, w = x_of(call), numbers(4, 2, seed=1, grad=True)
        out = compiled(x, w).sum()
        out.backward(retain_graph=True)
        first = x.grad.clone()
        out.backward()
        equal(x.grad, 2 * first)
        with pytest.raises(RuntimeError, match="retain_graph"):
            out.backward()


def test_second_derivatives_from_outside():
    compiled = wf.compile(net)
    for call in range(CALLS):
        found = []
        for way in (compiled, net):
            x, w = x_of(call), numbers(4, 2, seed=1, grad=True)
            g, h = wf.autograd.grad(way(x, w).sum(), (x, w), create_graph=True)
            (g.square().sum() + h.sin().sum()).backward()
            found.append([g, h, x.grad, w.grad])
        equal(*found)
    x, w = numbers(2, 3, grad=True), numbers(3, 2, seed=1, grad=True)
    assert wf.testing.gradcheck(compiled, (x, w)) and wf.testing.gradgradcheck(compiled, (x, w))


def test_only_some_results_are_used():
    def f(x):
        h = x * 2
        return h.sin(), h.cos(), h.detach(), x.argmax()

    compiled = wf.compile(f)
    for call in range(CALLS):
        found = []
        for way in (compiled, f):
            x = x_of(call)
            way(x)[call % 2].sum().backward()
            found.append(x.grad)
        equal(*found)


def test_a_write_to_a_result_or_an_argument_before_backward_is_noticed():
    compiled = wf.compile(lambda x: x * x.exp())
    for _ in range(CALLS):
        x = x_of(0) * 1
        out = compiled(x)
        with wf.no_grad():
            x.add_(1)
        try:
            out.sum().backward()
        except RuntimeError as error:
            assert "in place" in str(error) or "version" in str(error)
        else:
            pytest.fail("a stale gradient")


# -- nesting ---------------------------------------------------------------------------------------------------------


def test_compiled_inside_compiled():
    inner = wf.compile(lambda h, w: (h @ w).tanh())

    def outer(x, w):
        h = inner(x, w)
        if h.sum() > 0:
            h = inner(h @ w.T, w)
        return h * 2

    check(outer, x_of, lambda call: numbers(4, 2, seed=call + 5, grad=True), calls=8)
    check(wf.compile(outer), x_of, lambda call: numbers(4, 2, seed=call + 5, grad=True), calls=8)


def test_compiled_inside_a_compiled_training_step():
    def trained(way):
        wf.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1)).double()
        forward, optimizer = way(model), wf.optim.Adam(model.parameters(), lr=0.01)

        @way
        def step(x):
            optimizer.zero_grad()
            loss = forward(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return [step(numbers(5, 4, seed=i)) for i in range(8)], list(model.parameters())

    equal(trained(wf.compile), trained(lambda f: f))


def test_inside_the_transforms():
    f = lambda x: (x.sin() * x).sum()
    compiled = wf.compile(f)
    for call in range(CALLS):
        x = numbers(3, 4, seed=call)
        equal(wf.func.grad(compiled)(x), wf.func.grad(f)(x))
        equal(wf.vmap(compiled)(x), wf.vmap(f)(x))
        equal(wf.vmap(wf.func.grad(compiled))(x), wf.vmap(wf.func.grad(f))(x))
        equal(wf.func.hessian(compiled)(x[0]), wf.func.hessian(f)(x[0]))
        equal(wf.func.jvp(compiled, (x,), (x,)), wf.func.jvp(f, (x,), (x,)))


def test_the_transforms_inside():
    def f(x):
        one = wf.func.grad(lambda t: (t * t.sin()).sum())(x)
        each = wf.vmap(lambda row: row.softmax(0) * row.sum())(x)
        return one, each, wf.func.jacrev(lambda t: t.tanh())(x[0])

    check(f, lambda call: numbers(3, 4, seed=call))


def test_with_fused_functions_both_ways():
    compiled = wf.compile(lambda x, y: (x * y).tanh())

    @wf.fused
    def fused(x, y):
        return x.sigmoid() * compiled(x, y)

    for call in range(CALLS):
        x, y = x_of(call), x_of(call + 1)
        equal(fused(x, y), x.sigmoid() * (x * y).tanh())
    soft = wf.fused(lambda x, y: (x - y).sigmoid() * x)
    check(lambda x, y: soft(x, y).sum() * soft(y, x), x_of, lambda call: numbers(3, 4, seed=call + 3, grad=True))


def test_inside_a_checkpoint():
    compiled = wf.compile(lambda x: F.dropout(x.tanh(), 0.5, True) * 2)
    for call in range(CALLS):
        found = []
        for way in (compiled, lambda x: F.dropout(x.tanh(), 0.5, True) * 2):
            x = x_of(call)
            wf.manual_seed(call)
            wf.checkpoint(way, x, use_reentrant=False).sum().backward()
            found.append(x.grad)
        equal(*found)


def test_inside_a_custom_function_and_a_hook():
    double = wf.compile(lambda x: x * 2)

    class Through(wf.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return double(x)

        @staticmethod
        def backward(ctx, g):
            return double(g)

    for call in range(CALLS):
        x = x_of(call)
        h = Through.apply(x)
        h.register_hook(double)
        h.sum().backward()
        equal(x.grad, numbers(3, 4) * 0 + 4)


def test_recursion():
    @wf.compile
    def compiled(x, depth):
        return x if depth == 0 else compiled(x * 1.5, depth - 1).sin()

    def plain(x, depth):
        return x if depth == 0 else plain(x * 1.5, depth - 1).sin()

    for depth in (3, 3, 3, 5, 5, 5, 0, 3):
        found = []
        for way in (compiled, plain):
            x = x_of(depth)
            out = way(x, depth)
            out.sum().backward()
            found.append([out.detach(), x.grad])
        equal(*found)


def test_recursion_that_a_value_ends():
    def halve(x):
        return x if x.abs().max() < 0.1 else halve(x * 0.5) + 1

    check(halve, lambda call: numbers(3, seed=call, grad=True), calls=8)


# -- threads -----------------------------------------------------------------------------------------------------------


def test_two_threads_call_one_compiled_function():
    def f(x, w):
        h = (x @ w).tanh()
        if h.sum() > 0:
            h = h * 2
        return h.softmax(-1).sum(0)

    compiled = wf.compile(f)
    wrong, ready = [], threading.Barrier(4)

    def work(number):
        try:
            ready.wait(10)
            for call in range(40):
                found = []
                for way in (compiled, f):
                    x, w = x_of(call % 3 + number), numbers(4, 2 + call % 2, seed=number, grad=True)
                    out = way(x, w)
                    out.square().sum().backward()
                    found.append([out, x.grad, w.grad])
                equal(*found)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong


def test_two_threads_train_two_models_with_one_compiled_step():
    def step(model, optimizer, x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def trained(way, number):
        model = nn.Linear(4, 3).double()
        with wf.no_grad():
            for i, p in enumerate(model.parameters()):
                p.copy_(numbers(*p.shape, seed=number + i))
        optimizer = wf.optim.Adam(model.parameters(), lr=0.05)
        losses = [way(model, optimizer, numbers(5, 4, seed=i)) for i in range(20)]
        return [*losses, *model.parameters()]

    compiled, found = wf.compile(step), {}
    threads = [threading.Thread(target=lambda i=i: found.update({i: trained(compiled, i)})) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(3):
        equal(found[number], trained(step, number))
