"""The strides that traced values have in plain Python."""

import itertools

import numpy as np
import pytest

from wayfare.ir.layout import in_c_order, keeps_memory, probe


def shapes_of(count):
    if count == 1:
        return [()]
    return [(n, *rest) for n in range(2, count + 1) if count % n == 0 for rest in shapes_of(count // n)]


def arrays():
    base = np.zeros((2, 3, 4))
    yield from (base.transpose(order) for order in itertools.permutations(range(3)))
    yield from (base[:, :, ::2], base[:, 1:], base[::-1], base[:1], base[:, :1, 1:], base.T[None, :, None])
    yield np.broadcast_to(np.zeros((1, 3, 1)), (2, 3, 4))
    yield np.zeros(())
    yield np.zeros((2, 0, 3)).T


@pytest.mark.parametrize("array", list(arrays()), ids=lambda a: f"{a.shape} {a.strides}")
def test_a_shape_keeps_the_memory_where_numpy_needs_no_copy(array):
    shapes = [(0, 5)] if array.size == 0 else shapes_of(array.size)
    for shape in [*shapes, *[(1, *s, 1) for s in shapes]]:
        reshaped = array.reshape(shape)
        without_copy = array.size == 0 or np.may_share_memory(reshaped, array)
        assert keeps_memory(array.shape, array.strides, shape) == without_copy, shape


def test_a_probe_lies_as_it_is_told():
    assert in_c_order((2, 3), np.dtype(np.float32)) == (12, 4)
    for memory in (False, True):
        assert probe((3, 2), np.dtype(np.float32), (4, 12), memory).strides == (4, 12)
    with pytest.raises(ValueError, match="too large"):
        probe((1000, 1000), np.dtype(np.float64), (8, 8000), memory=True)
