"""Short ways into calls: whatever differs from the last call of a cell goes the long way, and nothing is ever stale."""

import functools
import gc

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.batch import session as sessions
from wayfare.codegen.routines import transposed_weights


def same(one, other):
    for a, b in zip(one, other, strict=True):
        wf.testing.assert_close(a, b)


def check(function, *columns):
    """Batched and in a loop; gradients of what requires one too."""
    found = []
    for batch in (True, False):
        wf.manual_seed(1)
        found.append(wf.map(function, *columns, batch=batch))
    same(*found)
    return found[0]


@pytest.fixture
def long_ways(monkeypatch):
    """How often an opaque call found no fast path."""
    count = []
    general = sessions.Session._opaque_call
    monkeypatch.setattr(sessions.Session, "_opaque_call", lambda self, *given: count.append(1) or general(self, *given))
    return count


def test_equal_calls_go_the_long_way_once(long_ways):
    cell = nn.LSTMCell(3, 4)

    def last(xs):
        state = None
        for x in xs:
            state = cell(x, state)
        return state[0]

    wf.map(last, [[wf.randn(3) for _ in range(5)] for _ in range(6)])
    assert len(long_ways) == 2  # without a state, and with one


def test_tuples_lists_and_other_forms_are_told_apart():
    cell, linear = nn.LSTMCell(3, 3), nn.Linear(3, 3)

    def mixed(x, i):
        h = linear(x)
        state = (h, h) if i % 3 else [h, h]
        for step in range(3):
            state = cell(x if step % 2 else h, state)
        if i % 2:
            state = cell(x)
        return state[0]

    check(mixed, [wf.randn(3) for _ in range(7)], range(7))


def test_rows_of_other_shapes_and_dtypes():
    linear = nn.Linear(3, 2)

    def apply(x):
        return linear(x).sum() + linear(x.float()).sum()

    check(apply, [wf.randn(3), wf.randn(2, 3), wf.randn(3), wf.randn(4, 3), wf.randn(3)])


def test_a_tensor_from_outside_that_needs_a_gradient_or_is_a_weight():
    linear, table = nn.Linear(3, 3), nn.Parameter(wf.randn(3))
    leaves = [wf.randn(3, requires_grad=i % 2 == 0) for i in range(5)]
    for batch in (True, False):
        for t in (table, *leaves, *linear.parameters()):
            t.grad = None
        made = wf.map(lambda x: (linear(x) * linear(table)).sum(), leaves, batch=batch)
        sum(made).backward()
        if batch:
            kept = [t.grad if t.grad is None else t.grad.clone() for t in (table, *leaves, *linear.parameters())]
    for a, t in zip(kept, (table, *leaves, *linear.parameters()), strict=True):
        assert (a is None) == (t.grad is None)
        if a is not None:
            wf.testing.assert_close(a, t.grad)


def test_with_and_without_gradients():
    linear = nn.Linear(3, 3)

    def apply(x):
        h = linear(x)
        with wf.no_grad():
            quiet = linear(h) * 2
        return linear(h) + quiet

    made = check(apply, [wf.randn(3) for _ in range(4)])
    assert all(t.requires_grad for t in made)
    with wf.inference_mode():
        assert all(t.is_inference() for t in wf.map(apply, [wf.randn(3) for _ in range(3)]))


def test_a_forward_of_the_instance_is_called():
    linear = nn.Linear(3, 3)
    linear.forward = lambda x: x * 2
    same(wf.map(linear, [wf.ones(3)] * 2), [wf.full((3,), 2.0)] * 2)


def test_a_forward_that_wraps_the_layers_own_is_called():
    class Doubled(nn.Linear):
        @functools.wraps(nn.Linear.forward)
        def forward(self, x):
            return super().forward(x) * 2

    layer = Doubled(3, 3)
    check(layer, [wf.randn(3) for _ in range(3)])


def test_a_layer_that_changes_on_the_way():
    linear, table = nn.Linear(3, 3), nn.Embedding(4, 3)

    def apply(x, i):
        h = linear(x)
        if i == 4:  # the last: where an example waits, others go ahead
            linear.weight = nn.Parameter(wf.zeros(3, 3))
            table.scale_grad_by_freq = True
        return linear(h) + table(wf.tensor(i % 4))

    weight = linear.weight
    made = wf.map(apply, [wf.ones(3)] * 5, range(5))
    linear.weight, table.scale_grad_by_freq = weight, False
    same(made, wf.map(apply, [wf.ones(3)] * 5, range(5), batch=False))


