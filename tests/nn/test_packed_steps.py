"""All steps of a recurrence in one native call: the same as NumPy's steps, however the sequences are shared out."""

import numpy as np
import pytest

from wayfare.codegen.runtime import kernel
from wayfare.core.op import REGISTRY, raw_ops
from wayfare.ops.recurrent import packed

GATES = {"lstm_sequence": 4, "gru_sequence": 3, "rnn_tanh_sequence": 1, "rnn_relu_sequence": 1}
needs_native = pytest.mark.skipif(not kernel.available(), reason="llvmlite does not work here")


def inputs(name, sizes, features, hidden, dtype):
    numbers = np.random.default_rng(len(sizes) + hidden)
    count, width = 1 + (name == "lstm_sequence"), GATES[name] * hidden
    sequences = sizes[0] + 2  # two of them have no step
    weights = [(width, features), (width, hidden), (width,), (width,)]
    shapes = [(sum(sizes), features), *[(sequences, hidden)] * count, *weights]
    return [(numbers.normal(size=shape) / max(1, shape[-1]) ** 0.5).astype(dtype) for shape in shapes]


def both(name, arrays, sizes, reverse, with_gradients_of):
    """The outputs, and the gradients of all inputs from those of some outputs."""
    op = REGISTRY[name]
    made = op.forward(*arrays, sizes=sizes, reverse=reverse)
    numbers = np.random.default_rng(7)
    seeds = [numbers.normal(size=m.shape).astype(m.dtype) for m in made]
    wanted = op.differentiable_outputs
    given = [g if i in wanted and i in with_gradients_of(len(made)) else None for i, g in enumerate(seeds)]
    found = op.vjp.rule(raw_ops, (True,) * len(arrays), given, made, *arrays, sizes=sizes, reverse=reverse)
    return list(made), list(found)


def close(one, other, dtype):
    limit = 3e-5 if dtype == "float32" else 1e-12
    for mine, right in zip(one, other, strict=True):
        assert (mine is None) == (right is None)
        if mine is not None:
            np.testing.assert_allclose(mine, right, rtol=limit, atol=limit)


@needs_native
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", GATES)
def test_native_steps_are_those_of_numpy(name, dtype, reverse, monkeypatch):
    for sizes, features, hidden in [
        ((9, 9, 7, 3, 3, 1), 5, 20), ((1,), 1, 1), ((1, 1, 1), 3, 16), ((31, 30, 2), 2, 33), ((25,) * 4, 4, 64),
    ]:  # fmt: skip
        arrays = inputs(name, sizes, features, hidden, dtype)
        for chosen in (range, lambda n: [0], lambda n: [1], lambda n: [n - 1]):
            found = both(name, arrays, sizes, reverse, chosen)
            with monkeypatch.context() as patch:
                patch.setattr(packed, "ready", lambda *_: False)
                right = both(name, arrays, sizes, reverse, chosen)
            for mine, theirs in zip(found, right, strict=True):
                close(mine, theirs, dtype)


@needs_native
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", GATES)
def test_sequences_in_parts(name, reverse, monkeypatch):
    sizes = (40, 40, 33, 20, 20, 19, 8, 1)
    arrays = inputs(name, sizes, 6, 24, "float64")
    whole = both(name, arrays, sizes, reverse, range)
    for count in (2, 3, 5, 40):
        monkeypatch.setattr(packed, "_split", lambda sizes, work, reverse, n=count: packed._parts(sizes, reverse, n))
        parts = both(name, arrays, sizes, reverse, range)
        for mine, theirs in zip(parts, whole, strict=True):
            close(mine, theirs, "float64")


@pytest.mark.parametrize("reverse", [False, True])
def test_parts_have_every_row_once_and_about_as_many_each(reverse):
    sizes = tuple(range(60, 4, -1))
    for count in (1, 2, 3, 4):
        parts = packed._parts(sizes, reverse, count)
        assert len(parts) == count and parts[0][0] == 0
        steps = [step for _, table, _ in parts for step in table.tolist()]
        rows = [row for start, size, *_ in steps for row in range(start, start + size)]
        assert sorted(rows) == list(range(sum(sizes)))
        shares = [int(table[:, 1].sum()) / sum(sizes) for _, table, _ in parts]
        assert max(shares) < 1.15 / count
        for _, table, back in parts:
            assert table.tolist() == back.tolist()[::-1]
            assert table[0, 2] == 0 and table[-1, 4] == 0  # nothing comes before, nothing goes on


@needs_native
def test_operands_may_lie_anyhow():
    sizes = (6, 4, 4, 1)
    arrays = inputs("lstm_sequence", sizes, 3, 18, "float32")
    right = both("lstm_sequence", arrays, sizes, False, range)
    odd = [np.asfortranarray(a) for a in arrays]
    odd[-1] = np.repeat(arrays[-1], 2)[::2]
    found = both("lstm_sequence", odd, sizes, False, range)
    for mine, theirs in zip(found, right, strict=True):
        close(mine, theirs, "float32")
