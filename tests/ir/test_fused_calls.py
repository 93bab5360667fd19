"""`@fused`: all sizes, other ways of running, and what cannot be fused."""

import threading
import warnings

import numpy as np
import pytest

import wayfare as wf
from tests.ir.cases import chain, layer_norm, standardized, tensor
from wayfare.api.fused import NotFusable, fused
from wayfare.codegen.runtime import kernel
from wayfare.core.counters import counted
from wayfare.core.dispatch import tensor_ops

# -- sizes -----------------------------------------------------------------------------------------------------------


def test_two_traces_serve_all_sizes():
    call = fused(layer_norm)
    for i, (n, c) in enumerate((n, 2 * n + 3) for n in range(2, 24)):
        inputs = [tensor(n, c), tensor(c), tensor(c)]
        with counted() as count:
            made = call(*inputs)
            made.sum().backward()
        plain = [t.detach().clone().requires_grad_() for t in inputs]
        layer_norm(*plain).sum().backward()
        np.testing.assert_allclose(inputs[0].grad.numpy(), plain[0].grad.numpy(), atol=1e-10)
        if i >= 2:
            assert count.kernels_built == count.kernels_loaded == 0
    assert call.traces == 2


def test_a_size_in_the_arithmetic_follows_the_sizes():
    call = fused(lambda x: x * x.shape[0] / (x.shape[1] + 1) + x.mean())
    for n, c in ((3, 4), (5, 7), (6, 2), (9, 11)):
        x = tensor(n, c, grad=False)
        np.testing.assert_allclose(call(x).numpy(), x.numpy() * n / (c + 1) + x.numpy().mean(), atol=1e-12)
    assert call.traces == 2


def test_a_root_of_a_size_is_taken_for_each_size():
    call = fused(lambda x: x / float(x.shape[1]) ** 0.5)
    for n, c in ((3, 4), (5, 4), (6, 4), (6, 9), (7, 9), (8, 4)):
        x = tensor(n, c, grad=False)
        np.testing.assert_allclose(call(x).numpy(), x.numpy() / c**0.5, atol=1e-12)


def test_a_branch_on_a_size_is_followed():
    call = fused(lambda x: x * 2 if x.shape[0] > 10 else x - 1)
    for n in (3, 4, 11, 5, 12, 20, 6, 10):
        x = tensor(n, 2, grad=False)
        np.testing.assert_allclose(call(x).numpy(), x.numpy() * 2 if n > 10 else x.numpy() - 1)
    assert call.traces <= 4


def test_a_loop_over_a_size_is_right_for_every_size():
    def function(x):
        total = x[0]
        for i in range(1, x.shape[0]):
            total = total * 0.5 + x[i]
        return total

    call = fused(function)
    for n, c in ((3, 4), (4, 4), (3, 5), (4, 6), (6, 6), (3, 4), (2, 9), (5, 5)):
        x = tensor(n, c)
        y = x.detach().clone().requires_grad_()
        made, plain = call(x), function(y)
        np.testing.assert_allclose(made.detach().numpy(), plain.detach().numpy(), atol=1e-12)
        made.sum().backward()
        plain.sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), atol=1e-12)


def test_reshapes_by_sizes_follow_the_sizes():
    call = fused(lambda x: (x.reshape(x.shape[0], -1, 2) * 2).sum(1).tanh())
    for n, c in ((3, 4), (5, 6), (7, 10)):
        x = tensor(n, c, grad=False)
        np.testing.assert_allclose(call(x).numpy(), np.tanh((x.numpy().reshape(n, -1, 2) * 2).sum(1)), atol=1e-12)
    assert call.traces == 2


def test_sizes_of_1_and_equal_sizes_are_other_structures():
    call = fused(lambda a, b: (a + b).sum(0))
    shapes = [((3, 4), (3, 4)), ((3, 4), (1, 4)), ((3, 4), (4,)), ((4, 4), (4,)), ((1, 4), (3, 1)), ((1, 1), (1,))]
    for first, second in shapes:
        a, b = tensor(*first, grad=False), tensor(*second, grad=False)
        np.testing.assert_allclose(call(a, b).numpy(), (a + b).sum(0).numpy(), atol=1e-12)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0,)])
