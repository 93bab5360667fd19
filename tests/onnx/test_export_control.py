"""Control flow: decisions become If, loops become Loop, trees go in as levels; nothing unseen is frozen."""

# ruff: noqa: E402 - without the packages there is nothing to import for

import random

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

import wayfare as wf
from tests.onnx import programs
from wayfare import nn
from wayfare.errors import ArgumentError, ArgumentTypeError, ExportError

LENGTH = {"x": {0: "length"}}


@pytest.fixture(autouse=True)
def seed():
    wf.random.manual_seed(0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.onnx"


def export(*args, **options):
    return wf.onnx.export(*args, timed=False, **options)


def kinds(path):
    """The operators of a model, those inside others too."""
    found, waiting = [], [onnx.load(path).graph]
    while waiting:
        for node in waiting.pop().node:
            found.append(node.op_type)
            waiting += [a.g for a in node.attribute if a.HasField("g")]
    return found


def same(path, function, *inputs):
    """Does the file give what the function gives on these?"""
    session = runtime.InferenceSession(str(path))
    names = [i.name for i in session.get_inputs()]
    got = session.run(None, dict(zip(names, [i.numpy() for i in inputs], strict=True)))
    made = function(*inputs)
    wanted = made if isinstance(made, tuple) else (made,)
    for g, w in zip(got, wanted, strict=True):
        np.testing.assert_allclose(g, w.detach().numpy(), rtol=1e-4, atol=1e-5)


# -- decisions


def branch(x):
    if x.sum() > 0:
        h = x * 2
    else:
        h = x.tanh() - 1
    return h.relu() + h


def test_a_decision_on_a_value_is_an_if(path):
    export(branch, [(wf.ones(2, 3),), (-wf.ones(2, 3),)], path, dynamic_axes={"x": {0: "batch"}})
    assert kinds(path).count("If") == 1
    for scale in (1, -1):
        same(path, branch, wf.rand(5, 3) * scale)


def test_a_way_that_was_never_seen_is_refused(path):
    with pytest.raises(ExportError, match="it was True in every example .*test_export_control.py") as caught:
        export(branch, (wf.ones(2, 3),), path)
    assert "Add an example for which it is False" in str(caught.value)


def test_a_decision_on_weights_is_none(path):
    scale = wf.tensor(2.0)

    def f(x):
        return x * scale if scale > 1 else x

    export(f, (wf.randn(3),), path)
    assert "If" not in kinds(path)


def test_decisions_one_inside_the_other(path):
    def f(x):
        if x.sum() > 0:
            return x + 1 if x[0] > 1 else x - 1
        return x * 0

    examples = [(wf.tensor(v),) for v in ([2.0, 1.0], [0.5, 1.0], [-1.0, -1.0])]
    export(f, examples, path)
    for v in ([3.0, 3.0], [0.1, 3.0], [-1.0, 0.5]):
        same(path, f, wf.tensor(v))


def test_ways_that_come_together_make_small_ifs(path):
    lin = nn.Linear(3, 3)
    with wf.no_grad():
        lin.weight.mul_(0.01)

    def f(x):
        scale, y = 2.0, x
        if x.sum() > 0:
            y = x / x.norm()
            scale = 3.0
        z = lin(y) * scale + x
        if z[0, 0] > 0.5:
            z = z - 1
        return z.tanh() + y, y

    # Of the four combinations only two are shown.
    examples = [(wf.tensor([[2.0, 1.0, 1.0]]),), (wf.tensor([[-2.0, -1.0, -1.0]]),)]
    assert {f(*e)[0].shape for e in examples} == {(1, 3)}
    export(f, examples, path, dynamic_axes={"x": {0: "batch"}})
    assert kinds(path).count("If") == 2 and kinds(path).count("Gemm") == 1
    for _ in range(10):
        same(path, f, wf.randn(4, 3) * 2)


# -- loops


cell = nn.GRUCell(3, 4)


def recurrent(x):
    h = wf.zeros(x.shape[1], 4)
    outs = []
    for t in range(x.shape[0]):
        h = cell(x[t], h)
        outs.append(h)
    return wf.stack(outs), wf.cat(outs, 1), h


def test_a_loop_over_a_length_is_a_loop(path):
    export(recurrent, (wf.randn(4, 2, 3),), path, dynamic_axes={"x": {0: "length", 1: "batch"}})
    assert kinds(path).count("Loop") == 1
    for length, batch in ((1, 1), (2, 3), (31, 2)):
        same(path, recurrent, wf.randn(length, batch, 3))


def backwards(x):
    h = wf.zeros(3)
    outs = []
    for t in reversed(range(x.shape[0])):
        h = (h + x[t] * t).tanh()
        outs.append(h)
    return wf.stack(outs[::-1], 1), wf.stack(outs)


def over_parts(x):
    total = wf.zeros(3)
    for row in x:
        last = row.tanh()
        total = total + last
    return total / len(x), last


def growing(x):
    h = x[:1]
    for t in range(1, x.shape[0]):
        h = wf.cat([h, h[-1:] * 0.5 + x[t : t + 1]])
    return h


def fibonacci(x):
    a, b = x[0], x[0] * 2
    for t in range(x.shape[0]):
        a, b = b, (a + b + x[t]) * 0.5
    return a, b


@pytest.mark.parametrize("function", [backwards, over_parts, growing, fibonacci])
def test_loops_of_other_kinds(path, function):
    export(function, (wf.randn(4, 3),), path, dynamic_axes=LENGTH)
    assert kinds(path).count("Loop") == 1
    for length in (2, 3, 17):
        same(path, function, wf.randn(length, 3))


def test_a_loop_in_a_loop(path):
    def f(x):
        total = wf.zeros(3)
        for i in range(x.shape[0]):
            h = wf.zeros(3)
            for j in range(x.shape[1]):
                h = (h + x[i, j]).tanh()
            total = total + h
        return total

    export(f, (wf.randn(4, 2, 3),), path, dynamic_axes={"x": {0: "rows", 1: "columns"}})
    assert kinds(path).count("Loop") == 2
    for shape in ((1, 1, 3), (2, 7, 3), (6, 1, 3)):
        same(path, f, wf.randn(*shape))


def halve(x):
    while x.norm() > 1:
        x = x / 2
    return x * 3


def test_a_while_on_a_value_is_a_loop(path):
    examples = [(wf.randn(3) * scale,) for scale in (0.01, 10.0, 100.0, 5000.0)]
    export(halve, examples, path)
    assert kinds(path).count("Loop") == 1
    for scale in (0.001, 3.0, 1e6):
        same(path, halve, wf.randn(3) * scale)


def test_a_loop_that_is_left_early(path):
    def f(x):
        for _ in range(9):
            x = x * 0.5
            if x.abs().max() < 1:
                break
        return x + 1

    export(f, [(wf.tensor([v, 1.0]),) for v in (3.0, 10.0, 100.0, 1e9)], path)
    for v in (1.0, 40.0, 1e6):
        same(path, f, wf.tensor([v, -1.0]))


def test_a_loop_whose_end_nothing_tells_is_refused(path):
    turns = iter([3, 4, 5, 6, 7, 8, 9, 10])

    def f(x):
        for _ in range(next(turns)):
            x = x.tanh()
        return x

    with pytest.raises(ExportError, match="the loop here runs a number of times that follows neither"):
        export(f, (wf.randn(3),), path, dynamic_axes=LENGTH)


def clipping(x):
    h, outs = x[0], []
    for t in range(x.shape[0]):
        h = h + x[t]
        if h.norm() > 2:
            h = h / h.norm()
        outs.append(h)
    return h, wf.stack(outs)


def best_of(x):
    best, score, place, count = x[0] * 0, x[0].sum(), x[0, 0] * 0, x[0, 0] * 0
    for t in range(x.shape[0]):
        s, count = x[t].sum(), count + 1
        if s > score:
            best, score, place = x[t] * 2, s, count * 1
    return best, score, place


def either_way(x):
    a, b = wf.zeros(2), wf.ones(2)
    for row in x:
        if row.sum() > 0:
            a = a + row
        else:
            b = b * row.tanh() + a
    return a, b


@pytest.mark.parametrize("function", [clipping, best_of, either_way])
def test_decisions_inside_a_loop(path, function):
    examples = [(wf.randn(6, 2) * scale,) for scale in (0.3, 1.0, 3.0, 2.0)]
    examples.append((wf.arange(6.0, 0.0, -1.0)[:, None] * wf.ones(2),))
    export(function, examples, path, dynamic_axes=LENGTH)
    assert kinds(path).count("Loop") == 1 and kinds(path).count("If") == 1
    for length in (1, 2, 5, 33):
        for scale in (0.1, 1.0, 4.0):
            same(path, function, wf.randn(length, 2) * scale)


def test_an_input_delayed_by_several_turns(path):
    def f(x):
        old, older, oldest = x[0], x[0] * 2, x[0] * 3
        total = wf.zeros(3)
        for t in range(x.shape[0]):
            total = total + oldest
            old, older, oldest = x[t] * 1.5, old, older
        return total, older

    export(f, (wf.randn(5, 3),), path, dynamic_axes=LENGTH)
    for length in (1, 2, 3, 12):
        same(path, f, wf.randn(length, 3))


# -- stated


def test_cond_while_loop_and_scan_run_as_plain_python():
    x = wf.randn(3, requires_grad=True)
    assert wf.equal(wf.cond(True, lambda v: v + 1, lambda v: v, (x,)), x + 1)
    assert wf.equal(wf.cond(x.sum() > 1e9, lambda v: v + 1, lambda v: v * 2, (x,)), x * 2)
    n, total = wf.while_loop(lambda n, s: n < 4, lambda n, s: (n + 1, s + n), (wf.tensor(0), wf.tensor(0)))
    assert (n.item(), total.item()) == (4, 6)
    carry, ys = wf.scan(lambda c, v: (c + v, c * v), wf.tensor(0.0), x)
    assert np.allclose(carry.item(), x.sum().item())
    assert np.allclose(ys.detach(), [0, (x[0] * x[1]).item(), ((x[0] + x[1]) * x[2]).item()])
    carry.backward()
    assert wf.equal(x.grad, wf.ones(3))
    (a, _), ys = wf.scan(lambda c, v: ((c[0] + v["p"], c[1]), (c[0],)), (wf.zeros(2), wf.ones(2)),
                         {"p": wf.ones(2, 5)}, dim=1, reverse=True)  # fmt: skip
    assert a.tolist() == [5, 5] and ys[0].shape == (5, 2) and ys[0][:, 0].tolist() == [4, 3, 2, 1, 0]


@pytest.mark.parametrize(("call", "words"), [
    (lambda: wf.scan(lambda c, v: c, wf.ones(1), wf.ones(2)), "must return \\(carry, y\\)"),
    (lambda: wf.scan(lambda c, v: (c, v), wf.ones(1), wf.ones(0)), "nothing to go through"),
    (lambda: wf.scan(lambda c, v: (c.long(), v), wf.ones(1), wf.ones(2)), "the carry changes"),
    (lambda: wf.while_loop(lambda v: v < 3, lambda v: (v, v), (wf.zeros(()),)), "what is carried changes"),
    (lambda: wf.while_loop(3, lambda v: v, (wf.zeros(()),)), "takes functions, not int"),
    (lambda: wf.cond(True, lambda: 1, lambda: 2, 3), "operands must be a tuple, not int"),
])  # fmt: skip
def test_wrong_control_flow_is_named(call, words):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=words):
        call()


