"""Custom Functions."""

import numpy as np
import pytest

import wayfare as wf
from wayfare.autograd import Function, once_differentiable
from wayfare.errors import GraphError, InPlaceError, OperationError, ShapeError


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


def vector(*values):
    return wf.tensor(values, dtype=wf.float64, requires_grad=True)


def test_gradient_and_second_gradient():
    x = vector(1.0, 2.0)
    y = Cube.apply(x)
    assert y.grad_fn.name() == "CubeBackward"
    (g,) = wf.autograd.grad(y.sum(), x, create_graph=True)
    np.testing.assert_allclose(g.detach().numpy(), [3.0, 12.0])
    g.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [6.0, 12.0])
    assert wf.testing.gradcheck(Cube.apply, x) and wf.testing.gradgradcheck(Cube.apply, x)


def test_setup_context_form():
    class Scale(Function):
        @staticmethod
        def forward(x, factor):
            return x * factor

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.factor = inputs[1]

        @staticmethod
        def backward(ctx, g):
            return g * ctx.factor, None

    x = vector(1.0, 2.0)
    Scale.apply(x, 4.0).sum().backward()
    assert x.grad.tolist() == [4.0, 4.0]


def test_several_outputs_and_needs_input_grad():
    seen = {}

    class Both(Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a * b, a + b

        @staticmethod
        def backward(ctx, g_product, g_sum):
            _, b = ctx.saved_tensors
            seen["needs"] = ctx.needs_input_grad
            return g_product * b + g_sum, None

    a, b = vector(2.0), wf.tensor([5.0], dtype=wf.float64)
    product, _ = Both.apply(a, b)
    (product * 2).sum().backward()
    assert a.grad.tolist() == [10.0] and seen["needs"] == (True, False)


def test_saved_output_makes_no_cycle(no_cycle_collector):
    import weakref

    class Exp(Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    x = vector(0.5)
    y = Exp.apply(x)
    node = weakref.ref(y.grad_fn)
    (g,) = wf.autograd.grad(y.sum(), x, create_graph=True)
    np.testing.assert_allclose(g.detach().numpy(), np.exp(0.5))
    (gg,) = wf.autograd.grad(g.sum(), x)
    np.testing.assert_allclose(gg.numpy(), np.exp(0.5))
    del y, g, gg
    assert node() is None


def test_mark_dirty_and_mark_non_differentiable():
    class AddOne(Function):
        @staticmethod
        def forward(ctx, x):
            x.add_(1)
            ctx.mark_dirty(x)
            sign = x > 0
            ctx.mark_non_differentiable(sign)
            return x, sign

        @staticmethod
        def backward(ctx, g, _sign):
            return g * 7

    x = vector(1.0, -5.0)
    h = x * 1
    out, sign = AddOne.apply(h)
    assert out is h and not sign.requires_grad
    h.sum().backward()
    assert x.grad.tolist() == [7.0, 7.0]


def test_once_differentiable_refuses_a_second_derivative():
    class Square(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            return g * 2 * ctx.saved_tensors[0]

    x = vector(3.0)
    (g,) = wf.autograd.grad(Square.apply(x).sum(), x, create_graph=True)
    assert g.tolist() == [6.0]
    with pytest.raises(GraphError, match="once_differentiable"):
        g.sum().backward()


def test_wrong_number_and_shape_of_gradients_are_named():
    class Wrong(Function):
        how = "count"

        @staticmethod
        def forward(ctx, a, b):
            return a + b

        @staticmethod
        def backward(ctx, g):
            return g if Wrong.how == "count" else (wf.ones(7, dtype=wf.float64), g)

    a, b = vector(1.0, 2.0), vector(1.0, 2.0)
    with pytest.raises(GraphError, match="Wrong: backward returned 1 gradients for 2 arguments"):
        Wrong.apply(a, b).sum().backward()
    Wrong.how = "shape"
    with pytest.raises(ShapeError, match=r"Wrong: backward returned f64\[7\].*argument 0.*f64\[2\]"):
        Wrong.apply(a, b).sum().backward()


def test_saved_tensor_written_in_place_is_noticed():
    x = vector(1.0, 2.0)
    h = x * 1
    y = Cube.apply(h)
    h.add_(1)
    with pytest.raises(InPlaceError, match="version 1, expected version 0"):
        y.sum().backward()


def test_saved_tensors_are_freed_with_the_graph():
    x = vector(1.0)
    y = Cube.apply(x)
    y.sum().backward()
    with pytest.raises(GraphError, match="retain_graph"):
        y.sum().backward()


def test_no_gradient_wanted_no_node():
    assert Cube.apply(wf.ones(2)).grad_fn is None


def test_inside_vmap_a_function_of_what_all_examples_share_runs_once():
    x, w = wf.tensor([[1.0, 2.0], [3.0, 4.0]]), wf.tensor([2.0, 3.0], requires_grad=True)
    y = wf.vmap(lambda row: row * Cube.apply(w))(x)
    assert y.tolist() == [[8.0, 54.0], [24.0, 108.0]]
    y.sum().backward()
    assert w.grad.tolist() == [48.0, 162.0]
    with pytest.raises(OperationError, match="static method vmap"):
        wf.vmap(Cube.apply)(x)
