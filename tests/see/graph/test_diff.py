"""What changed between two graphs: found, counted, told, and never mixed up."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wayfare as wf
from wayfare import nn
from wayfare.see.graph.aligning import align


def here():
    import sys

    return sys._getframe(1).f_lineno


wf.manual_seed(0)
CELL, HEAD = nn.Linear(4, 4), nn.Linear(4, 2)


def recurrent(length, batch=3, act=wf.tanh):
    h = wf.zeros(batch, 4)
    for _ in range(length):
        h = act(CELL(h) + 1)
    return HEAD(h).square().mean()


def compared(a, b, *modules):
    return wf.graph(a, *modules[:1]).diff(wf.graph(b, *modules[-1:]))


def check(diff):
    """What must hold for every difference."""
    before, after = diff.before, diff.after
    assert len(after) == len(before) + len(diff.added) - len(diff.removed)
    old = [x for x, _ in diff.same] + [x for x, _, _ in diff.changed] + diff.removed
    new = [y for _, y in diff.same] + [y for _, y, _ in diff.changed] + diff.added
    assert sorted(map(id, old)) == sorted(map(id, before.nodes))
    assert sorted(map(id, new)) == sorted(map(id, after.nodes))
    for x, y in diff.same:
        assert (x.op, x.specs) == (y.op, y.specs)
    assert len(after.leaves) == len(before.leaves) + len(diff.added_leaves) - len(diff.removed_leaves)
    assert max(map(len, str(diff).splitlines())) < 200
    document = diff.document()
    rows = len(document["nodes"]["op"])
    parts = document["diff"]
    marked = [*parts["same"], *parts["added"], *parts["removed"], *[row for _, row, _ in parts["changed"]]]
    assert sorted(marked) == list(range(rows))
    for row, inputs in enumerate(document["nodes"]["inputs"]):
        assert all(0 <= i < rows for i in inputs)
        if row not in parts["removed"]:
            assert not set(inputs) & set(parts["removed"])
    return diff


def test_a_short_and_a_long_sequence():
    diff = check(compared(recurrent(37), recurrent(40)))
    assert len(diff.added) == 9 and not diff.removed and not diff.changed
    # The turns that are alike are matched from the start: the new ones are the last.
    assert diff.added == diff.after.nodes[37 * 3 : 40 * 3]
    (line,) = diff.lines
    assert (line.times_before, line.times_after, line.ops) == (37, 40, ["linear", "add", "tanh"])
    text = str(diff)
    assert "114 nodes before, 123 after · 9 added, 114 the same" in text
    where = recurrent.__code__.co_firstlineno + 3
    assert f"test_diff.py:{where}  h = act(CELL(h) + 1): ran 40 times, not 37 (linear, add, tanh)" in text
    assert "added: %111 … ×3 of (linear, add, tanh)" in text
    back = check(compared(recurrent(40), recurrent(37)))
    assert len(back.removed) == 9 and "ran 37 times, not 40" in str(back)


def test_nothing_changed():
    diff = check(compared(recurrent(5), recurrent(5)))
    assert not diff and str(diff) == "graphs compared: 18 nodes before, 18 after · no difference"
    graph = wf.graph(recurrent(3))
    assert not check(graph.diff(graph))


def test_another_batch_size_changes_shapes():
    diff = check(compared(recurrent(2), recurrent(2, batch=5)))
    assert not diff.added and not diff.removed
    assert {what for _, _, what in diff.changed} == {
        "shape f32[3,4] → f32[5,4]", "shape f32[3,2] → f32[5,2]"
    }  # fmt: skip
    assert [(x.op.name, y.op.name) for x, y in diff.same] == [("mean", "mean")]
    assert "linear ×2  shape f32[3,4] → f32[5,4]" in str(diff)


def test_another_op_in_the_same_place():
    diff = check(compared(recurrent(2), recurrent(2, act=wf.sigmoid)))
    assert [what for _, _, what in diff.changed] == ["op tanh → sigmoid"] * 2
    assert not diff.added and not diff.removed and not diff.lines


def test_other_attributes():
    x = wf.ones(3, 4, requires_grad=True)

    def reduced(dim):
        return x.exp().sum(dim)

    (change,) = check(compared(reduced(0), reduced(1))).changed
    assert change[2] == "shape f32[4] → f32[3], dim=(0,) → dim=(1,)"
    (change,) = check(compared(x.softmax(0), x.softmax(1))).changed
    assert change[2] == "dim=0 → dim=1"


def test_another_dtype():
    x = wf.ones(3, requires_grad=True)

    def doubled(dtype):
        return x.to(dtype).exp()

    changed = check(compared(doubled(wf.float64), doubled(wf.float16))).changed
    assert [what.split(",")[0] for _, _, what in changed] == ["dtype f64[3] → f16[3]"] * 2


def test_a_layer_was_added():
    def run(net):
        return net(wf.ones(3, 4)).sum()

    small = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    large = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    diff = check(compared(run(small), run(large), small, large))
    assert [node.op.name for node in diff.added] == ["linear", "relu"]
    assert diff.added == diff.after.nodes[2:4] and not diff.changed and not diff.removed
    assert [diff.after.names[leaf] for leaf in diff.added_leaves] == ["2.weight", "2.bias"]
    assert not diff.removed_leaves
    text = str(diff)
    assert "added: leaf 2.weight f32[8,8]" in text and "renamed: leaf 2.weight is now 4.weight" in text
    # At the front, where all that follows was computed from something else.
    front = nn.Sequential(nn.Linear(4, 4), *small)
    diff = check(compared(run(small), run(front)))
    assert [node.op.name for node in diff.added] == ["linear"] and not diff.changed


def test_layers_added_in_two_places():
    w = wf.ones(2, requires_grad=True)

    def run(more):
        h = w.exp()
        h = h.sin() if more else h
        h = h.tanh()
        h = h.cos() if more else h
        return h.sum()

    diff = check(compared(run(False), run(True)))
    assert [node.op.name for node in diff.added] == ["sin", "cos"] and len(diff.same) == 3


def test_two_trees():
    w = wf.ones(2, requires_grad=True)

    def encode(tree):
        if isinstance(tree, str):
            return w.exp() if tree == "a" else w.sin()
        left, right = encode(tree[0]), encode(tree[1])
        return left * right

    first = encode((("a", "b"), ("a", "a")))
    second = encode((("a", "b"), (("a", "a"), "b")))
    diff = check(compared(first, second))
    assert not diff.removed and not diff.changed
    assert sorted(node.op.name for node in diff.added) == ["mul", "sin"]


def test_lines_that_are_new_or_gone():
    w = wf.ones(2, requires_grad=True)

    def run(extra):
        h = w.exp()
        if extra:
            h = h * w + w
        return h

    text = str(compared(run(False), run(True)))
    assert f"test_diff.py:{here() - 4}  h = h * w + w: new, 2 nodes (mul, add)" in text
    assert "gone, 2 nodes (mul, add)" in str(compared(run(True), run(False)))


def test_random_numbers_make_no_difference():
    x = wf.ones(4, requires_grad=True)

    def run():
        return wf.nn.functional.dropout(x, 0.5).sum()

    assert not compared(run(), run())


def test_lines_are_known_by_their_text():
    """A cell of a notebook that is run again, or a file that has grown at the top."""
    import linecache

    def made(name, above):
        source = "\n" * above + "def run(w):\n    return (w * w).tanh()\n"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        namespace = {}
        exec(compile(source, name, "exec"), namespace)
        return namespace["run"](wf.ones(2, requires_grad=True))

    assert not compared(made("<cell 1>", 0), made("<cell 2>", 3))


def test_of_nothing():
    one, none = wf.ones(2, requires_grad=True), wf.ones(2)
    assert not check(compared(none, none))
    diff = check(compared(none, one))
    assert diff and diff.added_leaves == [one] and "added: leaf %a f32[2]" in str(diff)
    diff = check(compared(one * 2, none))
    assert [node.op.name for node in diff.removed] == ["mul"]


def test_something_else_than_a_graph():
    graph = wf.graph(wf.ones(2, requires_grad=True))
    with pytest.raises(TypeError, match=r"diff: expected a graph, not Tensor.*wf.graph\(a\).diff\(wf.graph\(b\)\)"):
        graph.diff(wf.ones(2))


# -- random graphs

STEPS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, 6)), max_size=25)


def grown(steps, w):
    """A graph from a list of (op, which input, which other input)."""
    pool = [w]
    for op, i, j in steps:
        a, b = pool[-1 - i % len(pool)], pool[-1 - j % len(pool)]
        if op == 0:
            pool.append(a + b)
        elif op == 1:
            pool.append(a * b)
        elif op == 2:
            pool.append(a.tanh())
        elif op == 3:
            pool.append(wf.cat([a, b])[: b.shape[0]])
        else:
            pool.append(a.sort()[0] * a)
    return pool[-1].sum()


W = wf.ones(3, requires_grad=True)


@settings(deadline=None, max_examples=80)
@given(STEPS, STEPS)
def test_random_graphs_add_up(first, second):
    check(compared(grown(first, W), grown(second, W)))


@settings(deadline=None, max_examples=60)
@given(STEPS)
def test_a_graph_is_the_same_as_itself_made_again(steps):
    assert not check(compared(grown(steps, W), grown(steps, W)))


@settings(deadline=None, max_examples=60)
@given(STEPS, st.integers(0, 4))
def test_one_step_more_only_adds(steps, op):
    """The last step reads the one before it, so all that was there is there still."""
    diff = check(compared(grown(steps, W), grown([*steps, (op, 0, 0)], W)))
    assert not diff.removed and not diff.changed
    assert 0 < len(diff.added) <= 2


def test_a_graph_and_a_larger_one_that_holds_it():
    w = wf.ones(2, requires_grad=True)
    h = w.exp()
    diff = check(compared(h, (h * w).sum()))
    assert diff.same == [(h.grad_fn, h.grad_fn)] and len(diff.added) == 2
    diff = check(compared((h * w).sum(), h))
    assert [node.op.name for node in diff.removed] == ["mul", "sum"]


@given(st.lists(st.integers(0, 5), max_size=40), st.lists(st.integers(0, 5), max_size=40))
def test_aligned_pairs_are_equal_and_in_order(a, b):
    pairs = align(a, b)
    assert all(a[i] == b[j] for i, j in pairs)
    assert [i for i, _ in pairs] == sorted({i for i, _ in pairs})
    assert [j for _, j in pairs] == sorted({j for _, j in pairs})
    assert align(a, a) == [(i, i) for i in range(len(a))]


def test_long_stretches_with_nothing_to_hold_on_to():
    rng = random.Random(0)
    a, b = ([rng.randrange(4) for _ in range(3000)] for _ in range(2))
    pairs = align(a, b)
    assert all(a[i] == b[j] for i, j in pairs)
    assert len({i for i, _ in pairs}) == len({j for _, j in pairs}) == len(pairs) > 2500


def test_fifty_thousand_nodes():
    w = wf.ones(1, requires_grad=True)

    def chain(length, seed):
        rng = random.Random(seed)
        h = w
        for _ in range(length):
            h = h * w if rng.random() < 0.5 else h.tanh()
        return h

    diff = compared(chain(50_000, 0), chain(50_000, 1))
    assert len(diff.before) == len(diff.same) + len(diff.changed) + len(diff.removed)
    assert len(diff.after) == len(diff.same) + len(diff.changed) + len(diff.added)
    assert len(str(diff).splitlines()) < 60


def test_the_document_is_json():
    document = compared(recurrent(2), recurrent(3, act=wf.relu)).document()
    assert json.loads(json.dumps(document)) == document
    assert document["diff"]["summary"][0].startswith("graphs compared: ")
