"""`@fused`: programs, values, gradients, arguments, dtypes and layouts."""

import numpy as np
import pytest

import wayfare as wf
from tests.ir.cases import CASES, chain, layer, layer_norm, standardized, tensor
from wayfare.api.fused import fused
from wayfare.autograd.gradcheck import gradcheck, gradgradcheck
from wayfare.core.counters import counted


def both_ways(function, *inputs, **options):
    """(values and gradients of the function, the same of the fused function, kernels forward, kernels backward)."""
    call = fused(function)
    call(*inputs, **options)
    found = []
    counts = []
    for f in (function, call):
        leaves = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
        with counted() as forward:
            made = f(*leaves, **options)
        outputs = made if isinstance(made, tuple) else (made,)
        grads = [wf.tensor(np.random.default_rng(i).normal(size=tuple(o.shape)).astype(o.dtype.numpy))
                 for i, o in enumerate(outputs)]  # fmt: skip
        with counted() as backward:
            wf.autograd.backward(outputs, grads)
        found.append([o.detach().numpy() for o in outputs] + [t.grad.numpy() for t in leaves if t.requires_grad])
        counts += [forward.kernels_run, backward.kernels_run]
    return found[0], found[1], counts[2], counts[3], call


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_values_gradients_and_kernels(name, dtype):
    function, shapes, forward, backward = CASES[name]
    plain, made, ran, ran_back, _ = both_ways(function, *(tensor(*s, dtype=dtype) for s in shapes))
    for a, b in zip(plain, made, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-10 if dtype == np.float64 else 2e-5)
    assert (ran, ran_back) == (forward, backward)


def test_ten_ops_are_one_kernel_each_way():
    inputs = [tensor(16, 24, seed=i) for i in range(3)]
    _, _, forward, backward, call = both_ways(chain, *inputs)
    assert (forward, backward) == (1, 1)
    made = call.traced(*inputs)
    assert len(made.forward.steps) == 1 and len(made.backward.steps) == 1
    assert not made.hidden


def test_a_matrix_product_is_followed_by_one_kernel_in_its_own_memory():
    inputs = [t.detach() for t in (tensor(8, 12), tensor(24, 12), tensor(24), tensor(8, 24))]
    call = fused(layer)
    program = call.traced(*inputs).forward
    assert [type(s).__name__ for s in program.steps] == ["OpStep", "KernelStep"]
    assert program.steps[0].step.name == "linear_plain"
    np.testing.assert_allclose(call(*inputs).numpy(), layer(*inputs).numpy(), atol=1e-12)


@pytest.mark.parametrize("function", [
    lambda a, b: wf.einsum("ij->ji", a).tanh() * 2,
    lambda a, b: a.T.tanh() + 1,
    lambda a, b: [(z := a @ b).tanh() * 2, z.T.contiguous()],
    lambda a, b: [(z := a @ b).tanh() * 2, z.T[1:] * 3],
    lambda a, b: [(z := a @ b) + 1, z * 2, z.sum(0)],
    lambda a, b: [(a @ b).tanh() + a @ b],
])  # fmt: skip
def test_nothing_is_written_over_that_is_still_wanted(function):
    a, b = tensor(4, 4, grad=False), tensor(4, 4, grad=False, seed=1)
    before = a.numpy().copy(), b.numpy().copy()
    expected, made = function(a, b), fused(function)(a, b)
    for x, y in zip(expected, made, strict=True):
        np.testing.assert_allclose(y.numpy(), x.numpy(), atol=1e-12)
    np.testing.assert_array_equal(a.numpy(), before[0])
    np.testing.assert_array_equal(b.numpy(), before[1])


def test_one_node_with_the_functions_name():
    x = tensor(3, 4)
    y = fused(standardized)(x)
    assert y.grad_fn.name() == "StandardizedBackward0"
    assert y.grad_fn.next_functions[0][0].variable is x


def test_without_gradients_nothing_is_kept():
    call = fused(layer_norm)
    inputs = [tensor(8, 12), tensor(12), tensor(12)]
    with wf.no_grad():
        out = call(*inputs)
        assert call.traced(*inputs).hidden == []
    assert not out.requires_grad
    assert call.traced(*inputs).hidden
    plain = [t.detach() for t in inputs]
    assert call.traced(*plain).backward is None


def test_a_gradient_for_some_inputs_only():
    x, w = tensor(8, 12), tensor(12, grad=False)
    call = fused(lambda x, w: (x * w).tanh())
    call(x, w).sum().backward()
    assert w.grad is None
    y = x.detach().clone().requires_grad_()
    (y * w).tanh().sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), atol=1e-12)


def test_linear_functions_keep_no_input():
    x, b = tensor(8, 12), tensor(12)
    call = fused(lambda x, b: x * 3 + b)
    y = call(x, b)
    with wf.no_grad():
        x.add_(1)
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.full((8, 12), 3.0))
    np.testing.assert_allclose(b.grad.numpy(), np.full(12, 8.0))


