"""Autograd side by side: leaves, graphs, orders of differentiation, grad modes."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

from tests.oracle.side_by_side import agree
from tests.oracle.snippets import Cases, gradient, leaf

case = Cases()


@case
def leaves_accumulate(m):
    x = leaf(m)
    (x * 2).sum().backward()
    (x * 3).sum().backward()
    return x.grad


@case
def second_backward_raises(m):
    x = leaf(m)
    y = (x * x).sum()
    y.backward()
    y.backward()


@case
def retained_graph_runs_twice(m):
    x = leaf(m)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    return x.grad


@case
def backward_of_a_vector_needs_a_seed(m):
    (leaf(m) * 2).backward()


@case
def backward_with_a_seed(m):
    x = leaf(m)
    (x * 2).backward(m.ones(4, dtype=m.float64) * 3)
    return x.grad


@case
def seed_of_the_wrong_shape(m):
    (leaf(m) * 2).backward(m.ones(3, dtype=m.float64))


@case
def backward_without_a_graph(m):
    m.ones(1).sum().backward()


@case
def integers_cannot_require_gradients(m):
    m.tensor([1, 2], requires_grad=True)


@case
def requires_grad_of_a_non_leaf_cannot_be_switched_off(m):
    y = leaf(m) * 2
    y.requires_grad = False


@case
def only_leaves_keep_gradients(m):
    x = leaf(m)
    y = x * 2
    z = x * 3
    z.retain_grad()
    (y + z).sum().backward()
    return x.grad, z.grad, z.retains_grad, y.retains_grad


@case
def flags(m):
    x = leaf(m)
    y = x * 2
    d = y.detach()
    return [t.requires_grad for t in (x, y, d)] + [t.is_leaf for t in (x, y, d)] + [d.grad_fn is None]


@case
def create_graph_to_the_third_order(m):
    x = leaf(m)
    y = (x**4).sum()
    derivatives = []
    for _ in range(3):
        (y,) = m.autograd.grad(y.sum(), x, create_graph=True)
        derivatives.append(y)
    return derivatives


@case
def backward_with_create_graph(m):
    x = leaf(m)
    (x**3).sum().backward(create_graph=True)
    first = x.grad.clone()
    x.grad = None
    first.sum().backward()
    return first, x.grad


@case
def grad_of_unused_input_raises(m):
    return m.autograd.grad((leaf(m) * 2).sum(), leaf(m))


@case
def grad_of_unused_input_allowed(m):
    return m.autograd.grad((leaf(m) * 2).sum(), leaf(m), allow_unused=True)


@case
def grad_of_unused_input_as_zeros(m):
    return m.autograd.grad((leaf(m) * 2).sum(), leaf(m), materialize_grads=True)


@case
def grad_does_not_touch_leaves(m):
    x = leaf(m)
    (g,) = m.autograd.grad((x * x).sum(), x)
    return g, x.grad is None


@case
def grad_of_an_intermediate(m):
    x = leaf(m)
    y = x * 2
    return m.autograd.grad((y * y).sum(), [y, x])


@case
def grad_of_the_output_itself(m):
    x = leaf(m)
    y = (x * 2).sum()
    return m.autograd.grad(y, y)


@case
def grad_of_several_outputs(m):
    x = leaf(m)
    return m.autograd.grad([x.sum(), (x * x).sum()], [x])


@case
def backward_into_chosen_inputs(m):
    x, w = leaf(m), leaf(m)
    (x * w).sum().backward(inputs=[x])
    return x.grad, w.grad is None


@case
def autograd_backward_of_several(m):
    x = leaf(m)
    m.autograd.backward([x * 2, (x * x).sum()], [m.ones(4, dtype=m.float64), None])
    return x.grad


@case
def diamond(m):
    x = leaf(m)
    y = x * x
    return gradient(m, x, y * y + y.sin() + x)


@case
def same_tensor_on_both_sides(m):
    x = leaf(m)
    return gradient(m, x, x * x + x / x - x @ x)


@case
def gradient_takes_the_dtype_of_the_leaf(m):
    x = m.ones(2, dtype=m.float16, requires_grad=True)
    (x.to(m.float64) * 3).sum().backward()
    return x.grad


@case
def broadcast_gradient_is_summed(m):
    x, b = m.ones(2, 3, requires_grad=True), m.ones(3, requires_grad=True)
    (x * b + b).sum().backward()
    return x.grad, b.grad


@case
def assigned_gradient_must_fit(m):
    leaf(m).grad = m.ones(3, dtype=m.float64)


@case
def assigned_gradient_must_have_the_dtype(m):
    leaf(m).grad = m.ones(4, dtype=m.float32)


@case
def no_grad_records_nothing(m):
    x = leaf(m)
    with m.no_grad():
        y = x * 2
        with m.enable_grad():
            z = x * 3
    return y.requires_grad, z.requires_grad, y.grad_fn is None


@case
def no_grad_as_decorator(m):
    @m.no_grad()
    def double(x):
        return x * 2

    return double(leaf(m)).requires_grad, m.is_grad_enabled()


@case
def grad_mode_returns_after_an_error(m):
    try:
        with m.no_grad():
            raise ValueError
    except ValueError:
        return m.is_grad_enabled()


@case
def set_grad_enabled(m):
    x = leaf(m)
    with m.set_grad_enabled(False):
        off = (x * 2).requires_grad
    m.set_grad_enabled(False)
    also_off = (x * 2).requires_grad
    m.set_grad_enabled(True)
    return off, also_off, (x * 2).requires_grad


@case
def inference_tensors_cannot_be_saved_for_backward(m):
    with m.inference_mode():
        y = m.ones(4, dtype=m.float64)
    return y.is_inference(), leaf(m) * y


@case
def inference_tensors_cannot_be_written_outside(m):
    with m.inference_mode():
        y = m.ones(4)
    y.add_(1)


@pytest.mark.parametrize("snippet", case.values(), ids=list(case))
def test_case(snippet):
    agree(snippet)
