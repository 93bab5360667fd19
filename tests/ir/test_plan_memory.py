"""Plans and memory: inputs that are written, new results, arrays with other strides, failures, threads."""

import threading

import numpy as np
import pytest

import wayfare as wf
import wayfare.nn.functional as F
from tests.ir.plan_cases import check, planned, traced
from wayfare.codegen.runtime.update import Update
from wayfare.core.counters import counted
from wayfare.core.op import REGISTRY
from wayfare.errors import IndexRangeError, ShapeError
from wayfare.ir.fuse.update_op import update_op
from wayfare.ir.graph import Slot, leaf, record, run
from wayfare.ir.plan.plan import Plan

F32 = np.dtype("float32")


def arrays_of(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=s).astype(F32) for s in shapes]


def leaves(arrays):
    return [leaf("input", i, a.shape, a.dtype) for i, a in enumerate(arrays)]


def test_a_write_is_computed_in_place_when_nobody_needs_the_old_values():
    w, g = arrays_of((4, 5), (4, 5))
    vw, vg = leaves([w, g])
    plan = Plan("step", [vw, vg], [], [(0, vw - vg * 0.5)], [w, g])
    want, home = w - g * np.float32(0.5), w.ctypes.data
    assert plan.run([w, g]) == []
    np.testing.assert_allclose(w, want, rtol=1e-6)
    assert w.ctypes.data == home
    assert plan.arena_bytes == 0 and "copy" not in plan.describe()


def test_a_write_whose_old_values_are_read_later_is_copied_at_the_end():
    w, x = arrays_of((4, 4), (4, 4))
    vw, vx = leaves([w, x])
    new = run("tanh", vw + vx)
    later = run("matmul", new, vw)
    plan = Plan("step", [vw, vx], [later], [(0, new)], [w, x])
    want = np.tanh(w + x)
    product = want @ w
    (made,) = plan.run([w, x])
    np.testing.assert_allclose(made, product, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(w, want, rtol=1e-5, atol=1e-6)


def test_two_inputs_exchange_their_values():
    a, b = arrays_of((3,), (3,))
    va, vb = leaves([a, b])
    plan = Plan("swap", [va, vb], [], [(0, vb), (1, va)], [a, b])
    old = a.copy(), b.copy()
    plan.run([a, b])
    np.testing.assert_array_equal(a, old[1])
    np.testing.assert_array_equal(b, old[0])


def test_one_value_written_to_two_inputs_and_handed_out():
    a, b = arrays_of((3, 2), (3, 2))
    va, vb = leaves([a, b])
    both = va * vb
    plan = Plan("both", [va, vb], [both, both], [(0, both), (1, both)], [a, b])
    want = a * b
    made = plan.run([a, b])
    for array in (*made, a, b):
        np.testing.assert_array_equal(array, want)
    assert not np.may_share_memory(made[0], made[1]) and not np.may_share_memory(made[0], a)


def test_a_written_input_that_lies_otherwise_is_reached():
    w = arrays_of((4, 6))[0].T
    x = arrays_of((6, 4), seed=1)[0]
    for sample in (w, np.ascontiguousarray(w)):
        own = np.array(w, order="F")
        vw, vx = leaves([sample, x])
        plan = Plan("step", [vw, vx], [vw + vx], [(0, vw * vx)], [sample, x])
        want = own * x, own + x
        (made,) = plan.run([own, x])
        np.testing.assert_array_equal(own, want[0])
        np.testing.assert_array_equal(made, want[1])


def test_a_failure_leaves_inputs_as_they_were():
    w, x = arrays_of((4, 3), (2, 3))
    target = np.array([0, 7])
    vw, vx, vt = leaves([w, x, target])
    new = vw * 2.0
    checked = record(REGISTRY["checked_classes"], [vt], {"op": "loss", "classes": 3, "ignore_index": -100})
    plan = Plan("step", [vw, vx, vt], [checked], [(0, new)], [w, x, target])
    before = w.copy()
    with pytest.raises(IndexRangeError):
        plan.run([w, x, target])
    np.testing.assert_array_equal(w, before)
    target[1] = 2
    plan.run([w, x, target])
    np.testing.assert_array_equal(w, 2 * before)


SGD = Update("sgd", lambda m, p, b, g, rate, decay: (p - (b * decay + g) * rate, b * decay + g), 3, (0, 1), 2)


@pytest.mark.parametrize("dtypes", [("f4", "f4"), ("f4", "f8")])
def test_updates_run_in_place_with_the_numbers_of_each_run(dtypes):
    shapes = [(3, 4), (5,)]
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s).astype(d) for _ in range(3) for s, d in zip(shapes, dtypes, strict=True)]
    values = leaves(arrays)
    made = record(update_op(SGD, 2), values, {"numbers": Slot(1)})
    plan = Plan("update", values, [], list(enumerate(made)), arrays)
    p, b, g = arrays[:2], arrays[2:4], arrays[4:]
    for numbers in ((0.1, 0.9), (0.5, 0.0)):
        moved = [old * numbers[1] + grad for old, grad in zip(b, g, strict=True)]
        want = [old - m * numbers[0] for old, m in zip(p, moved, strict=True)] + moved
        assert plan.run(arrays, [None, numbers]) == []
        for got, expected in zip(arrays[:4], want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5)
    assert plan.arena_bytes == 0


