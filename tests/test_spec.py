"""dtypes, broadcasting, promotion, dimensions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wayfare as wf
from wayfare.core.device import Device
from wayfare.core.spec import DTYPES, Spec, as_dtype, broadcast, normal_dim, normal_dims, promote
from wayfare.errors import DTypeError, IndexRangeError, OperationError, ShapeError

shapes = st.lists(st.sampled_from([1, 1, 2, 3]), max_size=4).map(tuple)


@given(st.lists(shapes, min_size=1, max_size=3))
def test_broadcasting_agrees_with_numpy(given_shapes):
    try:
        want = np.broadcast_shapes(*given_shapes)
    except ValueError:
        with pytest.raises(ShapeError, match="do not broadcast"):
            broadcast("op", *given_shapes)
    else:
        assert broadcast("op", *given_shapes) == want


def test_broadcast_error_guesses_the_fix():
    with pytest.raises(ShapeError, match=r"mul: shapes \[8\] and \[8, 3\].*unsqueeze\(-1\)"):
        broadcast("mul", (8,), (8, 3))
    with pytest.raises(ShapeError, match=r"\.T\?"):
        broadcast("mul", (8, 3), (3, 8))


def test_promotion_is_commutative_associative_and_keeps_floats():
    for a in DTYPES:
        assert promote(a, a) is a
        for b in DTYPES:
            assert promote(a, b) is promote(b, a)
            if a.is_floating_point and not b.is_floating_point:
                assert promote(a, b) is a
            for c in DTYPES:
                assert promote(promote(a, b), c) is promote(a, promote(b, c))


def test_as_dtype_takes_what_people_write():
    assert as_dtype("float32") is as_dtype(np.float32) is as_dtype(wf.float32) is wf.float32
    assert as_dtype(float) is wf.float64 and as_dtype(int) is wf.int64 and as_dtype(bool) is wf.bool
    assert as_dtype(">f4") is wf.float32
    with pytest.raises(DTypeError, match=r"complex numbers .* not supported.*two real tensors"):
        as_dtype(np.complex64)
    with pytest.raises(DTypeError, match="'float99' is not a dtype.*float32"):
        as_dtype("float99")


def test_device():
    assert wf.ones(2).device == Device("cpu") and str(Device("cpu:0")) == "cpu:0"
    with pytest.raises(OperationError, match="'mps' is no device that Wayfare has"):
        wf.ones(2, device="mps")


def test_dims():
    assert normal_dim("op", -1, 3) == 2
    assert normal_dims("op", None, 2) == (0, 1) and normal_dims("op", (1, -3), 3) == (0, 1)
    with pytest.raises(IndexRangeError, match="op: dim 3 is out of range .* 3 dimensions.*from -3 to 2"):
        normal_dim("op", 3, 3)
    with pytest.raises(ShapeError, match="named twice"):
        normal_dims("op", (0, -2), 2)


def test_spec_prints_short_and_compares():
    assert repr(Spec((8, 3), wf.float32)) == "f32[8,3]" and repr(Spec((), wf.bool)) == "bool[]"
    assert Spec((2,), wf.int64) == Spec([2], wf.int64) != Spec((2,), wf.int32)
    assert hash(Spec((2,), wf.int64)) == hash(Spec((2,), wf.int64))


def test_default_dtype():
    wf.set_default_dtype(wf.float64)
    try:
        assert wf.tensor(1.5).dtype is wf.float64 and wf.zeros(2).dtype is wf.float64
        assert (wf.tensor([1]) / 2).dtype is wf.float64
    finally:
        wf.set_default_dtype(wf.float32)
    with pytest.raises(TypeError, match="not a floating-point dtype"):
        wf.set_default_dtype(wf.int64)
