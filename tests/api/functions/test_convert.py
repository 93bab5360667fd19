"""From one dtype to another: what is recorded, what is shared, which words are understood."""

import numpy as np
import pytest

import wayfare as wf
from wayfare.errors import DTypeError, OperationError, ShapeError

DTYPES = (wf.bool, wf.uint8, wf.int8, wf.int16, wf.int32, wf.int64, wf.float16, wf.float32, wf.float64)


@pytest.mark.parametrize("target", DTYPES, ids=str)
@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_every_dtype_becomes_every_other(source, target):
    x = wf.tensor([0, 1, 1], dtype=source)
    out = x.to(target)
    assert out.dtype is target and out.tolist() == [0, 1, 1]
    assert (out is x) == (source is target)


def test_the_methods_named_after_dtypes():
    x = wf.tensor([1.9, -1.9])
    names = {
        "bool": wf.bool, "byte": wf.uint8, "char": wf.int8, "short": wf.int16, "int": wf.int32, "long": wf.int64,
        "half": wf.float16, "float": wf.float32, "double": wf.float64,
    }  # fmt: skip
    for name, dtype in names.items():
        assert getattr(x.abs(), name)().dtype is dtype
    assert x.long().tolist() == [1, -1]
    assert x.float() is x


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x.to(wf.float64),
        lambda x: x.to(dtype=wf.float64),
        lambda x: x.to("cpu", wf.float64),
        lambda x: x.to(device="cpu", dtype=wf.float64),
        lambda x: x.to(wf.zeros(1, dtype=wf.float64)),
        lambda x: x.to(np.float64),
        lambda x: x.type(wf.float64),
        lambda x: x.type("wayfare.DoubleTensor"),
        lambda x: x.type_as(wf.zeros(1, dtype=wf.float64)),
        lambda x: x.double(),
    ],
)
def test_all_ways_to_say_float64(convert):
    x = wf.tensor([1.0, 2.0], requires_grad=True)
    out = convert(x)
    assert out.dtype is wf.float64 and out.tolist() == [1, 2]
    (out * 3).sum().backward()
    assert x.grad.dtype is wf.float32 and x.grad.tolist() == [3, 3]


def test_nothing_to_convert():
    x = wf.ones(2)
    assert x.to("cpu") is x and x.cpu() is x and x.to(wf.float32) is x
    copy = x.to(wf.float32, copy=True)
    assert copy is not x and copy.data_ptr() != x.data_ptr() and copy.tolist() == [1, 1]
    assert x.type() == "wayfare.FloatTensor"


def test_the_way_through_integers_has_no_gradient():
    x = wf.tensor([1.5], requires_grad=True)
    assert not x.long().requires_grad and not x.long().float().requires_grad


def test_what_is_no_dtype_or_device():
    x = wf.ones(1)
    with pytest.raises(DTypeError, match="to: 'float8' is neither a device nor a dtype that Wayfare has .*float16"):
        x.to("float8")
    with pytest.raises(DTypeError, match="complex numbers .*are not supported"):
        x.to(np.complex64)
    with pytest.raises(OperationError, match="'mps' is no device that Wayfare has .*'cpu', 'cuda'"):
        x.to("mps")


def test_real_tensors_under_the_functions_of_complex_ones():
    x = wf.tensor([1.0, -1.0])
    for function in (wf.real, wf.conj, wf.conj_physical, wf.resolve_conj, wf.resolve_neg):
        assert function(x) is x
    assert not wf.is_conj(x) and not wf.is_neg(x)
    with pytest.raises(DTypeError, match=r"imag: f32\[2\] has no imaginary part"):
        wf.imag(x)


# -- the same bytes as another dtype --------------------------------------------------------------------------------


def test_bits_of_a_float():
    x = wf.tensor([1.0, -2.0])
    bits = x.view(wf.int32)
    assert bits.tolist() == np.array([1.0, -2.0], "f4").view("i4").tolist()
    bits.zero_()
    assert x.tolist() == [0, 0] and x._version == 1


def test_the_last_dimension_takes_up_a_difference_in_size():
    x = wf.zeros(2, 4)
    assert tuple(x.view(wf.uint8).shape) == (2, 16)
    assert tuple(x.view(wf.float64).shape) == (2, 2)
    for odd in (wf.zeros(2, 3), wf.tensor(1.0)):
        with pytest.raises(ShapeError, match="view: the last dimension of f32.* cannot be divided into elements"):
            odd.view(wf.float64)
    with pytest.raises(
        OperationError, match=r"view: the last dimension of f32\[4,2\] is not contiguous.*contiguous\(\)"
    ):
        x.T.view(wf.float64)


def test_only_the_same_dtype_keeps_the_gradient():
    x = wf.ones(2, requires_grad=True)
    assert not x.view(wf.int32).requires_grad
    x.view(wf.float32).sum().backward()
    assert x.grad.tolist() == [1, 1]


def test_an_expanded_tensor_in_another_dtype_can_be_viewed():
    """A mask that is expanded and converted: NumPy would put the expanded dimension innermost."""
    x = wf.arange(6.0).reshape(1, 2, 3).expand(4, 2, 3)
    for made in (x.bfloat16(), x.half(), x.double(), x.int(), x.to(wf.bool), x.bfloat16() + x, x.roll(1, 0)):
        assert made.is_contiguous() and made.view(-1).shape == (24,)
    assert x.transpose(1, 2)[0].bfloat16().stride() == (1, 3)  # one that fills its memory keeps its order
    compiled = wf.compile(lambda x: x.expand(4, 2, 3).bfloat16().view(-1) * 2)
    for _ in range(3):
        assert compiled(x[:1]).shape == (24,)