def test_a_new_layer_at_the_address_of_an_old_one():
    def apply(x):
        total = x.sum()
        for i in range(20):
            fresh = nn.Linear(3, 1)
            with wf.no_grad():
                fresh.weight.fill_(i)
                fresh.bias.zero_()
            total = total + fresh(x).sum()
            del fresh
        return total

    same(wf.map(apply, [wf.ones(3)] * 3), [wf.tensor(3.0 + 3 * 190)] * 3)


def test_operators_with_numbers_from_either_side_and_of_either_dtype():
    def apply(x):
        y = x.double()
        one = 1 - x + (x - 1) * 2 + 2 / x + x / 2 + (x > 0) * x + (x <= 0.5) * 1.0
        other = 1 - y + (y - 1) * 2 + 2 / y + y / 2 + (y != 1) * y + (x == y) * 1.0
        return one + other + x * y

    check(apply, [wf.randn(3) for _ in range(4)])


def test_whole_numbers_times_a_fraction():
    same(wf.map(lambda x: x.sum() * 0.5 + (x < 1.5).sum(), [wf.tensor([1, 2])] * 2), [wf.tensor(2.5)] * 2)


def test_numbers_of_any_kind_keep_what_they_are():
    def apply(x):
        return (x * True).sum() + (x + 2**40).sum() + (x.int() + 1).sum() + (x.int() < 1.5).sum() - x.half().sum()

    check(apply, [wf.randn(3) for _ in range(3)])


def test_reductions_are_learnt_with_all_their_arguments():
    def apply(x):
        total = x.sum() + x.sum(0).sum() + x.sum(1).mean() + x.sum((0, 1))
        total = total + x.sum(0, True).sum() + x.sum(0, False).sum()
        total = total + x.softmax(0).max() + x.softmax(-1).norm() + x.mean(-1).amax() + x.sum(dtype=wf.float64).float()
        return total * (x.argmax() + x.argmax(0).sum() - x.argmax(1).sum())

    check(apply, [wf.randn(3, 4) for _ in range(5)])
    check(lambda x: x.double().sum() + (x > 0).sum() + x.int().sum(), [wf.randn(3) for _ in range(3)])


def test_indices_that_are_equal_and_not_the_same():
    def apply(x):
        return x[0] + x[1] + x[False].sum() + x[True].sum() + x[0] * x[-1]

    check(apply, [wf.randn(2, 3) for _ in range(3)])


def test_nothing_is_left_behind(no_cycle_collector):
    linear = nn.Linear(3, 3)

    def run():
        wf.map(lambda x: (linear(x) + 1).tanh().sum(), [wf.randn(3) for _ in range(4)])

    run()
    gc.collect()
    for _ in range(3):
        run()
    assert gc.collect() == 0


def test_transposed_weights_are_cached_only_while_groups_run():
    cell = nn.GRUCell(64, 64)

    def apply(x):
        h = x
        for _ in range(4):
            h = cell(x, h)
            assert not transposed_weights.CACHING
        return h

    xs = [wf.randn(64) for _ in range(5)]
    before = wf.map(apply, xs)
    with wf.no_grad():
        cell.weight_hh.mul_(2)
        cell.weight_ih.numpy(force=True)[...] *= 0.5
    assert not transposed_weights.CACHING
    after = wf.map(apply, xs)
    same(after, wf.map(apply, xs, batch=False))
    assert not wf.equal(before[0], after[0])


def test_a_transposed_copy_is_made_at_the_second_use():
    weight = wf.randn(3, 5).numpy()
    assert transposed_weights.transposed(weight).base is weight
    with transposed_weights.caching_transposes():
        first, second, third = (transposed_weights.transposed(weight) for _ in range(3))
        assert first.base is weight and second.flags.c_contiguous and second is third
    assert transposed_weights.transposed(weight).base is weight


def test_gradients_of_two_biases_are_two_arrays():
    cell = nn.LSTMCell(3, 4)
    xs = [[wf.randn(3) for _ in range(n)] for n in (2, 5, 3)]

    def last(sequence):
        state = None
        for x in sequence:
            state = cell(x, state)
        return state[0].sum()

    found = []
    for batch in (True, False):
        cell.zero_grad()
        sum(wf.map(last, xs, batch=batch)).backward()
        found.append([p.grad.clone() for p in cell.parameters()])
        assert not np.shares_memory(cell.bias_ih.grad.numpy(), cell.bias_hh.grad.numpy())
    same(*found)