def test_an_input_that_the_gradient_does_not_need_may_be_written():
    x, b = tensor(8, 12), tensor(12, grad=False)
    y = fused(lambda x, b: (x - b).tanh() * 0 + x.exp() + b)(x, b)
    z = fused(lambda x, b: x.exp() - b)(x, b)
    b.add_(1)
    z.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.exp(x.detach().numpy()), atol=1e-12)
    with pytest.raises(wf.errors.InPlaceError):
        y.sum().backward()


def test_a_write_to_what_is_kept_is_noticed():
    x = tensor(8, 12)
    y = fused(lambda x: x.tanh().exp())(x)
    with wf.no_grad():
        x.add_(1)
    with pytest.raises(wf.errors.InPlaceError):
        y.sum().backward()


@pytest.mark.parametrize("name", ["chain", "softmax", "layer_norm", "gates", "layer", "standardized"])
def test_gradients_of_any_order(name):
    function, shapes, _, _ = CASES[name]
    small = {16: 3, 24: 4, 8: 2, 12: 3, 48: 12}
    inputs = tuple(tensor(*(small.get(n, n) for n in s)) for s in shapes)
    call = fused(function)
    assert gradcheck(call, inputs)
    assert gradgradcheck(call, inputs)


def test_the_same_tensor_twice():
    x = tensor(8, 12)
    call = fused(lambda a, b: a * b + a)
    call(x, x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * x.detach().numpy() + 1, atol=1e-12)


def test_an_output_that_is_an_input_or_a_view_is_a_copy():
    x = tensor(3, 4)
    same, turned, other = fused(lambda x: (x, x.T, x * 1))(x)
    for out in (same, turned):
        assert not np.may_share_memory(out.detach().numpy(), x.detach().numpy())
    (same.sum() + (turned * 2).sum() + other.sum()).backward()
    np.testing.assert_allclose(x.grad.numpy(), np.full((3, 4), 4.0))


def test_an_output_of_integers_beside_one_of_floats():
    x = tensor(5, 7)
    top, where = fused(lambda x: (x.amax(1) * 2, x.argmax(1)))(x)
    assert where.dtype is wf.int64 and not where.requires_grad
    np.testing.assert_array_equal(where.numpy(), x.detach().numpy().argmax(1))
    top.sum().backward()
    assert float(x.grad.sum()) == pytest.approx(10)


def test_an_unused_output_has_no_gradient():
    x = tensor(5, 7)
    a, _ = fused(lambda x: (x.tanh(), x.exp()))(x)
    a.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 1 - np.tanh(x.detach().numpy()) ** 2, atol=1e-12)


# -- arguments -------------------------------------------------------------------------------------------------------


def test_structures_of_tensors_go_in_and_come_out():
    call = fused(lambda pair, *, more: {"sum": pair[0] + pair[1], "rest": [more["a"] * 2]})
    a, b = tensor(3, 4), tensor(4)
    out = call((a, b), more={"a": b})
    np.testing.assert_allclose(out["sum"].detach().numpy(), (a + b).detach().numpy())
    np.testing.assert_allclose(out["rest"][0].detach().numpy(), 2 * b.detach().numpy())


def test_a_named_tuple_comes_out_as_one():
    x = tensor(3, 4)
    made = fused(lambda x: (x * 2).max(1))(x)
    np.testing.assert_allclose(made.values.detach().numpy(), 2 * x.detach().numpy().max(1))
    np.testing.assert_array_equal(made.indices.numpy(), x.detach().numpy().argmax(1))


def test_a_float_argument_is_no_part_of_the_program():
    call = fused(lambda x, rate: x.tanh() * rate + rate / 2)
    x = tensor(8, 12)
    with counted() as count:
        for rate in (0.5, 0.25, 0.125, 3.0, -1.0):
            np.testing.assert_allclose(call(x, rate).detach().numpy(), np.tanh(x.detach().numpy()) * rate + rate / 2)
    assert call.traces == 2
    assert count.kernels_built + count.kernels_loaded <= 1


def test_a_branch_on_a_float_argument_is_followed():
    call = fused(lambda x, rate: x * rate if rate > 0 else x - 1)
    x = tensor(8, 12, grad=False)
    for rate in (0.5, 2.0, -1.0, -2.0, 4.0):
        np.testing.assert_allclose(call(x, rate).numpy(), (x * rate if rate > 0 else x - 1).numpy())


def test_other_arguments_choose_the_trace():
    call = fused(lambda x, how, times: x * times if how == "mul" else x + times)
    x = tensor(2, 3, grad=False)
    np.testing.assert_allclose(call(x, "mul", 3).numpy(), x.numpy() * 3)
    np.testing.assert_allclose(call(x, "add", 3).numpy(), x.numpy() + 3)
    np.testing.assert_allclose(call(x, "mul", 2).numpy(), x.numpy() * 2)