def test_an_update_whose_old_values_are_handed_out():
    p, b, g = arrays_of((3,), (3,), (3,))
    values = leaves([p, b, g])
    new, moved = record(update_op(SGD, 1), values, {"numbers": (0.5, 0.5)})
    plan = Plan("update", values, [values[0], new], [(0, new), (1, moved)], [p, b, g])
    old, want = p.copy(), p - (b * 0.5 + g) * 0.5
    first, second = plan.run([p, b, g])
    np.testing.assert_array_equal(first, old)
    for got in (second, p):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    assert not np.may_share_memory(second, p)


def test_random_numbers_are_drawn_from_the_key_of_each_run():
    op = REGISTRY["random_uniform"]
    sample = next(iter(op.samples(np.random.default_rng(0))))
    assert "key" in sample.attrs, "the record takes its key as an attribute"
    values = leaves([np.asarray(x) for x in sample.inputs])
    made = record(op, values, dict(sample.attrs))
    made.step.attrs["key"] = Slot(0)
    plan = Plan("draw", values, [made * 2.0], [], [np.asarray(x) for x in sample.inputs])
    want = 2.0 * op.forward(*sample.inputs, **sample.attrs)
    for _ in range(2):
        (got,) = plan.run([np.asarray(x) for x in sample.inputs], [sample.attrs["key"]])
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_results_are_never_overwritten_by_the_next_run():
    x, y = arrays_of((8, 8), (8, 8))
    plan = planned(lambda x: (x.exp(), x.exp().sum(0), x.t(), x), [x])
    first = plan.run([x])
    kept = [a.copy() for a in first]
    plan.run([y])
    for a, b in zip(first, kept, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.may_share_memory(first[3], x) and not np.may_share_memory(first[2], x)


def test_views_cost_nothing():
    x, w = arrays_of((6, 4), (6, 4))
    plan = planned(lambda x, w: (x.t() @ w)[1:3].reshape(2, 4).transpose(0, 1), [x, w], [False, False])
    # The matmul, and the result in an array of its own.
    assert [line.split()[0] for line in plan.describe().splitlines()[1:]] == ["matmul", "copy"]


def test_parts_are_written_to_their_place():
    x, y = arrays_of((4, 3), (4, 5))
    plan = check(lambda x, y: wf.cat([x.tanh(), y.exp(), x + 1], 1), [x, y], [False, False])
    assert "copy" not in plan.describe()


def test_gradients_of_slices_are_put_together():
    (x,) = arrays_of((6, 4))
    plan = check(lambda x: sum((x[t].exp() * t).sum() for t in range(1, 6)), [x])
    assert "zeros" in plan.describe() and "copy" not in plan.describe()


def test_products_are_added_to_what_is_there():
    x, w = arrays_of((5, 4, 3), (6, 3))
    plan = check(lambda x, w: sum((x[t] @ w.t()).tanh().sum() for t in range(5)), [x, w], [False, True])
    assert plan.describe().count(", added") == 4


def test_gradients_of_one_slice_used_many_times_are_added_before_they_are_put_in():
    x, w = arrays_of((5, 4, 3), (6, 3))
    plan = check(lambda x, w: sum((F.linear(x[t], w[:2]) * F.linear(x[t], w[2:4])).sum() for t in range(5)), [x, w],
                 [False, True])  # fmt: skip
    assert plan.describe().count(", added") == 8 and plan.python_steps == 0


def test_memory_of_a_chain_does_not_grow_with_its_length():
    (x,) = arrays_of((64, 64))

    def chain(x, w, length):
        for _ in range(length):
            x = (x @ w).tanh()
        return x

    short, long = (planned(lambda x, n=n: chain(x, x, n), [x], [False]).peak_bytes for n in (4, 40))
    assert short == long


def test_runs_of_two_threads_do_not_meet():
    x, w = arrays_of((64, 64), (64, 64))
    plan = planned(lambda x, w: ((x @ w).tanh() @ w).softmax(1), [x, w], [False, False])
    inputs = [arrays_of((64, 64), seed=k)[0] for k in range(4)]
    want = [plan.run([a, w])[0] for a in inputs]
    wrong = []

    def work(k):
        for _ in range(50):
            if not np.array_equal(plan.run([inputs[k], w])[0], want[k]):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_arrays_of_another_size_are_refused():
    (x,) = arrays_of((4,))
    plan = planned(lambda x: x * 2, [x], [False])
    with pytest.raises(ShapeError, match="planned was"):
        plan.run(arrays_of((5,)))


def test_a_small_model_is_one_native_call():
    x, w, b = arrays_of((8, 4), (3, 4), (3,))
    linear = wf.nn.functional.linear
    plan = planned(lambda x, w, b: (linear(x, w, b).relu() ** 2).mean(), [x, w, b], [False, True, True])
    assert plan.python_steps == 0 and plan.lists == 1
    with counted() as counts:
        plan.run([x, w, b])
    assert counts.lists_run == 1 and counts.kernels_run >= plan.kernels


def test_inputs_may_be_handed_on_and_unused():
    x, y = arrays_of((2, 3), (4,))
    inputs, outputs = traced(lambda x, y: [x, x.reshape(6), x], [x, y], [False, False])
    made = Plan("same", inputs, outputs, [], [x, y]).run([x, y])
    for got, want in zip(made, (x, x.reshape(6), x), strict=True):
        np.testing.assert_array_equal(got, want)


def test_rows_are_overwritten_where_no_later_stage_reads_them():
    x, w = arrays_of((64, 64), (64, 64))
    plan = check(lambda x, w: (x @ w).softmax(1) @ w, [x, w], [False, False])
    if plan.kernels:
        assert plan.arena_bytes == x.nbytes


def test_rows_that_a_later_stage_reads_again_are_not_overwritten():
    x, w = arrays_of((16, 16), (16, 16))
    # The product is read once more after its mean is known, and its square root is stored before that.
    plan = check(lambda x, w: ((y := (x @ w).abs() + 1).sqrt() @ w, (y - y.mean(1, keepdim=True)) @ w), [x, w])
    assert plan.arena_bytes > x.nbytes


@pytest.mark.parametrize("view", [lambda h: h[:], lambda h: h.permute(0), lambda h: h.view(-1)])
def test_what_a_later_stage_reads_through_another_view_is_not_overwritten(view):
    (x,) = arrays_of((2, 2))
    # The backward loop of softmax has two stages. The first reads `h` as two inputs: itself and its view.
    check(lambda x: ((h := x.sum(0).softmax(0)).tanh() * 0.3, view(h) * 0.7), [x])


def test_padding_is_a_part_put_into_zeros():
    (x,) = arrays_of((3, 4))
    plan = check(lambda x: wf.nn.functional.pad(x.exp(), (1, 2, 0, 1)) * 1, [x])
    if plan.kernels:
        assert plan.python_steps == 0


def test_gradients_that_are_written_are_accumulated_in_order():
    """grad += new, for an input that is read before and after."""
    w, grad, x = arrays_of((4, 3), (4, 3), (5, 3))
    vw, vg, vx = leaves([w, grad, x])
    new = run("matmul", run("permute", run("matmul", vx, run("permute", vw, dims=(1, 0))), dims=(1, 0)), vx)
    plan = Plan("accumulate", [vw, vg, vx], [vg], [(1, vg + new)], [w, grad, x])
    want, old = grad + (x @ w.T).T @ x, grad.copy()
    (before,) = plan.run([w, grad, x])
    np.testing.assert_array_equal(before, old)
    np.testing.assert_allclose(grad, want, rtol=1e-4, atol=1e-5)