@pytest.mark.parametrize("name, form", [
    ("tanh", lambda x, y: wf.tanh(x)), ("relu", lambda x, y: nn.functional.relu(x)),
    ("mul", lambda x, y: wf.mul(x, y)), ("mul by a number", lambda x, y: wf.mul(x, 2.0)),
    ("cat", lambda x, y: wf.cat([x, y])), ("cat from the end", lambda x, y: wf.cat((x, y, x), dim=-1)),
    ("stack", lambda x, y: wf.stack([x, y], 1)), ("unsqueeze", lambda x, y: x.unsqueeze(0)),
    ("squeeze", lambda x, y: x.view(1, 4).squeeze(0)), ("view", lambda x, y: x.view(2, 2)),
    ("reshape", lambda x, y: x.reshape(-1, 2)), ("flatten", lambda x, y: x.view(2, 2).flatten()),
    ("sum", lambda x, y: x.sum(0, keepdim=True)),
])  # fmt: skip
def test_the_second_call_of_a_kind_takes_the_fast_path(name, form, monkeypatch):
    applied = []
    general = sessions.Session.apply
    monkeypatch.setattr(sessions.Session, "apply", lambda self, *given: applied.append(1) or general(self, *given))
    w = wf.ones(4, requires_grad=True)
    with wf.batching():
        x, y = w * 2.0, w * 3.0
        first = form(x, y)
        before = len(applied)
        second = form(y, x)
        assert len(applied) == before, name
    for got, want in ((first, form(w * 2.0, w * 3.0)), (second, form(w * 3.0, w * 2.0))):
        assert wf.equal(got, want) and got.requires_grad == want.requires_grad
        assert wf.equal(wf.autograd.grad(got.sum(), w)[0], wf.autograd.grad(want.sum(), w)[0])


def test_joins_that_are_not_alike_give_what_the_loop_gives():
    w = wf.ones(4, requires_grad=True)
    joins = [lambda x: wf.cat([x, x.double()]), lambda x: wf.cat([x.view(2, 2), wf.zeros(0), x.view(2, 2)]),
             lambda x: wf.stack([x, wf.ones(4)]), lambda x: wf.cat([x, wf.ones(2)], -1)]  # fmt: skip
    for join in joins:
        got = wf.map(lambda k, join=join: join(w * k), [1.0, 2.0, 3.0], batch=True)
        for mine, theirs in zip(got, [join(w * k) for k in (1.0, 2.0, 3.0)], strict=True):
            assert mine.dtype == theirs.dtype and wf.equal(mine, theirs)
    with pytest.raises(wf.errors.WayfareError, match="dim"):
        wf.map(lambda k: wf.cat([w * k, w * k], 3), [1.0, 2.0], batch=True)


def test_several_rows_of_a_table_are_looked_up_together_and_wrong_ones_fail_at_once():
    table = nn.Embedding(5, 3)
    sentences = [wf.tensor([0, 4]), wf.tensor([1, 2]), wf.tensor([3, 3])]
    same(wf.map(table, sentences, batch=True), [table(s) for s in sentences])
    stats = wf.batching.last()
    assert (stats.nodes, stats.groups, stats.rounds) == (3, 1, 1)
    went_on = []

    def look_up(words):
        made = table(words)
        went_on.append(words)
        return made

    with pytest.raises(IndexError, match="example 1"):
        wf.map(look_up, [sentences[0], wf.tensor([1, 5]), wf.tensor([1, -1])], batch=True)
    assert len(went_on) == 1


def test_calls_with_numbers_and_names_have_fast_paths_of_their_own(long_ways):
    w = wf.ones(3, requires_grad=True)

    def work(x, k, name, flag=None):
        made = (x * w + k).sin().cos()
        return made if name == "a" else made.tanh()

    def program(x):
        x = x * 2
        return [work(x, k, name, flag) for k in (0, 1, True, 2) for name in ("a", "b") for flag in (None, 1)][-1]

    def several(x):
        x = x * 2
        return wf.stack([work(x, 1, "a"), work(x, True, "b"), work(x, 1, "b"), work(x, 300, "a"), work(x, 300, "b")])

    check(program, [wf.full((3,), float(i)) for i in range(4)])
    long_ways.clear()
    check(several, [wf.full((3,), float(i)) for i in range(12)])
    check(several, [wf.full((3,), float(i)) for i in range(12)])
    assert 0 < len(long_ways) <= 10
