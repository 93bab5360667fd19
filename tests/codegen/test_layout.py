"""From shapes and strides to argument blocks: axes merged, classes found, work split into parts, sizes past 2³¹."""

import numpy as np
import pytest

from wayfare.codegen.loop import layout
from wayfare.codegen.loop.expr import load, reduction
from wayfare.codegen.loop.language import Loop, Operand, Reduction, Stage, elementwise
from wayfare.codegen.loop.layout import Scattered, elementwise_nest, elementwise_parts, parts, rows_nest
from wayfare.codegen.runtime import kernel

X = load(0, "f32")


def nest(*arrays, outputs=1):
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    sizes, strides = [a.shape for a in arrays], [a.strides for a in arrays]
    return elementwise_nest(shape, sizes, strides, [a.itemsize for a in arrays], outputs)


def f32(*shape):
    return np.zeros(shape, np.float32)


def sum_loop(dtype="f32"):
    return Loop("sum", (Operand(dtype),), (Operand(dtype, True),), (Stage((), (Reduction("sum", load(0, dtype)),)),),
                ((0, reduction(0, dtype)),))  # fmt: skip


def test_contiguous_arrays_become_one_row():
    found = nest(f32(3, 4, 5), f32(3, 4, 5))
    assert found.sizes == (1, 1, 60) and found.layout.classes == "cc"


def test_transposed_arrays_become_one_row_too():
    assert nest(f32(3, 4).T, f32(3, 4).T).sizes == (1, 1, 12)


def test_a_bias_is_broadcast_along_rows_or_inside_them():
    assert nest(f32(3, 4), f32(4), f32(3, 4)).layout.classes == "ccc"
    found = nest(f32(3, 4), f32(3, 1), f32(3, 4))
    assert found.layout.classes == "cbc" and found.sizes == (1, 3, 4)
    assert nest(f32(3, 4), f32(), f32(3, 4)).sizes == (1, 1, 12)


def test_steps_and_backward_axes_are_strided():
    assert nest(f32(10)[::2], f32(5)).layout.classes == "sc"
    assert nest(f32(5)[::-1], f32(5)).layout.classes == "sc"
    assert nest(f32(4, 5)[:, ::-1][::-1], f32(4, 5)).sizes == (1, 1, 20)


def test_the_innermost_axis_is_the_outputs():
    found = nest(f32(4, 3).T, f32(3, 4))
    assert found.layout.classes == "sc" and found.sizes == (1, 3, 4)
    assert nest(f32(3, 4), f32(4, 3).T).sizes == (1, 4, 3)


def test_a_single_element_is_contiguous():
    for shape in ((), (1,), (1, 1, 1)):
        found = nest(f32(*shape), f32(*shape))
        assert found.sizes == (1, 1, 1) and found.layout.classes == "cc"


def test_too_many_axes_are_said_to_be():
    strange = f32(2, 3, 4, 5)[:, ::2].transpose(3, 1, 0, 2)
    with pytest.raises(Scattered):
        nest(strange, f32(*strange.shape))


def rows(loop, axis, *arrays):
    shape = np.broadcast_shapes(*(a.shape for a in arrays[: len(loop.inputs)]))
    sizes, strides = [a.shape for a in arrays], [a.strides for a in arrays]
    return rows_nest(loop, shape, axis, sizes, strides, [a.itemsize for a in arrays])


def test_rows_lie_along_the_lanes_where_they_are_contiguous():
    found = rows(sum_loop(), (1,), f32(6, 8), f32(6, 1))
    assert found.layout.mode == "along" and found.layout.classes == "cb" and found.sizes == (1, 6, 8)


def test_columns_lie_across_the_lanes():
    found = rows(sum_loop(), (0,), f32(6, 8), f32(1, 8))
    assert found.layout.mode == "across" and found.layout.classes == "cc" and found.sizes == (1, 8, 6)
    found = rows(sum_loop(), (1,), f32(6, 8, 5), f32(6, 1, 5))
    assert found.layout.mode == "across" and found.sizes == (6, 5, 8)