def test_cond_becomes_an_if(path):
    lin = nn.Linear(4, 4)

    def f(x):
        return wf.cond(x.sum() > 0, lambda v: lin(v).relu(), lambda v: v * 3, (x,)) + 1

    export(f, (wf.randn(2, 4),), path, dynamic_axes={"x": {0: "batch"}})
    assert kinds(path).count("If") == 1
    for scale in (1, -1):
        same(path, f, wf.rand(3, 4) * scale)


def test_while_loop_becomes_a_loop(path):
    def f(x):
        return wf.while_loop(lambda v, n: v.norm() > 1, lambda v, n: (v / 2, n + 1), (x, wf.tensor(0)))

    export(f, (wf.randn(2, 4) * 50,), path, dynamic_axes={"x": {0: "batch"}})
    assert kinds(path).count("Loop") == 1
    for scale in (0.01, 7.0, 1e5):
        same(path, f, wf.randn(3, 4) * scale)


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_becomes_a_loop(path, reverse):
    lstm = nn.LSTMCell(3, 4)

    def step(state, v):
        h, c = lstm(v, state)
        return (h, c), h.tanh()

    def f(x, h, c):
        (h, c), ys = wf.scan(step, (h, c), x, dim=1, reverse=reverse)
        return ys, h, c

    axes = {"x": {0: "batch", 1: "length"}, "h": {0: "batch"}, "c": {0: "batch"}}
    export(f, (wf.randn(2, 5, 3), wf.randn(2, 4), wf.randn(2, 4)), path, dynamic_axes=axes)
    assert kinds(path).count("Loop") == 1
    for length in (1, 2, 19):
        same(path, f, wf.randn(3, length, 3), wf.randn(3, 4), wf.randn(3, 4))


