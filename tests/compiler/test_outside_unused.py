"""Gradients of a compiled call for some of its results and inputs: what plays no part has none, as without compile."""

import itertools

import pytest

import wayfare as wf
from tests.compiler.checks import numbers
from tests.compiler.twins import leaf, same, seen, twin
from wayfare import nn
from wayfare.autograd import grad

pytestmark = pytest.mark.usefixtures("unchecked")  # it is counted who runs


def test_inputs_of_a_result_that_nobody_uses_have_no_gradient():
    def scenario(way):
        a, b = leaf(3), leaf(3, seed=1)
        way(a, b)[0].sum().backward()
        return a.grad, b.grad

    twin(lambda a, b: (a.tanh(), (a * b).tanh()), scenario)
    twin(lambda a, b: (a.tanh(), b), scenario)
    twin(lambda a, b: (a[1:], b[1:]), scenario)


def test_parameters_of_a_head_that_is_not_used_do_not_decay():
    def trained(way):
        wf.manual_seed(0)
        body, first, second = nn.Linear(3, 4).double(), nn.Linear(4, 1).double(), nn.Linear(4, 1).double()
        parameters = [*body.parameters(), *first.parameters(), *second.parameters()]
        optimizer = wf.optim.AdamW(parameters, lr=0.1, weight_decay=0.5)
        forward = way(lambda x: (first(body(x)), second(body(x))))
        for step in range(6):
            optimizer.zero_grad()
            forward(numbers(5, 3, seed=step))[step // 3].square().mean().backward()
            optimizer.step()
        return [p.detach().clone() for p in parameters], [p.grad is None for p in parameters]

    (got, missing), (want, expected) = trained(wf.compile), trained(lambda f: f)
    assert missing == expected
    for a, b in zip(got, want, strict=True):
        wf.testing.assert_close(a, b)


def test_grad_says_none():
    def scenario(way, create):
        a, b = leaf(3), leaf(3, seed=1)
        return grad(way(a, b)[0].sum(), (a, b), allow_unused=True, create_graph=create)

    for create in (False, True):
        twin(lambda a, b: (a.tanh(), b.tanh()), lambda way, c=create: scenario(way, c))
        twin(lambda a, b: (a.tanh(), b.tanh()), lambda way, c=create: scenario(lambda a, b: way(a, b)[::-1], c))


def test_grad_of_an_input_that_plays_no_part_is_an_error():
    def scenario(way):
        a, b = leaf(3), leaf(3, seed=1)
        return grad(way(a, b)[0].sum(), (a, b))

    twin(lambda a, b: (a.tanh(), b.tanh()), scenario)


def test_hooks_of_leaves_that_play_no_part_are_not_called():
    def scenario(way):
        a, b = leaf(3), leaf(3, seed=1)
        told = []
        a.register_hook(lambda g: told.append("a"))
        b.register_hook(lambda g: told.append("b"))
        b.register_post_accumulate_grad_hook(lambda t: told.append("b later"))
        way(a, b)[0].sum().backward()
        return told, a.grad, b.grad

    twin(lambda a, b: (a.tanh(), b.tanh()), scenario)


def test_no_zero_is_multiplied_by_infinity():
    def scenario(way):
        w = leaf(3)
        way(w)[0].sum().backward()
        return w.grad

    def twice(way):
        w = leaf(3)
        (g,) = grad(way(w)[0].sum(), w, create_graph=True)
        return g, grad(g.sum(), w, allow_unused=True)

    for f in (lambda w: (w * w, (w - w).sqrt()), lambda w: (w.sin(), (w - w).norm(), (w * 0).log())):
        twin(f, scenario)
        twin(f, twice)


def test_what_two_results_share_gets_what_arrives():
    def f(a, b, c):
        h = (a * b).tanh()
        return h.sin() * c, h.cos(), h.exp() + b

    def scenario(way, used, inputs, create):
        tensors = [leaf(3, seed=i) for i in range(3)]
        outs = way(*tensors)
        total = sum(outs[i].square().sum() for i in used)
        if inputs is None:
            total.backward()
            return [t.grad for t in tensors]
        return grad(total, [tensors[i] for i in inputs], allow_unused=True, create_graph=create)

    subsets = [s for n in (1, 2, 3) for s in itertools.combinations(range(3), n)]
    compiled = wf.compile(f)
    for used in subsets:
        for inputs in (None, *subsets):
            for create in (False, True) if inputs else (False,):
                same(*[seen(lambda way, u=used, i=inputs, c=create: scenario(way, u, i, c), way)
                       for way in (compiled, f)])  # fmt: skip


SEVERAL = {
    "svd": lambda x, w: wf.linalg.svd(x @ w.T, full_matrices=False),
    "eigh": lambda x, w: wf.linalg.eigh(x @ x.T),
    "qr": lambda x, w: wf.linalg.qr(x),
    "sort": lambda x, w: x.sort(1),
    "norm": lambda x, w: (nn.functional.layer_norm(x, (3,), w[0]), x.std(), w.mean()),
    "unbind": lambda x, w: (x * w).unbind(0),
    "split": lambda x, w: [t.square() for t in (x * w).split(2)],
}


@pytest.mark.parametrize("name", SEVERAL)
def test_ops_of_several_outputs(name):
    f = SEVERAL[name]

    def scenario(way, number):
        x, w = leaf(3, 3, seed=3), leaf(3, 3, seed=4)
        live = [t for t in way(x, w) if t.requires_grad]
        live[number % len(live)].square().sum().backward()
        return x.grad, w.grad

    for number in range(3):
        twin(f, lambda way, n=number: scenario(way, n))


def test_a_gradient_of_a_gradient_beside_its_loss():
    weight, bias = leaf(3, seed=5), leaf(3, seed=6)

    def f(x):
        loss = nn.functional.layer_norm(x, (3,), weight, bias).square().sum()
        (g,) = grad(loss, x, create_graph=True)
        return loss, g

    def scenario(way, number):
        weight.grad = bias.grad = None
        x = leaf(2, 3)
        way(x)[number].square().sum().backward()
        return x.grad, weight.grad, bias.grad

    for number in range(2):
        twin(f, lambda way, n=number: scenario(way, n))


def test_a_recurrent_layer_of_which_only_the_state_is_used():
    layer = nn.LSTM(3, 2).double()

    def scenario(way, number):
        for p in layer.parameters():
            p.grad = None
        x = leaf(4, 1, 3)
        out, (h, c) = way(x)
        (out, h, c)[number].sum().backward()
        return [x.grad, *[p.grad for p in layer.parameters()]]

    for number in range(3):
        twin(lambda x: layer(x), lambda way, n=number: scenario(way, n))


class Both(wf.autograd.Function):
    """Two results, and a gradient for each argument whatever arrives."""

    @staticmethod
    def forward(ctx, x, y):
        return x * 2, y * 3

    @staticmethod
    def backward(ctx, by_x, by_y):
        return by_x * 2, by_y * 3


class Told(wf.autograd.Function):
    """One that is told which results got a gradient."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        return x * 2, y * 3

    @staticmethod
    def backward(ctx, by_x, by_y):
        return None if by_x is None else by_x * 2, None if by_y is None else by_y * 3


def test_a_custom_function_is_given_zeros_for_what_does_not_arrive():
    def scenario(way, used):
        x, y = leaf(3), leaf(3, seed=1)
        outs = way(x, y)
        sum(outs[i].sum() for i in used).backward()
        return x.grad, y.grad

    for used in ((0,), (1,), (2,), (0, 2), (0, 1, 2)):
        # Where nothing arrives at it, it is not called.
        twin(lambda x, y: (*Both.apply(x * y, y), x.sin()), lambda way, u=used: scenario(way, u))
        twin(lambda x, y: (*Told.apply(x * y, y), x.sin()), lambda way, u=used: scenario(way, u), python=True)
    twin(lambda x, y: (Told.apply(x * y, y)[0],), lambda way: scenario(way, (0,)))
