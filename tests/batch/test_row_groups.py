"""Groups of opaque calls run natively: one list of commands for all rows, forward and backward."""

import gc
import weakref

import numpy as np
import pytest

import wayfare as wf
import wayfare.nn as nn
from wayfare.batch.run import row_group, row_plan
from wayfare.codegen.runtime.kernel import available
from wayfare.core.counters import COUNTERS
from wayfare.core.native import NATIVE

pytestmark = pytest.mark.skipif(NATIVE is None or not available(), reason="no native module, or no native code")


class Cell(nn.Module):
    """The user's own cell of a tree: a product, slices of its bias, gates."""

    def __init__(self, size, dtype=wf.float32):
        super().__init__()
        self.of_children = nn.Linear(2 * size, 3 * size, dtype=dtype)
        self.of_leaf = nn.Linear(size, 2 * size, bias=False, dtype=dtype)
        self.size = size

    def leaf(self, x):
        u, o = (self.of_leaf(x) + self.of_children.bias[: 2 * self.size]).chunk(2, -1)
        return o.sigmoid() * u.tanh(), u.tanh()

    def forward(self, left, right):
        u, o, f = self.of_children(wf.cat([left[0], right[0]], -1)).chunk(3, -1)
        c = u.tanh() + f.sigmoid() * (left[1] + right[1])
        return o.sigmoid() * c.tanh(), c


def reduce(cell, leaves):
    """A tree over leaves that is as deep as they are many: halves, then one by one."""
    if len(leaves) == 1:
        return cell.leaf(leaves[0] * 1)  # a row; a leaf that requires a gradient counts as shared
    middle = len(leaves) // 2 if len(leaves) % 3 else 1
    return cell(reduce(cell, leaves[:middle]), reduce(cell, leaves[middle:]))


def trees(count, size, dtype=wf.float32, grad=True):
    wf.manual_seed(count)
    return [[wf.randn(size, dtype=dtype, requires_grad=grad) for _ in range(1 + 5 * i % 7)] for i in range(count)]


def grads_of(cell, leaves, run, loss):
    for t in [*cell.parameters(), *[x for tree in leaves for x in tree]]:
        t.grad = None
    results = run(lambda tree: reduce(cell, tree), leaves)
    loss(results).backward()
    grads = [t.grad for t in [*cell.parameters(), *[x for tree in leaves for x in tree]]]
    states = np.stack([h.detach().numpy() for h, _ in results])
    return [states, *[None if g is None else g.numpy().copy() for g in grads]]


def loop(function, examples):
    return [function(example) for example in examples]


def alike(one, other, tolerance):
    for mine, its in zip(one, other, strict=True):
        assert (mine is None) == (its is None)
        if mine is not None:
            np.testing.assert_allclose(mine, its, rtol=tolerance, atol=tolerance)


