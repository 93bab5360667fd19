"""Command trees: jumps go where the bits of a value say, and a run ends at a stop."""

import numpy as np
import pytest

import wayfare as wf
from wayfare.codegen.loop.expr import load
from wayfare.codegen.loop.language import elementwise
from wayfare.codegen.runtime import kernel as native
from wayfare.codegen.runtime.command_tree import CommandTree, Jump, element_bits, stop, truth_mask
from wayfare.codegen.runtime.commands import BufferView, Commands
from wayfare.core.counters import counted

pytestmark = pytest.mark.skipif(not native.available(), reason="llvmlite does not work here")

X = load(0, "f32")
TWICE = native.build(elementwise("twice_of_tree", ["f32"], X * 2.0))
MORE = native.build(elementwise("more_of_tree", ["f32"], X + 1.0))
F32 = np.dtype("float32")


def piece(kernel, size=4):
    """A list that changes its only buffer in place."""
    view = BufferView(0, 0, (size,), (4,), F32)
    commands = Commands()
    assert commands.kernel(kernel, (size,), None, [view], [view])
    return commands


@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])
@pytest.mark.parametrize("value, truth", [(0, False), (1, True), (-0.0, False), (float("nan"), True), (-2, True)])
def test_truth_decides(dtype, value, truth):
    if np.dtype(dtype).kind != "f" and value != value:
        pytest.skip("no integer is NaN")
    tree = CommandTree()
    twice, more = tree.add(piece(TWICE), [0]), tree.add(piece(MORE), [0])
    tree.jump(twice, Jump(otherwise=stop(1)))
    tree.jump(more, Jump(otherwise=stop(2)))
    flag = np.array([9, value, 9]).astype(dtype)
    first = tree.add(Commands(), [0, 1])
    view = BufferView(1, flag.itemsize, (), (), flag.dtype)
    tree.jump(first, Jump(view, truth_mask(flag.dtype), {0: more}, twice))
    x = np.arange(4, dtype=np.float32)
    assert tree.run((x, flag), first) == (1 if truth else 2)
    np.testing.assert_array_equal(x, np.arange(4) * 2 if truth else np.arange(4) + 1)


@pytest.mark.parametrize("dtype", ["int8", "int64", "float16", "float32", "float64"])
def test_numbers_decide_by_their_bits(dtype):
    tree = CommandTree()
    first = tree.add(Commands(), [5])
    numbers = [0, 3, -3, 100]
    tree.jump(first, Jump(BufferView(0, 0, (), (), np.dtype(dtype)),
                          table={element_bits(np.array(n, dtype)): stop(7 + k) for k, n in enumerate(numbers)},
                          otherwise=stop(0)))  # fmt: skip
    for k, n in enumerate(numbers):
        assert tree.run((None,) * 5 + (np.array(n, dtype),), first) == 7 + k
    for other in (2, -1) if dtype.startswith("int") else (2, -0.0, float("nan")):
        assert tree.run((None,) * 5 + (np.array(other, dtype),), first) == 0


def test_a_chain_of_pieces_counts_what_it_ran_and_follows_the_threads():
    tree = CommandTree()
    pieces = [tree.add(piece(MORE, 100_000), [2]) for _ in range(3)]
    kept = np.zeros(100_000, np.float32)
    tree.fix(2, kept)
    for here, after in zip(pieces, [*pieces[1:], stop(4)], strict=True):
        tree.jump(here, Jump(otherwise=after))
    before = wf.get_num_threads()
    try:
        for turn, threads in enumerate((1, 2, 1)):
            wf.set_num_threads(threads)
            with counted() as count:
                assert tree.run((), pieces[0]) == 4
            assert count.kernels_run == 3 and count.lists_run == 1
            assert (kept == 3 * (turn + 1)).all()
        assert tree.run((), pieces[0]) == 4
    finally:
        wf.set_num_threads(before)