def test_zero_sizes(shape):
    call = fused(lambda x: x.tanh().sum(-1) * 2)
    x = tensor(*shape)
    out = call(x)
    assert tuple(out.shape) == shape[:-1]
    out.sum().backward()
    assert tuple(x.grad.shape) == shape


# -- other ways of running -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_dims", [(0, None, None), (1, 0, None), (0, 0, 0)])
def test_vmap_over_a_fused_function(in_dims):
    sizes = {None: lambda *s: s, 0: lambda *s: (5, *s), 1: lambda *s: (s[0], 5, *s[1:])}
    inputs = [tensor(*sizes[d](*s)) for d, s in zip(in_dims, ((3, 4), (4,), (4,)), strict=True)]
    made = wf.vmap(fused(layer_norm), in_dims=in_dims)(*inputs)
    plain = wf.vmap(layer_norm, in_dims=in_dims)(*inputs)
    np.testing.assert_allclose(made.detach().numpy(), plain.detach().numpy(), atol=1e-12)


@pytest.mark.parametrize("batched", [(True, False, False), (False, True, True), (True, True, True)])
def test_the_batch_rule(batched):
    inputs = [tensor(*((5, *s) if b else s), grad=False) for b, s in zip(batched, ((3, 4), (4,), (4,)), strict=True)]
    one = [tensor(*s) for s in ((3, 4), (4,), (4,))]
    op = fused(layer_norm).traced(*one).op
    made = op.batch(tensor_ops, 5, tuple(inputs), batched, {})
    pairs = list(zip(inputs, batched, strict=True))
    rows = [op.forward(*(t.numpy()[i] if b else t.numpy() for t, b in pairs)) for i in range(5)]
    for k, out in enumerate(made):
        np.testing.assert_allclose(out.numpy(), np.stack([r[k] for r in rows]), atol=1e-12)


def test_the_shape_rule():
    inputs = [tensor(3, 4), tensor(4), tensor(4)]
    op = fused(layer_norm).traced(*inputs).op
    specs = op.infer(*(t.spec for t in inputs))
    assert specs[0] == layer_norm(*inputs).spec


def test_fused_inside_fused_is_one_program():
    inner = fused(lambda x: x.tanh() * 2)
    outer = fused(lambda x: inner(x) + inner(x + 1))
    x = tensor(4, 5)
    outer(x)
    with counted() as count:
        out = outer(x)
    assert count.kernels_run == 1
    value = x.detach().numpy()
    np.testing.assert_allclose(out.detach().numpy(), 2 * np.tanh(value) + 2 * np.tanh(value + 1), atol=1e-12)


def test_jacobians_of_a_fused_function():
    x = tensor(3, 4)
    made = wf.func.jacrev(fused(standardized))(x.detach())
    plain = wf.func.jacrev(standardized)(x.detach())
    np.testing.assert_allclose(made.numpy(), plain.numpy(), atol=1e-10)


