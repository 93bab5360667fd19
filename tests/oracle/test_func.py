"""Function transforms side by side: grad, vjp, jvp, Jacobians, Hessians, vmap, and nestings of them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

from tests.oracle.side_by_side import agree
from tests.oracle.snippets import Cases

case = Cases()


def numbers(m, *shape):
    count = 1
    for size in shape:
        count *= size
    return m.arange(1, count + 1, dtype=m.float64).reshape(shape) / 4


def cube_sum(x):
    return (x**3).sum()


@case
def grad(m):
    return m.func.grad(cube_sum)(numbers(m, 3))


@case
def grad_of_the_second_argument(m):
    return m.func.grad(lambda x, y: (x * y**2).sum(), argnums=1)(numbers(m, 3), numbers(m, 3))


@case
def grad_of_both_arguments(m):
    return m.func.grad(lambda x, y: (x * y**2).sum(), argnums=(0, 1))(numbers(m, 3), numbers(m, 3))


@case
def grad_and_value(m):
    return m.func.grad_and_value(cube_sum)(numbers(m, 3))


@case
def grad_with_auxiliary_output(m):
    return m.func.grad(lambda x: (cube_sum(x), x * 2), has_aux=True)(numbers(m, 3))


@case
def grad_needs_a_number(m):
    return m.func.grad(lambda x: x * 2)(numbers(m, 3))


@case
def grad_of_grad(m):
    return m.func.grad(lambda x: m.func.grad(cube_sum)(x).sum())(numbers(m, 3))


@case
def grad_leaves_no_trace(m):
    x = numbers(m, 3)
    g = m.func.grad(cube_sum)(x)
    return x.requires_grad, x.grad is None, g.requires_grad


@case
def vjp(m):
    y, pull_back = m.func.vjp(lambda x: x.sin() * x, numbers(m, 3))
    return y, pull_back(numbers(m, 3))


@case
def vjp_of_two(m):
    y, pull_back = m.func.vjp(lambda a, b: (a @ b, a.sum()), numbers(m, 2, 3), numbers(m, 3, 2))
    return y, pull_back((numbers(m, 2, 2), m.ones((), dtype=m.float64)))


@case
def jvp(m):
    return m.func.jvp(lambda x: x.sin() * x, (numbers(m, 3),), (numbers(m, 3),))


@case
def jvp_of_two(m):
    return m.func.jvp(lambda a, b: a @ b, (numbers(m, 2, 3), numbers(m, 3)), (numbers(m, 2, 3), numbers(m, 3)))


@case
def jacrev(m):
    return m.func.jacrev(lambda x: x.sin().outer(x))(numbers(m, 3))


@case
def jacfwd(m):
    return m.func.jacfwd(lambda x: x.sin().outer(x))(numbers(m, 3))


@case
def jacobian_of_both_arguments(m):
    return m.func.jacrev(lambda a, b: a @ b, argnums=(0, 1))(numbers(m, 2, 3), numbers(m, 3))


@case
def hessian(m):
    return m.func.hessian(lambda x: (x**3).sum() * x.prod())(numbers(m, 3))


@case
def jacobian_of_a_jacobian(m):
    return m.func.jacfwd(m.func.jacrev(lambda x: x.exp() * x.sum()))(numbers(m, 3))


@case
def vmap(m):
    return m.func.vmap(lambda x: x * x.sum())(numbers(m, 4, 3))


@case
def vmap_over_two(m):
    return m.func.vmap(lambda a, b: a @ b)(numbers(m, 4, 3), numbers(m, 4, 3))


@case
def vmap_in_dims(m):
    return m.func.vmap(lambda a, b: a * b, in_dims=(0, None))(numbers(m, 4, 3), numbers(m, 3))


@case
def vmap_other_dims(m):
    return m.func.vmap(lambda a: a.sum(), in_dims=1)(numbers(m, 4, 3))


@case
def vmap_out_dims(m):
    return m.func.vmap(lambda a: a * 2, out_dims=1)(numbers(m, 4, 3))


@case
def vmap_of_several_outputs(m):
    return m.func.vmap(lambda a: (a.sum(), a * 2))(numbers(m, 4, 3))


@case
def vmap_of_vmap(m):
    return m.func.vmap(m.func.vmap(lambda a, b: (a * b).sum(), in_dims=(None, 0)), in_dims=(0, None))(
        numbers(m, 4, 3), numbers(m, 5, 3)
    )


@case
def per_example_gradients(m):
    w = numbers(m, 3)
    return m.func.vmap(m.func.grad(lambda w, x: (w @ x).sin()), in_dims=(None, 0))(w, numbers(m, 5, 3))


@case
def vmap_of_matmul_and_reductions(m):
    def block(a, w):
        h = (a @ w).tanh()
        return h.softmax(-1).sum(0), h.amax(0), h.mean()

    return m.func.vmap(block, in_dims=(0, None))(numbers(m, 4, 2, 3), numbers(m, 3, 2))


@case
def vmap_of_sizes_that_differ(m):
    return m.func.vmap(lambda a, b: a * b)(numbers(m, 4, 3), numbers(m, 5, 3))


@case
def backward_through_vmap(m):
    w = numbers(m, 3).requires_grad_()
    m.func.vmap(lambda x: (w * x).sum())(numbers(m, 4, 3)).sum().backward()
    return w.grad


def ensemble(m, make):
    """The outputs of three copies of a layer, and what became of their buffers."""
    layers = [make().double() for _ in range(3)]
    parameters, buffers = m.func.stack_module_state(layers)
    x = numbers(m, 4, 3)

    def call(parameters, buffers):
        return m.func.functional_call(layers[0], (parameters, buffers), (x,))

    out = m.func.vmap(call)(parameters, buffers)
    return out, buffers, dict(layers[0].named_buffers())


@case
def batch_norms_as_an_ensemble(m):
    return ensemble(m, lambda: m.nn.BatchNorm1d(3))


@case
def functional_jacobian(m):
    return m.autograd.functional.jacobian(lambda x: x.sin() * x.sum(), numbers(m, 3))


@case
def functional_hessian(m):
    return m.autograd.functional.hessian(cube_sum, numbers(m, 3))


@pytest.mark.parametrize("snippet", case.values(), ids=list(case))
def test_case(snippet):
    agree(snippet, any_error=True)