LOSSES = {
    "all": lambda results: sum((h * h).sum() + c.sum() for h, c in results),
    "one state": lambda results: sum((h * h).sum() for h, _ in results),
    "some examples": lambda results: sum((h * h).sum() for h, _ in results[::3]),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype, tolerance", [(wf.float32, 2e-5), (wf.float64, 1e-11)])
@pytest.mark.parametrize("cell", [Cell, nn.BinaryTreeLSTMCell])
def test_trees(cell, dtype, tolerance, loss):
    wf.manual_seed(0)
    cell = cell(5, dtype=dtype) if cell is Cell else cell(5, 5, dtype=dtype)
    leaves = trees(40, 5, dtype)
    expected = grads_of(cell, leaves, loop, LOSSES[loss])
    found = grads_of(cell, leaves, lambda f, xs: wf.map(f, xs), LOSSES[loss])
    alike(found, expected, tolerance)


@pytest.mark.parametrize("count", [1, 2, 8, 9, 63, 64, 256, 257, 700])
@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_rows(count, threads):
    before = wf.get_num_threads()
    wf.set_num_threads(threads)
    try:
        wf.manual_seed(1)
        cell = Cell(4, dtype=wf.float64)
        leaves = [[x] for x in wf.randn(count, 4, dtype=wf.float64)]
        for tree in leaves:
            tree[0].requires_grad_()
        found = grads_of(cell, leaves, lambda f, xs: wf.map(f, xs), LOSSES["all"])
        alike(found, grads_of(cell, leaves, loop, LOSSES["all"]), 1e-11)
    finally:
        wf.set_num_threads(before)


def counted(function):
    """(groups that ran natively, native backward passes, lists of commands) in a call."""
    ran, back = [], []
    patch = pytest.MonkeyPatch()
    forward, backward = row_group.RowGroup.run_natively, row_group.RowGroup.input_grads

    def run_natively(self, *given):
        done = forward(self, *given)
        ran.append(done)
        return done

    def input_grads(self, *given):
        back.append(1)
        return backward(self, *given)

    patch.setattr(row_group.RowGroup, "run_natively", run_natively)
    patch.setattr(row_group.RowGroup, "input_grads", input_grads)
    before = COUNTERS.lists_run
    try:
        function()
    finally:
        patch.undo()
    return sum(ran), len(back), COUNTERS.lists_run - before


def test_a_group_is_one_list_of_commands_each_way():
    cell, leaves = nn.BinaryTreeLSTMCell(5, 5), trees(40, 5)

    def step():
        LOSSES["all"](wf.map(lambda tree: reduce(cell, tree), leaves)).backward()

    step()
    forward, backward, lists = counted(step)
    kinds = {kind.name: kind.groups for kind in wf.batching.last().kinds}
    groups = kinds["BinaryTreeLSTMCell"] + kinds["BinaryTreeLSTMCell.leaf"]
    # One more list makes the transposed copy of a weight: that of the cell. The leaves use some rows of the other.
    assert (forward, backward, lists) == (groups, groups, 2 * groups + 1)
    assert wf.batching.last().gathers <= 4 * groups + 1


def test_plans_are_made_once_a_function_has_run_in_some_groups(monkeypatch):
    monkeypatch.setattr(row_plan, "AFTER_GROUPS", 3)
    cell, leaves = nn.BinaryTreeLSTMCell(4, 4), [[x] for x in wf.randn(6, 4)]
    ran = [counted(lambda: wf.map(lambda tree: reduce(cell, tree), leaves))[0] for _ in range(5)]
    assert ran == [0, 0, 0, 1, 1]


def test_rows_without_a_gradient_do_no_harm():
    """What is infinite in an example whose result is not used leaves the gradients of weights alone."""
    cell = Cell(3, dtype=wf.float64)
    leaves = trees(12, 3, wf.float64)
    with wf.no_grad():
        leaves[4][0].fill_(float("inf"))

    def loss(results):
        return sum((h * h).sum() for i, (h, _) in enumerate(results) if i != 4)

    found = grads_of(cell, leaves, lambda f, xs: wf.map(f, xs), loss)
    assert all(g is None or np.isfinite(g).all() for g in found[1:3])
    alike(found[1:], grads_of(cell, leaves, loop, loss)[1:], 1e-11)


def test_a_weight_that_was_written_since_is_an_error():
    cell, leaves = Cell(3), trees(6, 3)
    total = LOSSES["all"](wf.map(lambda tree: reduce(cell, tree), leaves))
    with wf.no_grad():
        cell.of_children.weight.add_(1)
    with pytest.raises(wf.errors.InPlaceError, match="modified by an in-place operation"):
        total.backward()


def test_second_derivatives_and_hooks():
    cell, leaves = Cell(3, dtype=wf.float64), trees(5, 3, wf.float64)
    found = []
    for run in (loop, wf.map):
        results = run(lambda tree: reduce(cell, tree), leaves)
        (first,) = wf.autograd.grad(LOSSES["all"](results), [cell.of_children.weight], create_graph=True)
        (second,) = wf.autograd.grad((first * first).sum(), [cell.of_leaf.weight])
        results = run(lambda tree: reduce(cell, tree), leaves)
        seen = [first.detach().numpy(), second.numpy()]
        results[2][0].register_hook(lambda g, seen=seen: seen.append(g.numpy().copy()))
        LOSSES["all"](results).backward()
        found.append(seen)
    alike(*found, 1e-11)


def test_a_shared_tensor_among_the_arguments():
    scale = wf.randn(4, dtype=wf.float64, requires_grad=True)

    def mixed(x, by):
        return (x * by).tanh() + (x.sin() * 2).cos()

    xs = list(wf.randn(9, 4, dtype=wf.float64))
    found = []
    for run in (loop, wf.map):
        scale.grad = None
        sum(y.sum() for y in run(lambda x: mixed(mixed(x, scale), scale), xs)).backward()
        found.append([scale.grad.numpy().copy()])
    alike(*found, 1e-11)


class Mean(nn.Module):
    def forward(self, x, y):
        mean = wf.stack([x, y]).mean(0)  # its gradient does not need what was stacked
        return mean.tanh() + x * 0.1


def test_inputs_are_kept_for_a_gradient_that_recomputes_calls():
    """Those of an example without a gradient may not be there, so calls are computed again without it."""
    module, found = Mean(), []
    xs = [wf.randn(3, dtype=wf.float64, requires_grad=True) for _ in range(6)]
    for run in (loop, wf.map):
        for x in xs:
            x.grad = None
        sum(y.sum() for y in run(lambda x: module(module(x * 1, x * 2), x * 3), xs)[1::2]).backward()
        found.append([None if x.grad is None else x.grad.numpy() for x in xs])
    alike(*found, 1e-12)


@pytest.mark.parametrize("width", [1, 167, 334])
def test_sizes_that_are_numbers_of_rows_of_a_trace(width):
    """A weight may have the size that stands for the number of rows while a function is traced, or a multiple of it."""
    wf.manual_seed(2)
    weight = wf.randn(width, 3, dtype=wf.float64, requires_grad=True)

    def work(x, weight):
        return (x @ weight.T).tanh().sum(-1, keepdim=True) * (x + wf.ones(3, dtype=wf.float64)).sin()

    xs, found = list(wf.randn(5, 3, dtype=wf.float64)), []
    for run in (loop, wf.map):
        weight.grad = None
        sum(y.sum() for y in run(lambda x: work(work(x, weight), weight), xs)).backward()
        found.append([weight.grad.numpy().copy()])
    alike(*found, 1e-11)


def test_the_results_hold_no_cycle():
    cell, leaves = Cell(3), trees(6, 3)
    total = LOSSES["all"](wf.map(lambda tree: reduce(cell, tree), leaves))
    total.backward()
    gc.collect()
    gc.disable()
    try:
        total = LOSSES["all"](wf.map(lambda tree: reduce(cell, tree), leaves))
        node = weakref.ref(total._edge if not isinstance(total._edge, tuple) else total._edge[0])
        total.backward()
        del total
        assert node() is None
    finally:
        gc.enable()


@pytest.mark.skipif(NATIVE is None, reason="no native module")
def test_the_native_functions_refuse_what_does_not_fit():
    table, reached, ids = np.zeros(4, np.int64), np.zeros(4, np.bool_), np.array([0, 9])
    with pytest.raises(IndexError):
        NATIVE.add_rows(table, reached, ids, None, np.zeros((2, 3)), None)
    assert NATIVE.add_rows(table, reached, np.array([0]), None, np.zeros((1, 3), np.float16), None) is False
    assert NATIVE.add_rows(table, reached, np.array([0]), None, np.zeros((1, 4, 3)).swapaxes(1, 2), None) is False
    for values, flags, expected in (
        ([[1.0, np.inf], [2.0, 3.0]], [False, True], True), ([[1.0, np.nan], [2.0, 3.0]], [True, True], False),
        ([[1e308, 1e308], [1.0, 1.0]], [True, True], True),
    ):  # fmt: skip
        assert NATIVE.are_finite(np.array(values), np.array(flags)) is expected
    assert NATIVE.are_finite(np.zeros((2, 2), np.int64), np.array([True, True])) is None
    layout, codes = np.array([1, 1, 0, 0, 8, 0, 0]), np.zeros(257, np.int64)
    with pytest.raises(ValueError, match="layout"):
        NATIVE.run_rows(layout, codes, 3, 3, 0, (np.zeros((2, 1)),), (), np.zeros(64, np.uint8))
    with pytest.raises(ValueError, match="no code"):
        NATIVE.run_rows(layout, codes, 2, 2, 0, (np.zeros((2, 1)),), (), np.zeros(64, np.uint8))


def test_transposed_weights_last_from_one_round_of_reading_to_the_next():
    layer, rows = nn.Linear(6, 6), list(wf.randn(12, 6))

    def walk(x):
        steps = 0
        while steps < 5 and x.sum().item() < 1e9:
            x = layer(x)
            steps += 1
        return x.sum()

    def step():
        wf.map(walk, rows, batch=True)

    for _ in range(3):
        step()
    forward, _, lists = counted(step)
    assert forward == 5
    assert lists == forward + 2  # one copy for all rounds, and one for what runs at the end


def test_a_plan_computes_with_plain_numbers(monkeypatch):
    cell, leaves = nn.BinaryTreeLSTMCell(5, 5), trees(40, 5)
    made, init = [], row_plan.RowPlan.__init__
    monkeypatch.setattr(row_plan.RowPlan, "__init__", lambda self, *given: (init(self, *given), made.append(self))[0])
    for _ in range(3):
        LOSSES["all"](wf.map(lambda tree: reduce(cell, tree), leaves)).backward()
    assert made
    for program in [program for plan in made for program in (plan.forward, plan.backward)]:
        places = [place for place in (*program.inputs, *program.outputs) if place is not None]
        numbers = [n for place in places for n in (place.offset, *place.shape, *place.strides)]
        # No sizes that remember formulas, which are slow.
        assert {type(n) for n in (*program.arrays, *numbers)} == {int}


@pytest.mark.parametrize("native", [True, False])
def test_other_data_between_forward_and_backward(native, monkeypatch):
    """The gradient is that of the values which the calls read, whatever memory the weight has now."""
    monkeypatch.setattr(row_plan, "AFTER_GROUPS", 0 if native else 10**9)
    cell, leaves, found = Cell(3, dtype=wf.float64), trees(7, 3, wf.float64, grad=False), []
    weight = cell.of_children.weight
    first = weight.detach().clone()
    for run in (loop, wf.map):
        for other in (first * 2, (first * 3).T.contiguous().T):
            weight.data, weight.grad = first, None
            total = LOSSES["all"](run(lambda tree: reduce(cell, tree), leaves))
            weight.data = other
            total.backward()
            found.append(weight.grad.numpy().copy())
    alike(found[:2], found[2:], 1e-11)


def test_other_data_before_calls_that_must_be_computed_again_is_an_error():
    cell, leaves = Cell(3, dtype=wf.float64), trees(12, 3, wf.float64, grad=False)
    leaves[4][0].fill_(float("inf"))
    results = wf.map(lambda tree: reduce(cell, tree), leaves)
    cell.of_children.weight.data = wf.randn(9, 6, dtype=wf.float64)
    with pytest.raises(wf.errors.InPlaceError, match="given other `.data` since"):
        LOSSES["all"]([result for i, result in enumerate(results) if i != 4]).backward()
