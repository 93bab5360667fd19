"""Plans of whole models, forward and backward, agree with the same op by op."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import wayfare as wf
import wayfare.nn.functional as F
from tests.ir.plan_cases import check, eager, input_grads, planned, traced
from tests.ir.test_random_graphs import graphs, run
from wayfare.api.fused import fused
from wayfare.codegen.runtime import kernel
from wayfare.core.counters import counted
from wayfare.core.op import REGISTRY
from wayfare.ir.graph import leaf, record
from wayfare.ir.plan.actions import KernelAction
from wayfare.ir.plan.plan import Plan


def some(*shape, dtype="f4", seed=0, scale=0.3):
    return np.asarray(np.random.default_rng([seed, *shape]).normal(size=shape) * scale, dtype)


def mlp(x, target, *weights):
    for w, b in zip(weights[:-2:2], weights[1:-2:2], strict=True):
        x = F.linear(x, w, b).relu()
    return F.cross_entropy(F.linear(x, *weights[-2:]), target)


def layers(*sizes):
    return [a for m, n in pairwise(sizes) for a in (some(n, m), some(n))]


@pytest.mark.parametrize(("batch", "sizes"), [(32, (16, 32, 32, 4)), (1, (3, 1, 2)), (7, (5, 6, 1, 3))])
def test_a_perceptron(batch, sizes):
    target = np.random.default_rng(0).integers(0, sizes[-1], size=batch)
    plan = check(mlp, [some(batch, sizes[0]), target, *layers(*sizes)], [False, False, *[True] * (2 * len(sizes) - 2)])
    # What checks the classes is all that is left in Python.
    assert plan.python_steps == 1 and plan.lists <= 2


def transformer_block(x, qkv, qkv_bias, out, out_bias, up, up_bias, down, down_bias, scale, shift):
    batch, time, width = x.shape
    heads = F.linear(x, qkv, qkv_bias).reshape(batch, time, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
    x = x + F.linear(mixed.permute(0, 2, 1, 3).reshape(batch, time, width), out, out_bias)
    x = F.layer_norm(x, (width,), scale, shift)
    return x + F.linear(F.gelu(F.linear(x, up, up_bias)), down, down_bias)


def test_a_transformer_block():
    d = 16
    weights = [some(3 * d, d), some(3 * d), some(d, d), some(d), some(4 * d, d), some(4 * d), some(d, 4 * d), some(d),
               some(d) + 1, some(d)]  # fmt: skip
    check(lambda *a: (transformer_block(*a) ** 2).mean(), [some(2, 5, d), *weights])


def test_a_convolution_with_norm_and_pooling():
    def net(x, w, b, scale, shift):
        x = F.conv2d(x, w, b, padding=1)
        mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), keepdim=True, correction=0)
        x = ((x - mean) / (var + 1e-5).sqrt() * scale + shift).relu()
        return F.max_pool2d(x, 2).flatten(1).softmax(1).pow(2).sum()

    check(net, [some(3, 2, 8, 8), some(4, 2, 3, 3), some(4), some(1, 4, 1, 1), some(1, 4, 1, 1)])


def lstm(x, h, c, wi, wh, bi, bh, length):
    for t in range(length):
        gates = F.linear(x[t], wi, bi) + F.linear(h, wh, bh)
        i, f, g, o = gates.chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    return h, c


def lstm_arrays(length, batch=3, given=5, hidden=4):
    return [some(length, batch, given), some(batch, hidden), some(batch, hidden), some(4 * hidden, given),
            some(4 * hidden, hidden), some(4 * hidden), some(4 * hidden)]  # fmt: skip


def kernels_of(plan):
    return {action.kernel for action in plan._actions if isinstance(action, KernelAction)}


def test_a_long_loop_of_cells_has_the_kernels_of_a_short_one():
    short = check(lambda *a: lstm(*a, length=6), lstm_arrays(6))
    with counted() as counts:
        long = check(lambda *a: lstm(*a, length=30), lstm_arrays(30))
    assert counts.kernels_built == counts.kernels_loaded == 0
    if kernel.available():
        assert kernels_of(long) == kernels_of(short) and len(kernels_of(short)) <= 15
        assert long.python_steps == 0 and long.lists == 1


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i8", "i4", "u1", "?"])
def test_every_dtype(dtype):
    x = np.random.default_rng(0).integers(0, 5, size=(4, 6)).astype(dtype)

    def work(x):
        y = x + x
        return y, x.sum(0), x.amax(1), (x == x).any(1), x * 2 - 1, y.int().argmax(0), wf.cat([x, y], 1)

    check(work, [x])


def test_halves_are_computed_in_single_precision():
    check(lambda x, w: F.layer_norm(F.linear(x, w).tanh(), (8,)), [some(4, 6, dtype="f2"), some(8, 6, dtype="f2")])


def test_dtypes_meet():
    check(lambda x, y: x.double() * y + x.half().float(), [some(3, 4), some(3, 4, dtype="f8")], tolerance=1e-3)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 1), (1, 5), (5, 1), ()])
def test_sizes_of_zero_and_one(shape):
    def work(x):
        y = x.exp() * 2
        return y, y.sum(), y.reshape(-1), wf.cat([y.reshape(-1), x.reshape(-1)], 0).sum(), (y * x).sum().tanh()

    check(work, [some(*shape)])


def test_products_with_sizes_of_zero():
    check(lambda a, b: a @ b, [some(3, 0), some(0, 2)])
    check(lambda a, b: a @ b + 1, [some(0, 3), some(3, 2)])


@pytest.mark.parametrize("shapes", [
    ((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 2)), ((2, 3, 4), (4,)), ((4,), (2, 3, 4, 2)), ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((2, 3, 4), (2, 4, 1)), ((6, 2, 3, 4), (6, 2, 4, 5)),
])  # fmt: skip
def test_products_of_vectors_matrices_and_stacks(shapes):
    check(lambda a, b: a @ b, [some(*shapes[0]), some(*shapes[1])])


LIES = {
    "turned": lambda a: a.T, "backwards": lambda a: a[::-1], "with gaps": lambda a: a[:, ::2],
    "stretched": lambda a: np.broadcast_to(a[:1], a.shape),
}  # fmt: skip


@pytest.mark.parametrize("how", LIES)
@pytest.mark.parametrize("planned_so", [True, False])
def test_inputs_that_lie_in_any_way(how, planned_so):
    def work(x, y):
        return (x @ y.t()).tanh() + x.sum(), x.reshape(-1) * 2, x * y, x[1:].exp().t()

    x = LIES[how](some(6, 6))
    y = some(*x.shape, seed=1)
    plan = planned(work, [x if planned_so else np.array(x), y])
    for got, want in zip(plan.run([x, y]), eager(work, [x, y]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_constants_and_numbers_are_part_of_a_plan():
    (v,) = [leaf("input", 0, (3,), np.dtype("f4"))]
    constant = leaf("array", np.arange(3, dtype="f4"), (3,), np.dtype("f4"))
    made = record(REGISTRY["add"], [v, constant], {}) * 2.5
    x = some(3)
    first, second = Plan("sum", [v], [made, constant], [], [x]).run([x])
    np.testing.assert_allclose(first, (x + np.arange(3)) * 2.5, rtol=1e-6)
    np.testing.assert_array_equal(second, np.arange(3))


@pytest.mark.skipif(not kernel.available(), reason="functions are fused only with native code")
def test_a_fused_function_is_taken_apart():
    @fused
    def both(x, y, scale):
        z = (x * y).tanh() * scale
        return z.sum(0), z.softmax(1)

    x, y = some(4, 5), some(4, 5, seed=1)
    tensors = [wf.tensor(a, requires_grad=True) for a in (x, y)]
    op = both.traced(*tensors, 1.5).op
    inputs = [leaf("input", i, (4, 5), np.dtype("f4")) for i in range(2)]
    outputs = record(op, inputs, {"numbers": (1.5,)})[:2]
    plan = Plan("both", inputs, [*outputs, *input_grads(outputs, inputs)], [], [x, y])
    assert plan.python_steps == 0
    for got, want in zip(plan.run([x, y]), eager(lambda x, y: both.function(x, y, 1.5), [x, y]), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_a_recorded_shape_may_leave_a_size_open():
    x = some(6, 2)
    (v,) = [leaf("input", 0, x.shape, x.dtype)]
    made = record(REGISTRY["reshape"], [v], {"shape": (3, 4)})
    made.step.attrs["shape"] = (3, -1)
    (got,) = Plan("reshape", [v], [made * 2.0], [], [x]).run([x])
    np.testing.assert_array_equal(got, x.reshape(3, 4) * 2)


@pytest.mark.parametrize("number", [0.0, -0.0, 2.5, np.inf])
def test_a_constant_of_one_number_takes_no_memory(number):
    x = some(3, 4)
    v, constant = leaf("input", 0, (3, 4), x.dtype), leaf("array", np.full((3, 4), number, "f4"), (3, 4), x.dtype)
    plan = Plan("constant", [v], [v + constant, constant, record(REGISTRY["copysign"], [v, constant], {})], [], [x])
    assert sum(a.nbytes for a in plan.constants) <= 8
    for got, want in zip(plan.run([x]), (x + number, np.full((3, 4), number), np.copysign(x, number)), strict=True):
        np.testing.assert_array_equal(got, want.astype("f4"))
        assert (np.signbit(got) == np.signbit(want)).all()


def test_an_empty_plan():
    assert Plan("nothing", [], [], [], []).run([]) == []


def test_peak_memory_is_no_more_than_op_by_op():
    """What op by op keeps: every output of the forward pass, and one gradient beside it."""
    sizes = (64, 128, 128, 10)
    x, target = some(256, 64), np.random.default_rng(0).integers(0, 10, size=256)
    arrays = [x, target, *layers(*sizes)]
    plan = check(mlp, arrays, [False, False, *[True] * 6])
    weights = sum(a.nbytes for a in arrays[2:])
    kept = 2 * 256 * 4 * (128 + 128) + 3 * 256 * 4 * 10
    assert plan.peak_bytes <= weights + kept + 2 * 256 * 4 * 128


def test_without_native_code(monkeypatch):
    monkeypatch.setattr(kernel, "_usable", [False])
    plan = check(lambda *a: lstm(*a, length=3), lstm_arrays(3))
    assert plan.kernels == 0
    target = np.array([0, 2, 1])
    check(mlp, [some(3, 4), target, *layers(4, 5, 3)], [False, False, *[True] * 4])


@pytest.mark.skipif(not kernel.available(), reason="there are no kernels without native code")
def test_random_graphs_agree_with_the_same_op_by_op():
    @settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(graphs())
    def agree(case):
        shapes, steps, seed, count = case
        rng = np.random.default_rng(seed)
        arrays = [rng.normal(size=s) for s in shapes]

        def function(*inputs):
            made = run(steps, count, inputs)
            return tuple(made) if isinstance(made, (tuple, list)) else made

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            inputs, outputs = traced(function, arrays, [True] * len(arrays))
            grads = input_grads(outputs, inputs)
            plan = Plan("random", inputs, [*outputs, *(g for g in grads if g is not None)], [], arrays)
            want = eager(function, arrays)
            for got, expected in zip(plan.run(arrays), want, strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-8)

    agree()
