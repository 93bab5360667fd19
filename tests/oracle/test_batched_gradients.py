"""Many gradients in one pass, side by side: vmap over `autograd.grad`, and `is_grads_batched`."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

from tests.oracle.side_by_side import agree
from tests.oracle.snippets import Cases

case = Cases()


def point(m, requires_grad=True):
    return m.tensor([0.3, 0.7, 1.1], dtype=m.float64, requires_grad=requires_grad)


def matrix(m):
    return m.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, 3.0], [1.0, 1.0, 1.0]], dtype=m.float64)


def eye(m, size=3):
    return m.eye(size, dtype=m.float64)


def rows(m, y, x, **options):
    """Rows of the Jacobian by vmap."""
    options = {"retain_graph": True, **options}
    return m.vmap(lambda v: m.autograd.grad(y, x, v, **options)[0])


def batched(m, y, x, seeds, **options):
    return m.autograd.grad(y, x, seeds, is_grads_batched=True, **options)


@case
def vmap_over_grad(m):
    x = point(m)
    return rows(m, (matrix(m) @ x).sin(), x)(eye(m))


@case
def vmap_over_grad_to_differentiate(m):
    x = point(m)
    jacobian = rows(m, (matrix(m) @ x).sin(), x, create_graph=True)(eye(m))
    return jacobian, jacobian.requires_grad, m.autograd.grad((jacobian * matrix(m)).sum(), x)


@case
def vmap_over_grad_inside_vmap(m):
    x = point(m)
    return m.vmap(rows(m, (matrix(m) @ x).sin(), x))(m.stack([matrix(m), matrix(m) * 2]))


@case
def vmap_over_grad_other_dims(m):
    x = point(m)
    y = (matrix(m) @ x).sin()
    call = lambda v: m.autograd.grad(y, x, v, retain_graph=True)[0]
    return m.vmap(call, in_dims=1, out_dims=1)(matrix(m)), m.vmap(call, chunk_size=2)(matrix(m))


@case
def vmap_over_forward_and_grad(m):
    x = point(m)
    return m.vmap(lambda v: m.autograd.grad((matrix(m) @ x).sin(), x, v)[0])(eye(m))


@case
def vmap_over_grad_of_an_example(m):
    x = point(m)
    return m.vmap(lambda v: m.autograd.grad((x * v).sin().sum(), x)[0])(eye(m))


@case
def vmap_over_backward(m):
    y = point(m).sin()
    return m.vmap(lambda v: y.backward(v, retain_graph=True))(eye(m))


@case
def one_output(m):
    x = point(m)
    jacobian = batched(m, (matrix(m) @ x).sin(), x, eye(m))
    return jacobian, jacobian[0].requires_grad


@case
def to_differentiate(m):
    x, seeds = point(m), eye(m).requires_grad_()
    (jacobian,) = batched(m, (matrix(m) @ x).sin(), x, seeds, create_graph=True)
    return jacobian, m.autograd.grad((jacobian * matrix(m)).sum(), (x, seeds))


@case
def two_outputs_by_two_inputs(m):
    x, z = point(m), point(m)
    return batched(m, ((x * z).sin(), (x + z).sum()), (x, z), (eye(m), m.ones(3, dtype=m.float64)))


@case
def by_a_computed_tensor(m):
    x = point(m)
    h = x * 2
    return batched(m, h.sin(), (h, x), eye(m))


@case
def unused_is_none(m):
    x, z = point(m), point(m)
    return batched(m, x.sin(), (x, z), eye(m), allow_unused=True)


@case
def unused_is_zeros(m):
    x, z = point(m), point(m)
    return batched(m, x.sin(), (x, z), eye(m), materialize_grads=True)


@case
def unused_is_an_error(m):
    return batched(m, point(m).sin(), point(m), eye(m))


@case
def no_seeds(m):
    x = point(m)
    return batched(m, x.sin().sum(), x, None)


@case
def seeds_of_another_shape(m):
    x = point(m)
    return batched(m, x.sin(), x, m.ones(2, 4, dtype=m.float64))


@case
def seeds_without_a_batch(m):
    x = point(m)
    return batched(m, x.sin(), x, m.ones(3, dtype=m.float64))


@case
def the_graph_is_freed(m):
    x = point(m)
    y = x.sin()
    batched(m, y, x, eye(m))
    return batched(m, y, x, eye(m))


@case
def the_graph_is_retained(m):
    x = point(m)
    y = x.sin()
    batched(m, y, x, eye(m), retain_graph=True)
    return batched(m, y, x, eye(m))


@case
def hooks_see_the_batch(m):
    x = point(m)
    h = x * 2
    h.register_hook(lambda g: g * 3)
    x.register_hook(lambda g: g + 1)
    h.grad_fn.register_prehook(lambda g: (g[0] * 2,))
    return batched(m, h.sin(), x, eye(m))


@case
def a_custom_function(m):
    class Cube(m.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        @m.autograd.function.once_differentiable
        def backward(ctx, g):
            return g * 3 * ctx.saved_tensors[0] ** 2

    x = point(m)
    return batched(m, Cube.apply(x), x, eye(m))


@case
def a_checkpoint(m):
    x = point(m)
    y = m.utils.checkpoint.checkpoint(lambda t: t.sin() * t, x, use_reentrant=False)
    return batched(m, y, x, eye(m), retain_graph=True), rows(m, y, x)(eye(m))


@case
def convolution_and_softmax(m):
    x = m.arange(1.0, 17.0, dtype=m.float64).reshape(1, 1, 4, 4).requires_grad_()
    w = m.arange(1.0, 5.0, dtype=m.float64).reshape(1, 1, 2, 2).requires_grad_()
    y = m.nn.functional.conv2d(x / 30, w).relu().flatten().log_softmax(0)
    return batched(m, y, (x, w), eye(m, 9))


@case
def embedding_and_a_row(m):
    x = m.arange(1.0, 13.0, dtype=m.float64).reshape(4, 3).requires_grad_()
    y = m.nn.functional.embedding(m.tensor([1, 1, 2]), x).sum(0) * x[0]
    return batched(m, y, x, eye(m))


@case
def written_in_place(m):
    x = point(m)
    y = x * 1
    y[0].mul_(3)
    y.exp_()
    return batched(m, y, x, eye(m))


@pytest.mark.parametrize("snippet", case.values(), ids=list(case))
def test_case(snippet):
    agree(snippet, any_error=True)