# -- what cannot be fused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x * 2 if x.sum() > 0 else x, "bool\\(\\) looks at the numbers"),
        (lambda x: x * x.sum().item(), "item\\(\\) looks at the numbers"),
        (lambda x: (x * 2).add_(1), "writes in place"),
        (lambda x: x + wf.rand_like(x) * 0, "draws random numbers|needs the numbers"),
        (lambda x: (x, 3), "returns something other than tensors"),
    ],
)
def test_what_cannot_be_fused_runs_as_plain_python(function, why):
    call = fused(function)
    x = tensor(3, 4, grad=False)
    with pytest.warns(UserWarning, match=why):
        made = call(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = call(x)
    expected = function(x)
    for out in (made, again):
        first = out[0] if isinstance(out, tuple) else out
        np.testing.assert_allclose(first.numpy(), (expected[0] if isinstance(expected, tuple) else expected).numpy())
    with pytest.raises(NotFusable, match="runs as plain Python"):
        call.program(x)


def test_without_kernels_it_is_the_function(monkeypatch):
    monkeypatch.setattr(kernel, "available", lambda: False)
    x = tensor(4, 5)
    call = fused(standardized)
    made = call(x)
    assert call.traces == 0 and made.grad_fn.name() != "StandardizedBackward0"
    np.testing.assert_allclose(made.detach().numpy(), standardized(x).detach().numpy())


def test_an_argument_that_cannot_be_hashed_is_no_hindrance():
    call = fused(lambda x, where: x[sorted(where)] * 2)
    x = tensor(4, 5, grad=False)
    np.testing.assert_allclose(call(x, {3, 1}).numpy(), x.numpy()[[1, 3]] * 2)


def test_an_error_of_the_function_is_its_own():
    call = fused(lambda a, b: a + b)
    with pytest.raises(wf.errors.ShapeError, match=r"\[3, 4\] and \[5\] do not broadcast"):
        call(tensor(3, 4), tensor(5))


def test_a_long_chain_becomes_several_kernels():
    def function(x):
        for i in range(150):
            x = x * 0.9 + (0.1 * i - x) * 0.05
        return x.exp()

    x = tensor(4, 5)
    call = fused(function)
    made = call(x)
    np.testing.assert_allclose(made.detach().numpy(), function(x).detach().numpy(), atol=1e-10)
    made.sum().backward()
    y = x.detach().clone().requires_grad_()
    function(y).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), atol=1e-10)
    assert 1 < len(call.traced(x).forward.kernels) < 10


def test_threads_share_a_fused_function():
    call = fused(chain)
    inputs = [tensor(16, 24), tensor(24), tensor(16, 1)]
    expected = chain(*inputs).detach().numpy()
    failures = []

    def work():
        for _ in range(20):
            if not np.allclose(call(*inputs).detach().numpy(), expected, atol=1e-10):
                failures.append("differs")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == [] and call.traces == 1


def test_an_error_for_some_sizes_does_not_end_fusion():
    def function(x):
        if x.shape[0] < 3:
            raise ValueError("too short")
        return x.tanh() * 2

    call = fused(function)
    with pytest.raises(ValueError, match="too short"):
        call(tensor(2, 4))
    x = tensor(5, 4)
    call(x)
    with counted() as count:
        call(x)
    assert count.kernels_run == 1
    with pytest.raises(ValueError, match="too short"):
        call(tensor(2, 4))


def test_the_program_as_text():
    call = fused(layer_norm)
    inputs = [tensor(3, 4), tensor(4), tensor(4)]
    text = call.program(*inputs)
    assert "program layer_norm(in0: f64[3,4]" in text
    assert "r0 = sum(x0)" in text
    assert "program layer_norm_backward" in text
    assert "kept for the gradient" in text
    call(*inputs)
    assert "traced 1 times" in call.explain()


@pytest.mark.parametrize("function, missing, harmless", [
    (lambda x: (x.exp(), x.sin()), 0, False),
    (lambda x: (x.exp(), x.exp().tanh() * x), 0, False),  # computed twice in the trace
    (lambda x: (c := x.exp(), c.tanh() * x), 0, True),
    (lambda x: (c := x.exp(), c.tanh() * x), 1, False),
    (lambda x: (c := x.exp(), c.detach().tanh() * x), 0, False),
])  # fmt: skip
def test_a_gradient_may_be_missing_where_the_other_output_is_computed_from_that_one(function, missing, harmless):
    """Elsewhere zero times infinity would be NaN: here exp(x) is infinite."""
    x = wf.tensor([800.0, 1.0], dtype=wf.float64, requires_grad=True)
    call = fused(function)
    record = call.traced(x)
    assert record.may_be_zero([k == missing for k in range(2)]) == harmless
    with np.errstate(over="ignore"):
        used = 1 - missing
        (got,) = wf.autograd.grad(call(x)[used].sum(), x)
        (want,) = wf.autograd.grad(function(x)[used].sum(), x)
    np.testing.assert_allclose(got.numpy(), want.numpy())
