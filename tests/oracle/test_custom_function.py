"""Autograd side by side: custom functions."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

from tests.oracle.side_by_side import agree
from tests.oracle.snippets import Cases, gradient, leaf

case = Cases()


def square(m):
    class Square(m.autograd.Function):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.save_for_backward(x)
            ctx.scale = scale
            return x * x * scale

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 2 * x * ctx.scale, None

    return Square


@case
def custom_function(m):
    x = leaf(m)
    y = square(m).apply(x, 3)
    return y.grad_fn.name(), gradient(m, x, y)


@case
def custom_function_twice_differentiable(m):
    x = leaf(m)
    (g,) = m.autograd.grad(square(m).apply(x, 3).sum(), x, create_graph=True)
    return m.autograd.grad(g.sum(), x)


@case
def custom_function_without_gradient(m):
    return square(m).apply(m.ones(3), 2).requires_grad


@case
def custom_function_runs_without_grad_mode(m):
    modes = []

    class Look(m.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            modes.append((m.is_grad_enabled(), ctx.needs_input_grad))
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            modes.append(m.is_grad_enabled())
            return g

    Look.apply(leaf(m)).sum().backward()
    return modes


@case
def custom_function_with_setup_context(m):
    class Cube(m.autograd.Function):
        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x * x * g

    x = leaf(m)
    return gradient(m, x, Cube.apply(x))


@case
def custom_function_of_two_outputs(m):
    class Both(m.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            return x * 2, w * 3

        @staticmethod
        def backward(ctx, g, h):
            return g * 2, h * 3

    x, w = leaf(m), leaf(m)
    first, _ = Both.apply(x, w)
    first.sum().backward()
    return x.grad, w.grad


@case
def custom_function_that_does_not_want_zeros(m):
    seen = []

    class Both(m.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, g, h):
            seen.append(h is None)
            return g * 2

    x = leaf(m)
    Both.apply(x)[0].sum().backward()
    return seen, x.grad


@case
def custom_function_with_an_output_that_has_no_gradient(m):
    class Order(m.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            values, places = x.sort()
            ctx.mark_non_differentiable(places)
            ctx.save_for_backward(places)
            return values, places

        @staticmethod
        def backward(ctx, g, _):
            (places,) = ctx.saved_tensors
            return m.zeros_like(g).scatter_(0, places, g)

    x = leaf(m, 3.0, 1.0, 2.0)
    values, places = Order.apply(x)
    return places, places.requires_grad, gradient(m, x, values)


@case
def custom_function_in_place(m):
    class Double(m.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, g):
            return g * 2

    x = leaf(m)
    y = x * 1
    z = Double.apply(y)
    return z is y, gradient(m, x, y)


@case
def custom_function_with_too_few_gradients(m):
    class Wrong(m.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            return x * w

        @staticmethod
        def backward(ctx, g):
            return g

    Wrong.apply(leaf(m), leaf(m)).sum().backward()


@case
def custom_function_with_a_gradient_of_the_wrong_shape(m):
    class Wrong(m.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g[0:2]

    Wrong.apply(leaf(m)).sum().backward()


@case
def custom_function_differentiable_once(m):
    class Once(m.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @m.autograd.function.once_differentiable
        def backward(ctx, g):
            return g * 2 * ctx.saved_tensors[0]

    x = leaf(m)
    (g,) = m.autograd.grad(Once.apply(x).sum(), x, create_graph=True)
    g.sum().backward()


@case
def custom_function_that_returns_its_input(m):
    class Same(m.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return g * 7

    x = leaf(m)
    return gradient(m, x, Same.apply(x))


@case
def error_inside_backward_reaches_the_caller(m):
    class Broken(m.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            raise KeyError("broken")

    Broken.apply(leaf(m)).sum().backward()


@case
def backward_inside_backward(m):
    class Inner(m.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        def backward(ctx, g):
            with m.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                (x**2).sum().backward()
            return g * x.grad

    x = leaf(m)
    return gradient(m, x, Inner.apply(x * 3))


@pytest.mark.parametrize("snippet", case.values(), ids=list(case))
def test_case(snippet):
    agree(snippet)