def test_decisions_inside_a_scan(path):
    def step(h, x):
        h = h + x
        if h.norm() > 2:
            h = h / h.norm()
        return h, wf.cond(h.sum() > 0, lambda v: v * 2, lambda v: v - 1, (h,))

    def f(x):
        return wf.scan(step, wf.zeros(3), x)

    examples = [(wf.randn(5, 3) * scale,) for scale in (0.1, 1.0, 5.0)]
    export(f, examples, path, dynamic_axes=LENGTH)
    assert kinds(path).count("If") == 2
    for scale in (0.1, 3.0):
        same(path, f, wf.randn(9, 3) * scale)


# -- recurrent layers


@pytest.mark.parametrize(("kind", "name"), [(nn.LSTM, "LSTM"), (nn.GRU, "GRU"), (nn.RNN, "RNN")])
def test_recurrent_layers_are_single_operators_of_any_length(path, kind, name):
    layer = kind(3, 4, batch_first=True, bidirectional=True)

    def f(x):
        return layer(x)[0].mean(1)

    export(f, (wf.randn(2, 5, 3),), path, dynamic_axes={"x": {0: "batch", 1: "length"}})
    assert kinds(path).count(name) == 2 and "Loop" not in kinds(path)
    same(path, f, wf.randn(1, 40, 3))


