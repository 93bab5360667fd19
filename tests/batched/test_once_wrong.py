"""Programs that random search once found to differ from the loop, in few lines each."""

import pytest

import wayfare as wf
from tests.batched.checks import agree, compare, numbers, vectors, weight
from tests.compiled.program_parts import SumAndProduct
from wayfare.nn import functional as F

W = weight(3, 3)


def settled_in_the_middle(x):
    h = x * (x @ W).sum()
    k = h * 1
    k[0] = 2.0
    return x.tanh() + h * h


def written_through_views(x):
    n = x.clone()
    v = n.view(-1)[1:]
    v.mul_(0.5)
    v.add_(x[:-1])
    return n.tanh() + x * 0.1


def written_after_a_quiet_write(x):
    h = (x * 2).abs()
    with wf.no_grad():
        h[-1:].add_(1)
    h.clamp_min_(0)
    return h[None]


def written_after_an_inner_gradient(x):
    z = x.detach().clone().requires_grad_()
    (g,) = wf.autograd.grad((z**3).sum(), z)
    m = x.outer(x)
    d = m[wf.arange(3), 0]
    m.div_(d.square() + 1)
    return m, g


def expanded_then_written(x):
    h = x * 1
    k = h.expand(2, 3)
    h.mul_(2)
    return k * 1, k


def read_by_a_tensor_then_written(x):
    h = x * 2
    v = h[h.argmax()]
    v.mul_(0.5)
    return h


def custom_function_read_and_hook(x):
    h = SumAndProduct.apply(x, W)[0]
    k = h @ h[..., 0, :]
    float(x.max())
    k = k * 1
    k.register_hook(lambda g: g * 2)
    return k[None]


@pytest.mark.parametrize("options", [{}, {"limit": 3000}], ids=["at the end", "often"])
@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
@pytest.mark.parametrize("function", [
    settled_in_the_middle, written_through_views, written_after_a_quiet_write, written_after_an_inner_gradient,
    expanded_then_written, read_by_a_tensor_then_written, custom_function_read_and_hook,
    lambda x: wf.func.grad(lambda t: (t.sin() * t).sum())(x.detach()), lambda x: x.masked_select(x > 0),
    lambda x: x.take(wf.tensor([0])), lambda x: (x * 2, x * 3, x * 2), lambda x: x[[0, 0]] * x.mean().item(),
    lambda x: F.embedding(wf.tensor([1, 0]), W, padding_idx=1) * x, lambda x: wf.cat([x[:0], x]) * 2,
])  # fmt: skip
def test_a_program(function, second, options):
    def make():
        W.grad = None
        xs = vectors()
        return function, [xs], [W, *xs]

    compare(make, second=second, **options)


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("second", [False, True], ids=["first", "second"])
def test_a_hook_while_another_example_is_further_on(steps, second):
    def function(x, i):
        h = x * 1
        for _ in range(i * steps):
            h = (h @ W).tanh()
            h.sum().item()
        k = h * 2
        k.register_hook(lambda g: g * 2)
        return h * h

    def make():
        W.grad = None
        xs = vectors(3)
        return function, [xs, range(3)], [W, *xs]

    compare(make, second=second)


def test_a_read_after_maps_in_maps():
    def inner(x):
        return sum(wf.map(lambda i: x * i, range(3))) + x

    agree(lambda xs: wf.map(inner, xs)[0].tolist(), [[numbers(2, seed=i)] for i in range(3)])


def test_a_block_in_an_example_draws_from_the_examples_stream():
    def function(i):
        with wf.batching():
            return wf.rand(2) + i

    agree(function, range(3))


class Noisy(wf.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x + wf.rand(3, dtype=x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g


@pytest.mark.parametrize("draw", [Noisy.apply, lambda x: wf.func.grad(lambda t: (t * wf.rand(3)).sum())(x.detach())])
def test_what_runs_for_real_draws_from_the_example(draw):
    found = []
    for batch in (True, False):
        wf.manual_seed(5)
        found.append([r.detach().tolist() for r in wf.map(lambda x: draw(x * 1), vectors(), batch=batch)])
    assert found[0] == found[1]


def test_a_value_that_could_not_be_computed_says_so_again():
    said = []

    def function(number):
        row = F.embedding(wf.tensor([number]), W)
        for _ in range(2):
            try:
                row.tolist()
            except (IndexError, RuntimeError) as error:
                said.append(str(error))
        return number

    assert wf.map(function, [0, 99, 1]) == [0, 99, 1]
    assert len(said) == 2 and "largest index is 99" in said[0] and "could not be computed" in said[1]