def test_tensors_from_outside_have_gradients_and_show_writes():
    w = tensor(12)
    call = fused(lambda x: (x * w).tanh())
    x = tensor(8, 12, grad=False)
    call(x).sum().backward()
    v = w.detach().clone().requires_grad_()
    (x * v).tanh().sum().backward()
    np.testing.assert_allclose(w.grad.numpy(), v.grad.numpy(), atol=1e-12)
    with wf.no_grad():
        w.mul_(2)
    np.testing.assert_allclose(call(x).detach().numpy(), np.tanh(x.numpy() * w.detach().numpy()), atol=1e-12)


def test_detach_and_no_grad_inside_cut_the_gradient():
    def function(x):
        with wf.no_grad():
            fixed = x.exp()
        return x * x.detach() + x * fixed

    x = tensor(4, 5)
    fused(function)(x).sum().backward()
    value = x.detach().numpy()
    np.testing.assert_allclose(x.grad.numpy(), value + np.exp(value), atol=1e-12)


def test_a_method_is_fused_per_instance_of_its_weights():
    class Scale:
        def __init__(self, weight):
            self.weight = weight

        @fused
        def __call__(self, x):
            return x * self.weight

    x = tensor(3, 4, grad=False)
    for factor in (2.0, 3.0):
        np.testing.assert_allclose(Scale(wf.tensor(factor, dtype=wf.float64))(x).numpy(), x.numpy() * factor)


# -- dtypes and layouts ----------------------------------------------------------------------------------------------


def test_dtypes_mix_as_they_do_unfused():
    def function(x, n, mask):
        return wf.where(mask, x * n, n + 1), (n * 2).sum(), mask & (n > 3), x.double() + n

    x = tensor(3, 4, dtype=np.float32, grad=False)
    n = wf.arange(12).reshape(3, 4)
    mask = x > 0
    for a, b in zip(fused(function)(x, n, mask), function(x, n, mask), strict=True):
        assert a.dtype is b.dtype
        np.testing.assert_allclose(a.numpy(), b.numpy())


def test_halves_are_computed_in_single_precision():
    x = tensor(64, 64, dtype=np.float16)
    out = fused(standardized)(x)
    assert out.dtype is wf.float16
    out.sum().backward()
    assert x.grad.dtype is wf.float16
    exact = standardized(x.detach().double()).numpy()
    np.testing.assert_allclose(out.detach().numpy().astype(float), exact, atol=2e-3)


@pytest.mark.parametrize("turn", [
    lambda a: a[::2, ::-1], lambda a: a.T, lambda a: np.broadcast_to(a[:1], a.shape), lambda a: a[1:, 3:],
    lambda a: np.asfortranarray(a),
])  # fmt: skip
def test_layouts(turn):
    a = np.random.default_rng(0).normal(size=(24, 24))
    x = wf.from_numpy(turn(a))
    w = wf.tensor(np.arange(x.shape[1]) * 0.1)
    functions = (lambda x, w: (x * w).tanh().sum(1), lambda x, w: (x * w).exp() - x, lambda x, w: wf.softmax(x * w, 0))
    for function in functions:
        np.testing.assert_allclose(fused(function)(x, w).numpy(), function(x, w).numpy(), atol=1e-12)


def test_an_output_that_is_not_used_gives_no_gradient():
    """Its gradient is none, not zero: zero times the infinite slope of sqrt would be NaN."""

    def two(x):
        return (x.tanh() + x.sin()).sum(), (x - x).sqrt()

    x = wf.tensor([0.5, 1.0, 2.0], requires_grad=True)
    two(x)[0].backward()
    wanted, x.grad = x.grad, None
    wf.fused(two)(x)[0].backward()
    wf.testing.assert_close(x.grad, wanted)
    (first,) = wf.autograd.grad(wf.fused(two)(x)[0], x, create_graph=True)
    (second,) = wf.autograd.grad(first.sum(), x)
    assert second.isfinite().all()


def test_the_gradient_of_a_slice_goes_through_a_product_if_an_output_is_not_used():
    """The unused output has an infinite slope, so the gradient is made op by op: that of a slice is sparse there."""

    def two(x, w):
        a, b = (x @ w).chunk(2, -1)
        return a.tanh(), (b * 1e3).exp()

    x, w = (wf.ones(*shape, requires_grad=True, dtype=wf.float64) for shape in ((3, 4), (4, 6)))
    wanted = wf.autograd.grad(two(x, w)[0].sum(), [x, w])
    for mine, its in zip(wf.autograd.grad(wf.fused(two)(x, w)[0].sum(), [x, w]), wanted, strict=True):
        wf.testing.assert_close(mine, its)


def test_what_only_an_unused_output_depends_on_has_no_gradient():
    x, a, b = (wf.ones(3, 3, requires_grad=True) for _ in range(3))
    fused(lambda x, a, b: ((x @ a).tanh(), (x.detach() @ b).sin()))(x, a, b)[0].sum().backward()
    assert a.grad is not None and b.grad is None
    x.grad = None
    fused(lambda x, a, b: ((x @ a).tanh(), (x.detach() @ b).sin()))(x, a, b)[1].sum().backward()
    assert x.grad is None and b.grad is not None
