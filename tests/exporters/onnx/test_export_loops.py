"""Loops of Python become Loop, with what they carry and collect; recurrent layers are operators of their own."""

import pytest

import wayfare as wf
from tests.exporters.onnx import programs
from tests.exporters.onnx.exporting import export, kinds, same
from wayfare import nn
from wayfare.errors import ExportError

LENGTH = {"x": {0: "length"}}


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


def one_after_the_other(x):
    h, g = wf.zeros(3), wf.zeros(3)
    for t in range(x.shape[0]):
        h = (h + x[t]).tanh()
    for t in range(x.shape[0]):
        g = (g * x[t] + h * t).tanh()
    return g, h


def with_one_before(x):
    h, states = x[0], [x[0]]
    for row in x:
        h = (h + row).tanh()
        states.append(h)
    return wf.stack(states), wf.stack(states[::-1], 1), wf.cat([*states, h])


def through_again(x):
    states, h = [], wf.zeros(3)
    for row in x:
        h = (h - row).tanh()
        states.append(h)
    back = []
    for i, state in enumerate(reversed(states)):
        h = h * 0.5 + state * i
        back.append(h)
    return wf.stack(back), h


def through_again_with_others(x):
    states = [x[0], x[-1] * 2]
    for row in x:
        states.append(row.tanh())
    g = wf.ones(3)
    for state in states:
        g = g * 0.5 + state
    for state in reversed(states):
        g = (g * state).tanh()
    return g


def summed(x):
    total = 0
    for row in x:
        total = total + row.tanh()
    return total, sum(row * 2 for row in x) / len(x)


def some_of_them(x):
    states, h = [], wf.zeros(3)
    for row in x:
        h = (h + row).tanh()
        states.append(h * 2)
    return states[0], states[len(states) // 2], states[-1], states[0] - h


@pytest.mark.parametrize("function", [
    one_after_the_other, with_one_before, through_again, through_again_with_others, summed, some_of_them,
])  # fmt: skip
def test_lists_of_states_and_loops_over_them(path, function):
    export(function, (wf.randn(4, 3),), path, dynamic_axes=LENGTH)
    for length in (1, 2, 3, 17):
        same(path, function, wf.randn(length, 3))


def test_what_is_kept_from_the_turn_before_is_not_counted_from_the_end(path):
    def f(x):
        a, b = x.mean(0), x[0] * 0.5
        for row in x:
            a, b = b, wf.maximum(row + b, b)
        return a

    # For negative numbers the first and the last value are the same where there is one row.
    with pytest.raises(ExportError, match="length=1"):
        export(f, (-wf.rand(6, 3),), path, dynamic_axes=LENGTH)


def test_a_while_with_a_bound_that_is_asked_first(path):
    def f(x):
        turns, seen = 0, []
        while turns < 4 and x.abs().max() > 1:
            x = x / 2
            seen.append(x.sum())
            turns += 1
        return x, wf.stack(seen)

    export(f, [(wf.tensor([v, 1.0]),) for v in (1.5, 3.0, 7.0, 1000.0)], path)
    for v in (1.7, 2.5, 15.0, 1e6):
        same(path, f, wf.tensor([v, -1.0]))


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
    assert done >= 9