def test_adjacent_axes_are_one_row_if_they_run_on():
    assert rows(sum_loop(), (1, 2), f32(6, 8, 5), f32(6, 1, 1)).sizes == (1, 6, 40)
    with pytest.raises(Scattered):
        rows(sum_loop(), (1, 2), f32(6, 8, 5).transpose(0, 2, 1), f32(6, 1, 1))


@pytest.mark.parametrize("sizes", [(1, 1, 1000), (1, 7, 100), (64, 3, 5), (1, 1, 3), (3, 5, 2)])
@pytest.mark.parametrize("count", [1, 2, 3, 16])
@pytest.mark.parametrize("splitter", [elementwise_parts, parts])
def test_parts_cover_the_nest_once(sizes, count, splitter):
    array = np.zeros(sizes, np.int64)
    found = layout.Nest(layout.Layout("along", "c"), sizes, (array.strides,))
    seen = np.zeros(sizes, int)
    for block in splitter(found, count):
        outer, row, element, offset, *strides = block
        assert outer > 0 and row > 0 and element > 0 and tuple(strides) == array.strides
        start = np.unravel_index(offset // 8, sizes)
        seen[tuple(slice(s, s + n) for s, n in zip(start, (outer, row, element), strict=True))] += 1
        assert splitter is elementwise_parts or element == sizes[2]  # a row is not split
    assert (seen == 1).all()


# -- past 2³¹ -----------------------------------------------------------------------------------------------------

HUGE = 2**31 + 5


def test_words_of_huge_arrays_are_64_bits():
    byte = np.broadcast_to(np.zeros(1, np.uint8), (3, HUGE))
    words = nest(byte, byte).words()
    assert words[:3] == [1, 1, 3 * HUGE]
    found = elementwise_nest((5, HUGE), [(5, HUGE)], [(9 * HUGE, 8)], [8], 1)
    last = elementwise_parts(found, 2)[-1]
    assert last[3] > 2**31 and last[4:] == [0, 9 * HUGE, 8]


@pytest.mark.parametrize(("dtype", "kind"), [("bool", "any"), ("u8", "max"), ("i64", "sum")])
def test_a_reduction_of_more_than_two_to_the_31_elements(dtype, kind):
    value = load(0, dtype)
    made = Reduction(kind, value)
    loop = Loop("huge", (Operand(dtype),), (Operand(made.dtype, True),), (Stage((), (made,)),),
                ((0, reduction(0, made.dtype)),))  # fmt: skip
    one = np.ones(1, "bool" if dtype == "bool" else "uint8" if dtype == "u8" else "int64")
    (got,) = kernel.build(loop).rows([np.broadcast_to(one, (HUGE,))], 0)
    assert got.shape == (1,) and got[0] == (HUGE if kind == "sum" else 1)


def test_the_last_index_of_a_huge_row():
    from wayfare.codegen.loop.expr import index

    loop = Loop("last", (Operand("u8"),), (Operand("i64", True),), (Stage((), (Reduction("max", index()),)),),
                ((0, reduction(0, "i64")),))  # fmt: skip
    (got,) = kernel.build(loop).rows([np.broadcast_to(np.zeros(1, np.uint8), (HUGE,))], 0)
    assert got[0] == HUGE - 1


def test_an_array_of_two_gigabytes_is_read_to_its_end():
    """Virtual memory that is never touched, but for the last page."""
    import mmap

    try:
        memory = mmap.mmap(-1, HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0))
    except (OSError, ValueError, AttributeError):
        pytest.skip("this system reserves memory when it is asked for")
    array = np.frombuffer(memory, np.uint8)
    far = array[:: 2**27]  # a few elements, gigabytes apart
    array[2**31] = 7
    (got,) = kernel.build(elementwise("twice", ["u8"], load(0, "u8") + load(0, "u8")))([far])
    assert got[-1] == 14 and got[:-1].sum() == 0
