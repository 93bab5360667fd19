"""Passes over a program: what it looks like before and after."""

import numpy as np
import pytest

from wayfare.core.op import REGISTRY
from wayfare.core.symbolic_sizes import Repeated, symbol
from wayfare.ir.graph import Block, Slot, Step, constant, leaf, unbound
from wayfare.ir.passes.common_subexpressions import array_key, number_key, step_key
from wayfare.ir.passes.simplify import simplified
from wayfare.ir.program import Program

F32, I64 = np.dtype("float32"), np.dtype("int64")


def make(name, *inputs, shape=None, **attrs):
    """A step with one output, of the shape of its first input if no other is given."""
    return Step(REGISTRY[name], inputs, attrs).makes(unbound(inputs[0].shape if shape is None else shape, F32))


def program(inputs, steps, outputs, symbols=()):
    """A program of one block."""
    names = [str(i) for i in range(len(inputs))]
    return Program(Block(list(inputs), list(steps), list(outputs)), list(symbols), names, ["out"] * len(outputs), None)


def names(block):
    """The names of the steps, with those of inner blocks."""
    return [step.name if not step.blocks else (step.name, *map(names, step.blocks)) for step in block.steps]


def test_steps_on_constants_become_constants():
    x = leaf("input", "x", (2,), F32)
    two, three = constant(np.full(2, 2, F32)), constant(np.full(2, 3, F32))
    total = make("add", two, three)
    out = make("mul", x, total.outputs[0])
    made = simplified(program([x], [total, out], out.outputs))
    assert names(made.block) == ["mul"]
    np.testing.assert_array_equal(made.block.steps[0].inputs[1].array, [5, 5])


def test_an_attribute_with_a_symbol_is_not_folded():
    n = symbol(0, 3)
    x = leaf("input", "x", (n,), F32)
    wide = make("expand", constant(np.ones(1, F32)), shape=(n,))
    wide.attrs["shape"] = (n,)
    out = make("add", x, wide.outputs[0])
    assert names(simplified(program([x], [wide, out], out.outputs, [(x, 0)])).block) == ["expand", "add"]


def test_equal_steps_become_one_also_inside_a_branch():
    x, truth = leaf("input", "x", (2,), F32), leaf("input", "truth", (), np.dtype(bool))
    first, again, inner = make("exp", x), make("exp", x), make("exp", x)
    both = make("add", first.outputs[0], again.outputs[0])
    then = Block([], [inner], [inner.outputs[0]])
    otherwise = Block([], [], [both.outputs[0]])
    branch = Step(None, (truth,), {}, "if", blocks=(then, otherwise)).makes(unbound((2,), F32))
    made = simplified(program([x, truth], [first, again, both, branch], branch.outputs))
    assert names(made.block) == ["exp", "add", ("if", [], [])]
    assert made.block.steps[1].inputs[0] is made.block.steps[1].inputs[1] is then.outputs[0]


def test_what_one_branch_computes_is_not_used_by_the_other():
    x, truth = leaf("input", "x", (2,), F32), leaf("input", "truth", (), np.dtype(bool))
    sides = [make("exp", x) for _ in range(2)]
    blocks = tuple(Block([], [side], [side.outputs[0]]) for side in sides)
    branch = Step(None, (truth,), {}, "if", blocks=blocks).makes(unbound((2,), F32))
    made = simplified(program([x, truth], [branch], branch.outputs))
    assert names(made.block) == [("if", ["exp"], ["exp"])]


def loop_of(x, carried, collects):
    """A loop over one value that collects several."""
    state = leaf("input", "carried", x.shape, F32)
    steps = [make("tanh", state), *[make(name, state) for name in collects]]
    counter = leaf("input", "iteration", (), I64)
    body = Block([counter, state], steps, [step.outputs[0] for step in steps])
    attrs = {"trips": 3, "asks": False, "entry": False, "carried": carried}
    outputs = [unbound(x.shape, F32), *[unbound((3, *x.shape), F32) for _ in collects]]
    return Step(None, (x,), attrs, "loop", blocks=(body,)).makes(*outputs), counter


def test_what_a_loop_collects_and_nobody_reads_is_left_out():
    x = leaf("input", "x", (2,), F32)
    loop, _ = loop_of(x, 1, ["exp", "sin", "cos"])
    made = simplified(program([x], [loop], [loop.outputs[0], loop.outputs[2]]))
    assert names(made.block) == [("loop", ["tanh", "sin"])]
    assert [v.position for v in loop.outputs] == [0, 1] and made.block.outputs[1] is loop.outputs[1]


def test_the_symbols_of_dead_steps_go_with_them():
    n = symbol(1, 4)
    x = leaf("input", "x", (n,), F32)
    loop, counter = loop_of(x, 1, [])
    out = make("reshape", x, shape=(n, 1))
    out.attrs["shape"] = (n, 1)
    made = simplified(program([x], [loop, out], out.outputs, [(counter, -1), (x, 0)]))
    assert names(made.block) == ["reshape"] and made.symbols == [(x, 0)]
    assert x.shape[0].formula == out.attrs["shape"][0].formula == out.outputs[0].shape[0].formula == ("symbol", 0)


def test_a_weight_stays_apart_from_an_equal_one():
    x = leaf("input", "x", (2,), F32)
    weights = [constant(np.ones(2, F32), name) for name in ("a", "b")]
    numbers = [constant(np.ones(2, F32)) for _ in range(2)]
    steps = [make("add", x, v) for v in (*weights, *numbers)]
    made = simplified(program([x], steps, [step.outputs[0] for step in steps]))
    assert len(made.block.steps) == 3
    assert [v.step.path for v in made.block.constants()] == ["a", "b", ""]


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 1.0), (1, True), (0.0, -0.0), (slice(0, 2), slice(0, 3)), (symbol(0, 3), symbol(1, 3)), (3, symbol(0, 3)),
     (slice(0, symbol(0, 3)), slice(0, symbol(1, 3))), (Slot(0), Slot(1)), (Repeated(1, symbol(0, 2)), (1, 1)),
     ((1, (2, None)), (1, (2, Ellipsis)))],
)  # fmt: skip
def test_keys_of_attributes(one, other):
    op = REGISTRY["exp"]
    assert step_key(op, (), {"a": one}) == step_key(op, (), {"a": one}) != step_key(op, (), {"a": other})


def test_what_cannot_be_compared_has_no_key():
    assert step_key(REGISTRY["exp"], (), {"a": np.ones(2)}) is None
    assert array_key(np.zeros(1 << 16, F32)) is None
    assert number_key(0.0, F32) != number_key(-0.0, F32)