def test_packed_sequences_of_fixed_lengths(path):
    layer = nn.LSTM(3, 4, bidirectional=True)

    def f(a, b, c):
        outs, (h, _) = layer([a, b, c])
        return outs[0], outs[1], outs[2], h

    export(f, (wf.randn(2, 3), wf.randn(5, 3), wf.randn(1, 3)), path)
    assert kinds(path).count("LSTM") == 2


# -- trees


def tree(depth):
    if depth == 0 or (depth < 4 and random.random() < 0.2):
        return random.randrange(20)
    return (tree(depth - 1), tree(depth - 1))


def test_a_tree_model_runs_over_levels(path):
    random.seed(0)
    node, embed = nn.BinaryTreeLSTMCell(4, 5), nn.Embedding(20, 4)

    def recursive(t):
        return node(*map(recursive, t)) if isinstance(t, tuple) else node.leaf(embed(wf.tensor(t)))

    def f(values, children, roots):
        return wf.onnx.over_levels((values, children, roots), lambda w: node.leaf(embed(w)), node)[0]

    axes = {"values": {0: "leaves"}, "children": {0: "levels", 1: "width"}, "roots": {0: "trees"}}
    trees = [tree(3), tree(4), tree(5)]
    export(f, [tuple(wf.onnx.levels(t)) for t in trees], path, dynamic_axes=axes)
    assert kinds(path).count("Loop") == 1
    session = runtime.InferenceSession(str(path))
    for given in ([tree(6)], [3], [tree(2), tree(7), tree(1)]):
        arrays = wf.onnx.levels(given)._asdict()
        (got,) = session.run(None, {name: t.numpy() for name, t in arrays.items()})
        wanted = [recursive(t)[0].detach().numpy() for t in given]
        np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_levels_of_trees():
    values, children, roots = wf.onnx.levels((1, (2, 3)))
    assert values.tolist() == [1, 2, 3]
    assert children.tolist() == [[[2, 3]], [[1, 4]]] and roots.tolist() == [5]
    shared = (7, 8)
    values, children, roots = wf.onnx.levels([(shared, shared), 9])
    assert values.tolist() == [7, 8, 9] and children.tolist() == [[[1, 2]], [[4, 4]]] and roots.tolist() == [5, 3]


def test_levels_with_places_for_more_children():
    # A file takes the arity it was made with, whatever the tree at hand has.
    _, children, _ = wf.onnx.levels([(1, (2, 3)), (4,)], arity=3)
    assert children.tolist() == [[[2, 3, 0], [4, 0, 0]], [[1, 5, 0], [0, 0, 0]]]
    assert wf.onnx.levels(7, arity=4).children.shape == (0, 0, 4)
    for wrong in (1, 0, -1, 2.0, "2"):
        with pytest.raises(ArgumentError, match="and a node has 2 children"):
            wf.onnx.levels((1, 2), arity=wrong)


class Node:
    def __init__(self, *children, value=None):
        self.children, self.value = list(children), value


def test_levels_of_objects_and_of_what_is_no_tree():
    values, children, _ = wf.onnx.levels(Node(Node(value=1.5), Node(value=2.5), Node(value=0.5)))
    assert values.tolist() == [1.5, 2.5, 0.5] and children.shape == (1, 1, 3)
    ring = Node(Node(value=1.0))
    ring.children.append(ring)
    with pytest.raises(ArgumentError, match="a node is below itself"):
        wf.onnx.levels(ring)
    with pytest.raises(ArgumentTypeError, match="what a leaf of type str holds"):
        wf.onnx.levels(("a", "b"))
    with pytest.raises(ArgumentError, match="the list of trees is empty"):
        wf.onnx.levels([])


# -- random programs


def test_random_programs_are_exported_rightly_or_refused(path):
    done = 0
    for number in range(20):
        wf.random.manual_seed(number)
        function = programs.function(number)
        examples = [(wf.randn(6, 3) * scale,) for scale in (0.3, 1.0, 3.0, 2.0)]
        try:
            report = export(function, examples, path, dynamic_axes=LENGTH)
        except ExportError as error:
            assert "no valid model" not in str(error), programs.source(number)
            continue
        done += 1
        for length in (1, 2, 9) if not report.notes else ():
            same(path, function, wf.randn(length, 3) * 2)
    assert done >= 6
