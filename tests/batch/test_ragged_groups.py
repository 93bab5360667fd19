"""Calls that differ in the length of their first dimension run as one group, and give what the loop gives."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn

PROGRAMS = int(os.environ.get("WAYFARE_RAGGED_PROGRAMS", "60"))
WIDTH = 3
LENGTHS = [3, 1, 5, 2, 3, 1, 4]


def ragged(lengths=LENGTHS, *shape, seed=0):
    """Tensors of these lengths, in float64."""
    rng = np.random.default_rng(seed)
    return [wf.tensor(rng.normal(size=(n, *(shape or (WIDTH,))))) for n in lengths]


def layer(rows=WIDTH, columns=WIDTH):
    made = nn.Linear(rows, columns)
    return made.double()


def flat(found):
    """All tensors of the results of some examples."""
    return [t for one in found for t in (one if isinstance(one, tuple) else (one,))]


def both(function, examples, parameters, leaves=(), weights=None):
    """[values, gradients] of the loop and of a map, and the statistics of the map."""
    sides = []
    for batched in (False, True):
        for t in (*parameters, *leaves):
            t.grad = None
        if batched:
            made = flat(wf.map(function, examples))
            stats = wf.batching.last()
        else:
            made = flat([function(x) for x in examples])
        factors = weights or [1.0]
        used = [(t, factors[i % len(factors)]) for i, t in enumerate(made) if t.requires_grad]
        total = sum([(t * w).sum() for t, w in used if w], start=wf.zeros((), dtype=wf.float64))
        if total.requires_grad:
            total.backward()
        sides.append((made, [None if t.grad is None else t.grad.clone() for t in (*parameters, *leaves)]))
    return sides, stats


def compare(function, examples, parameters=(), leaves=(), weights=None):
    sides, stats = both(function, examples, parameters, leaves, weights)
    for mine, right in zip(sides[1][0], sides[0][0], strict=True):
        assert mine.shape == right.shape and mine.dtype == right.dtype and mine.stride() == right.stride()
        assert mine.requires_grad == right.requires_grad
        np.testing.assert_allclose(mine.detach().numpy(), right.detach().numpy(), rtol=1e-10, atol=1e-12)
    for mine, right in zip(sides[1][1], sides[0][1], strict=True):
        assert (mine is None) == (right is None)
        if mine is not None:
            np.testing.assert_allclose(mine.numpy(), right.numpy(), rtol=1e-9, atol=1e-11)
    return stats


def groups_of(stats, name):
    """How many groups the calls of one name ran in, and how many calls there were."""
    found = [k for k in stats.kinds if k.name == name]
    return sum(k.groups for k in found), sum(k.nodes for k in found)


# -- one op at a time --------------------------------------------------------------------------------------------------


W = layer()
VECTOR = nn.Parameter(wf.tensor([0.5, -1.0, 2.0], dtype=wf.float64))
OPS = {
    "sum": lambda x: x.sum(0),
    "sum of all": lambda x: x.sum(),
    "sum, keepdim": lambda x: x.sum(0, keepdim=True),
    "sum over features": lambda x: x.sum(1),
    "mean": lambda x: x.mean(0),
    "mean of all": lambda x: x.mean(),
    "logsumexp": lambda x: x.logsumexp(0),
    "logsumexp over features": lambda x: x.logsumexp(1),
    "softmax": lambda x: x.softmax(0),
    "softmax over features": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(0),
    "tanh": lambda x: x.tanh(),
    "gelu": lambda x: nn.functional.gelu(x),
    "Linear": lambda x: W(x),
    "a shared vector": lambda x: x * VECTOR + VECTOR,
    "a row of the same example": lambda x: x - x[0],
    "a number": lambda x: x * 2.5 + 1,
    "where": lambda x: wf.where(x > 0, x, x * 0.1),
    "matmul with a vector": lambda x: x @ VECTOR,
    "matmul with a vector of its own": lambda x: x @ x[0],
    "weights times rows": lambda x: (x @ VECTOR).softmax(0) @ x,
    "a product of two vectors": lambda x: x[:, 0] @ x[:, 1],
    "slices": lambda x: x[:, 1:] * x[:, :2],
    "chunk": lambda x: x.chunk(3, -1)[1],
    "unsqueeze": lambda x: (x.unsqueeze(1) * x.unsqueeze(2)).sum(2),
    "expand": lambda x: x[0].expand(len(x), WIDTH) * x,
    "a column times rows": lambda x: (x[:, 0].softmax(0)[:, None] * x).sum(0),
    "cat of features": lambda x: wf.cat([x, x.tanh()], 1).sum(0),
    "a mask": lambda x: (x > 0).sum(0),
    "integers": lambda x: (x > 0).int().sum(0),
    "var": lambda x: x.var(1),
    "rows in reverse": lambda x: x.flip(0) * 2,
    "elements in reverse": lambda x: x.flip(0, 1).flip(1),
    "rows in a circle": lambda x: x.roll(1, 0) @ VECTOR,
    "elements in a circle": lambda x: x.roll((1, 2), (1, 0)),
    "features in reverse": lambda x: x.flip(1).roll(1, 1),
    "lengths behind copies": lambda x: x.tanh().expand(2, *x.shape) * 2,
    "a row of lengths by lengths": lambda x: x.sum(1).expand(len(x), len(x)) * 2,
    "a column of lengths by lengths": lambda x: x.sum(1)[:, None].expand(len(x), len(x)) @ x,
    "copies in a batch of one": lambda x: x.sum(0)[None, None].expand(1, len(x), WIDTH)[0] * x,
    "copies of a shared vector in a batch of one": lambda x: (VECTOR * 2)[None, None].expand(1, len(x), WIDTH)[0] * x,
    "features first": lambda x: x.T.flatten(),
    "features first, of a batch of one": lambda x: x[None].transpose(1, 2).flip(2).reshape(-1),
    "a batch of one in reverse": lambda x: x[None].flip(1)[0] + x[None].flip(0)[0] + x[None].roll(1, 1)[0],
}


@pytest.mark.parametrize("name", OPS)
def test_each_op(name):
    leaves = [t.requires_grad_() for t in ragged()]
    stats = compare(lambda x: OPS[name](x * 1), leaves, [*W.parameters(), VECTOR], leaves)
    merged = [k for k in stats.kinds if k.largest == len(LENGTHS)]
    assert merged and merged[0].name == "mul", stats


@pytest.mark.parametrize(
    "name", ["sum", "mean", "softmax", "logsumexp", "Linear", "tanh", "a shared vector", "weights times rows"]
)
def test_one_group_for_all_lengths(name):
    stats = compare(OPS[name], ragged(), [*W.parameters(), VECTOR])
    assert {k.groups for k in stats.kinds} == {1}


def test_no_rows():
    leaves = [t.requires_grad_() for t in ragged([2, 0, 3, 0])]
    stats = compare(lambda x: (W(x).tanh() * 2).sum(0), leaves, W.parameters(), leaves)
    assert groups_of(stats, "sum") == (1, 4)


def test_same_lengths_are_an_ordinary_group():
    with wf.batching():
        made = [x.sum(0) for x in ragged([3, 3, 3])]
    stats = wf.batching.last()
    assert len(made) == 3 and groups_of(stats, "sum") == (1, 3)


def test_a_failing_call_is_named():
    table = nn.Embedding(4, WIDTH).double()

    def f(x):
        return table(x.sum(0).long())

    examples = [wf.ones(n, dtype=wf.float64) for n in (3, 1, 4, 2)]
    with pytest.raises(IndexError, match="example 2"):
        wf.map(f, examples)


# -- children ----------------------------------------------------------------------------------------------------------


def random_tree(chance, depth):
    return [random_tree(chance, depth - 1) for _ in range(chance.randrange(0, 5))] if depth else []


class ChildSum(nn.Module):
    """A child-sum Tree-LSTM."""

    def __init__(self):
        super().__init__()
        self.of_x, self.of_h = layer(WIDTH, 3 * WIDTH), layer(WIDTH, 3 * WIDTH)
        self.f_x, self.f_h = layer(), layer()

    def visit(self, tree, x, join=wf.stack):
        below = [self.visit(part, x, join) for part in tree]
        gates = self.of_x(x)
        if below:
            h, c = wf.stack([h for h, _ in below]), wf.stack([c for _, c in below])
            gates = gates + self.of_h(h.sum(0))
        i, o, u = gates.chunk(3, -1)
        cell = i.sigmoid() * u.tanh()
        if below:
            cell = cell + ((self.f_h(h) + self.f_x(x)).sigmoid() * c).sum(0)
        return o.sigmoid() * cell.tanh(), cell


@pytest.mark.parametrize("seed", range(4))
def test_child_sum_trees(seed):
    chance = random.Random(seed)
    model = ChildSum()
    rng = np.random.default_rng(seed)
    leaves = [wf.tensor(rng.normal(size=WIDTH), requires_grad=True) for _ in range(5)]
    examples = [(random_tree(chance, 3), x) for x in leaves]
    stats = compare(lambda e: model.visit(*e), examples, model.parameters(), leaves, weights=[1.0, 0.0, 0.3])
    # One group for each depth of trees, whatever the number of children.
    assert groups_of(stats, "stack")[0] <= 3 and groups_of(stats, "sum")[0] <= 3


def test_neighbour_lists():
    chance = random.Random(0)
    message, update = layer(), layer(2 * WIDTH, WIDTH)

    def graph(x):
        n = len(x)
        return x, [[chance.randrange(n) for _ in range(chance.randrange(1, 5))] for _ in range(n)]

    def f(example):
        x, neighbours = example
        states = list(x)
        for _ in range(2):
            sent = [message(h).relu() for h in states]
            heard = [wf.stack([sent[j] for j in found]).mean(0) for found in neighbours]
            states = [update(wf.cat([h, m])).tanh() for h, m in zip(states, heard, strict=True)]
        return wf.stack(states).sum(0)

    leaves = [t.requires_grad_() for t in ragged()]
    stats = compare(f, [graph(x) for x in leaves], [*message.parameters(), *update.parameters()], leaves)
    assert groups_of(stats, "mean")[0] == 2


def test_cat_of_rows():
    def f(x):
        rows = [x[i : i + 1] * 2 for i in range(len(x))]
        return (wf.cat(rows) * x).sum(0)

    leaves = [t.requires_grad_() for t in ragged()]
    stats = compare(f, leaves, (), leaves)
    assert groups_of(stats, "cat") == (1, len(LENGTHS))


# -- gradients of some, again, and of gradients ------------------------------------------------------------------------


def test_rows_without_a_gradient_stay_out():
    def f(x):
        return (W(x.log()).exp()).sum(0)

    examples = ragged()
    for t in examples:
        t.abs_()
    examples[2][0, 0] = 0.0  # infinite there: zero times that must not reach the weights
    leaves = [t.requires_grad_() for t in examples]
    compare(f, leaves, W.parameters(), leaves, weights=[1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0])


def test_two_results_and_a_gradient_for_one():
    def f(x):
        h = W(x)
        return h.sum(0), h.softmax(0)

    leaves = [t.requires_grad_() for t in ragged()]
    compare(f, leaves, W.parameters(), leaves, weights=[1.0, 0.0, 0.5])


def test_create_graph():
    leaves = [t.requires_grad_() for t in ragged()]
    found = []
    for batched in (False, True):
        def f(x):
            return (W(x).tanh().softmax(0) * x).sum(0).square().sum()

        losses = wf.map(f, leaves) if batched else [f(x) for x in leaves]
        first = wf.autograd.grad(sum(losses), leaves, create_graph=True)
        second = wf.autograd.grad(sum([g.square().sum() for g in first]), [*leaves, W.weight])
        found.append([*first, *second])
    for mine, right in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), right.detach().numpy(), rtol=1e-9, atol=1e-11)


def test_hooks_and_gradients_of_intermediate_results():
    leaves = [t.requires_grad_() for t in ragged()]
    found = []
    for batched in (False, True):
        seen = []

        def f(x, seen=seen):
            h = wf.stack([W(row).tanh() for row in x])
            h.register_hook(seen.append)
            return (h * x).sum(0), h

        made = wf.map(f, leaves) if batched else [f(x) for x in leaves]
        total = sum([out.square().sum() for out, _ in made])
        grads = wf.autograd.grad(total, [h for _, h in made], retain_graph=True)
        total.backward()
        found.append([*grads, *sorted([g.numpy().tolist() for g in seen], key=str)])
    for mine, right in zip(found[1], found[0], strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(right), rtol=1e-9, atol=1e-11)


def test_views_of_results():
    def f(x):
        h = W(x).tanh()
        return h[0] * h[-1], h[:, 1].sum(), h.reshape(-1)[: WIDTH]

    leaves = [t.requires_grad_() for t in ragged()]
    compare(f, leaves, W.parameters(), leaves)


def test_a_value_that_decides():
    def f(x):
        h = W(x)
        return h.sum(0) if h.sum() > 0 else h.mean(0)

    leaves = [t.requires_grad_() for t in ragged()]
    compare(f, leaves, W.parameters(), leaves)


def test_why_apart_says_together():
    with wf.batching():
        first, second = [x.sum(0) for x in ragged([2, 3])]
    assert "ran together" in wf.batching.last().why_apart(first, second)


# -- random programs ---------------------------------------------------------------------------------------------------


def random_function(chance):
    """A function of rows, made of random ops on rows, on vectors and between them."""
    plan = [(chance.randrange(14), chance.random(), chance.random()) for _ in range(chance.randrange(3, 10))]

    def f(x):
        rows, vectors = [x], [VECTOR * 1]
        for what, a, b in plan:
            r, s = rows[int(a * len(rows))], rows[int(b * len(rows))]
            v = vectors[int(b * len(vectors))]
            if what == 0:
                rows.append(W(r))
            elif what == 1:
                rows.append(r * s + 0.5)
            elif what == 2:
                rows.append(r.softmax(0))
            elif what == 3:
                vectors.append(r.sum(0))
            elif what == 4:
                vectors.append(r.mean(0))
            elif what == 5:
                rows.append(r - v)
            elif what == 6:
                rows.append((r @ v).softmax(0).unsqueeze(1) * s)
            elif what == 7:
                vectors.append((r @ v).tanh() @ s)
            elif what == 8:
                rows.append(wf.stack([row.tanh() for row in r]))
            elif what == 9:
                vectors.append(W(v).tanh())
            elif what == 10:
                rows.append(v.tanh().expand(len(r), WIDTH) * r)
            elif what == 11:
                vectors.append(r.logsumexp(0))
            elif what == 12:
                rows.append(wf.cat([r[:, 1:], s[:, :1]], 1))
            else:
                vectors.append(r[-1] * v)
        return rows[-1].tanh(), vectors[-1].tanh()

    return f


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_random_programs(seed):
    chance = random.Random(seed)
    lengths = [chance.randrange(1, 5) for _ in range(chance.randrange(2, 7))]
    examples = ragged(lengths, seed=seed)
    leaves = [t.requires_grad_() for t in examples] if chance.random() < 0.7 else ()
    weights = [chance.choice([0.0, 1.0, 0.5]) for _ in range(5)]
    compare(random_function(chance), examples, [*W.parameters(), VECTOR], leaves, weights)


def test_some_examples_need_a_gradient():
    def f(x):
        rows = [row.tanh() for row in x * 2]
        h = wf.stack(rows).sin()
        return (h.softmax(0) * x).sum(0), h @ h[0]

    examples = ragged()
    leaves = [t.requires_grad_() for t in examples[::2]]
    compare(f, examples, (), leaves)


def test_all_calls_read_one_value():
    found = []
    for batched in (False, True):
        VECTOR.grad = None
        with wf.batching() if batched else wf.enable_grad():
            shared = (VECTOR * 2).tanh()
            stacks = [wf.stack([shared] * n) for n in (2, 1, 3, 2)]
            made = [h[-1] * n + h.sum(0) for n, h in enumerate(stacks)]
        made[2].sum().backward(retain_graph=True)
        (made[0] * 3).sum().backward()
        found.append([*made, VECTOR.grad.clone()])
    for mine, right in zip(*found, strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), right.detach().numpy(), rtol=1e-10)


def test_values_that_two_calls_read():
    def f(x):
        h = W(x)
        return (h * h).sum(0) + (h + x).mean(0) - h.logsumexp(0)

    leaves = [t.requires_grad_() for t in ragged()]
    compare(f, leaves, W.parameters(), leaves, weights=[1.0, 1.0, 0.0])


@pytest.mark.parametrize("mode", [wf.no_grad, wf.inference_mode])
def test_without_gradients(mode):
    with mode():
        stats = compare(lambda x: (W(x).tanh().softmax(0) * x).sum(0), ragged())
    assert {k.groups for k in stats.kinds} == {1}


def test_under_autocast():
    examples = [t.float() for t in ragged()]
    single = nn.Linear(WIDTH, WIDTH)

    def f(x):
        with wf.autocast("cpu", dtype=wf.bfloat16):
            return (single(x).softmax(0) * single(x)).sum(0)

    made, right = wf.map(f, examples), [f(x) for x in examples]
    for mine, its in zip(made, right, strict=True):
        assert mine.dtype == its.dtype and mine.shape == its.shape
        np.testing.assert_allclose(mine.detach().float().numpy(), its.detach().float().numpy(), rtol=0.05, atol=0.02)


def test_backward_through_one_result_after_the_other():
    leaves = [t.requires_grad_() for t in ragged()]
    found = []
    for run in (lambda f, xs: [f(x) for x in xs], wf.map):
        W.weight.grad = None
        for t in leaves:
            t.grad = None
        for out in run(lambda x: (W(x).tanh() * x).sum(), leaves):
            out.backward()
        found.append([t.grad.clone() for t in (*leaves, W.weight)])
    for mine, right in zip(*found, strict=True):
        np.testing.assert_allclose(mine.numpy(), right.numpy(), rtol=1e-9, atol=1e-11)


def test_a_weight_written_after_the_map_is_an_error_as_in_the_loop():
    leaves = [t.requires_grad_() for t in ragged()]
    layer_ = layer()
    made = wf.map(lambda x: layer_(x).tanh().sum(0), leaves)
    with wf.no_grad():
        layer_.weight += 1.0
    with pytest.raises(RuntimeError, match="modified by an in-place operation"):
        sum([t.sum() for t in made]).backward()


# -- attention ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_attention_over_lengths(causal):
    in_rows = layer(WIDTH, 3 * WIDTH)

    def f(x):
        q, k, v = in_rows(x).chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).sum(0)

    leaves = [t.requires_grad_() for t in ragged([3, 1, 12, 0, 2, 30, 4, 4])]
    stats = compare(f, leaves, in_rows.parameters(), leaves, weights=[1.0, 0.5, 0.0])
    assert groups_of(stats, "attention") == (1, 8)


def test_multi_head_attention_over_lengths():
    attention = nn.MultiheadAttention(4, 2).double()
    leaves = [t.requires_grad_() for t in ragged(LENGTHS, 4)]
    stats = compare(lambda x: attention(x, x, x, need_weights=False)[0].sum(0), leaves, attention.parameters(), leaves)
    assert groups_of(stats, "self_attention") == (1, len(LENGTHS))
    assert groups_of(stats, "linear") == (2, 2 * len(LENGTHS))


def test_a_transformer_layer_over_lengths():
    block = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).double()
    leaves = [t.requires_grad_() for t in ragged(LENGTHS, 4)]
    stats = compare(lambda x: block(x).mean(0), leaves, block.parameters(), leaves, weights=[1.0, 0.0, 2.0])
    assert stats.groups <= 12 and stats.nodes >= 11 * len(LENGTHS)


def test_a_transformer_layer_differentiated_twice():
    block = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).double()
    leaves = [t.requires_grad_() for t in ragged([2, 3, 1], 4)]
    found = []
    for run in (lambda f, xs: [f(x) for x in xs], wf.map):
        total = sum(run(lambda x: block(x).square().sum(), leaves))
        first = wf.autograd.grad(total, leaves, create_graph=True)
        found.append([*first, *wf.autograd.grad(sum([g.square().sum() for g in first]), leaves)])
    for mine, right in zip(*found, strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), right.detach().numpy(), rtol=1e-8, atol=1e-10)


# -- batches of one ----------------------------------------------------------------------------------------------------


BATCHES_OF_ONE = {
    "Linear": lambda x: W(x),
    "tanh": lambda x: x.tanh() * 2,
    "a row of its own": lambda x: x * x[:, :1],
    "a shared vector": lambda x: x + VECTOR,
    "softmax over positions": lambda x: x.softmax(1),
    "sum over positions": lambda x: x.sum(1),
    "mean over positions": lambda x: x.mean(1, keepdim=True),
    "sum over the batch": lambda x: x.sum(0),
    "sum over features": lambda x: x.sum(-1),
    "squeezed": lambda x: x.squeeze(0) * 2,
    "heads": lambda x: (x.reshape(1, -1, WIDTH, 1) * 2).sum(3),
    "transposed": lambda x: (x.transpose(1, 2) * 2).sum(1),
    "cat of features": lambda x: wf.cat([x, x], 2).sum(1),
}


@pytest.mark.parametrize("name", BATCHES_OF_ONE)
def test_batches_of_one(name):
    leaves = [t[None].requires_grad_() for t in ragged()]
    compare(lambda x: BATCHES_OF_ONE[name](x * 1), leaves, [*W.parameters(), VECTOR], leaves, weights=[1.0, 0.0, 0.5])


@pytest.mark.parametrize("name", ["Linear", "tanh", "a shared vector", "softmax over positions", "sum over positions"])
def test_one_group_for_batches_of_one(name):
    stats = compare(BATCHES_OF_ONE[name], [t[None] for t in ragged()], [*W.parameters(), VECTOR])
    assert {k.groups for k in stats.kinds} == {1}
