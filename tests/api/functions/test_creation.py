"""New tensors: from data, filled, by rule; dtypes, shared memory, refusals."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wayfare as wf
from wayfare.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    InPlaceError,
    OperationError,
    OutOfMemoryError,
    ShapeError,
)


@pytest.mark.parametrize(
    ("data", "dtype", "shape"),
    [
        ([1.0, 2.0], wf.float32, (2,)),
        ([1, 2], wf.int64, (2,)),
        ([True, False], wf.bool, (2,)),
        ([True, 2], wf.int64, (2,)),
        ([1, 2.5], wf.float32, (2,)),
        (3, wf.int64, ()),
        (3.5, wf.float32, ()),
        (True, wf.bool, ()),
        ([], wf.float32, (0,)),
        ([[], []], wf.float32, (2, 0)),
        (range(3), wf.int64, (3,)),
        (np.float64(2), wf.float64, ()),
        ([np.float64(2)], wf.float64, (1,)),
        (np.zeros((2, 1), np.int16), wf.int16, (2, 1)),
        (np.arange(3, dtype=">i4"), wf.int32, (3,)),
    ],
)
def test_tensor_reads_dtype_and_shape_off_the_data(data, dtype, shape):
    t = wf.tensor(data)
    assert t.dtype is dtype
    assert tuple(t.shape) == shape
    assert t.tolist() == np.asarray(data).tolist()


def test_python_floats_take_the_default_dtype():
    wf.set_default_dtype(wf.float64)
    assert wf.tensor([1.0]).dtype is wf.float64
    assert wf.zeros(1).dtype is wf.float64
    assert wf.arange(0.0, 1.0).dtype is wf.float64
    assert wf.get_default_dtype() is wf.float64


def test_tensor_copies_and_as_tensor_shares():
    array = np.ones(3, np.float32)
    copied, shared = wf.tensor(array), wf.as_tensor(array)
    array[0] = 5
    assert copied.tolist() == [1, 1, 1]
    assert shared.tolist() == [5, 1, 1]
    x = wf.ones(2, requires_grad=True)
    assert wf.as_tensor(x) is x
    assert wf.as_tensor(x, dtype=wf.float64).requires_grad
    fresh = wf.tensor(x)
    assert not fresh.requires_grad and fresh.data_ptr() != x.data_ptr()


def test_tensors_inside_lists():
    x = wf.tensor(2.0, requires_grad=True)
    assert wf.tensor([x, wf.tensor(3.0)]).tolist() == [2, 3]
    assert wf.tensor([[wf.tensor(1), wf.tensor(2)]]).dtype is wf.int64


def test_a_ragged_list_names_the_place():
    sentence = (
        r"tensor: the nested list is ragged: data\[1\]\[0\] has shape \[\] and "
        r"data\[1\]\[1\] has shape \[2\] \(test_creation.py:\d+\)\. Make all"
    )
    with pytest.raises(ShapeError, match=sentence):
        wf.tensor([[1, 2], [3, [4, 5]]])
    with pytest.raises(ShapeError, match=r"data\[0\] has shape \[2\] and data\[2\] has shape \[1\]"):
        wf.tensor([[1, 2], [3, 4], [5]])


@pytest.mark.parametrize(
    ("data", "error", "sentence"),
    [
        ("abc", ArgumentTypeError, "str .'abc'. is not a number"),
        ([None], ArgumentTypeError, "NoneType .None. is not a number"),
        ([2**63], OperationError, "9223372036854775808 does not fit into 64 bits"),
        ({"a": 1}, ArgumentTypeError, "is not a number"),
        ([1, "a"], ArgumentTypeError, "str .'a'. is not a number"),
        ([[1.0], [wf.ones(1), None]], ShapeError, "ragged"),
        ([wf.ones(1), ["b"]], ArgumentTypeError, "str .'b'. is not a number"),
        ([np.uint64(3)], DTypeError, "'uint64' is not a dtype"),
        ([1j], DTypeError, "complex numbers .* are not supported"),
    ],
)
def test_data_that_is_not_numbers_is_refused(data, error, sentence):
    with pytest.raises(error, match=sentence):
        wf.tensor(data)


def test_values_that_do_not_fit_the_dtype_are_refused():
    with pytest.raises(OperationError, match=r"tensor: 300 does not fit into wayfare.uint8"):
        wf.tensor([1, 300], dtype=wf.uint8)
    with pytest.raises(OperationError, match=r"full: 300 does not fit into wayfare.int8"):
        wf.full((2,), 300, dtype=wf.int8)
    assert wf.tensor([1.7, -1.7], dtype=wf.int32).tolist() == [1, -1]
    assert wf.tensor([-(2**63), 2**63 - 1]).tolist() == [-(2**63), 2**63 - 1]
    assert wf.tensor([255.9, -0.9], dtype=wf.uint8).tolist() == [255, 0]


@pytest.mark.parametrize(("dtype", "number"), [(wf.float16, -1e9), (wf.float16, 65519), (wf.bfloat16, 3.4e38),
                                               (wf.float32, 1e39), (wf.float64, 10**400)])  # fmt: skip
def test_finite_numbers_do_not_become_infinite_when_they_are_filled_in(dtype, number):
    """A mask of -1e9 in float16 would be -inf, and a row of those NaN."""
    x, mask, place = wf.ones(3, dtype=dtype), wf.tensor([True, False, True]), wf.tensor([0])
    for name, call in {
        "full": lambda v: wf.full((2,), v, dtype=dtype), "fill_": lambda v: x.clone().fill_(v),
        "masked_fill": lambda v: x.masked_fill(mask, v), "index_fill": lambda v: x.index_fill(0, place, v),
        "scatter": lambda v: x.scatter(0, place, v), "pad": lambda v: wf.nn.functional.pad(x, (1, 1), value=v),
    }.items():  # fmt: skip
        with pytest.raises(RuntimeError, match=rf"{name}: .* does not fit into wayfare.{dtype.name}, .*finfo"):
            call(number)
        for fits in (float("-inf"), float("nan"), wf.finfo(dtype).min, True):
            call(fits)


def test_numbers_written_by_an_index_are_rounded_to_infinity():
    x = wf.ones(3, dtype=wf.float16)
    x[0], x[x > 0.5] = -1e9, 1e9
    assert x.tolist() == [float("-inf"), float("inf"), float("inf")]


def test_bounds_and_exponents_do_not_wrap_around():
    x = wf.tensor([2, 200], dtype=wf.uint8)
    for call in (lambda: x.clamp(0, 256), lambda: x.clamp_(min=-300), lambda: x ** 256,
                 lambda: wf.where(x > 2, x, 300)):  # fmt: skip
        with pytest.raises(RuntimeError, match="does not fit into wayfare.uint8"):
            call()
    assert x.clamp(3, 255).tolist() == [3, 200] and x.clamp(max=300.0).dtype is wf.float32


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e30, 2.0**31, -(2.0**31) - 1])
def test_floats_that_are_no_int_are_refused_as_one(number):
    with pytest.raises(OperationError, match="does not fit into wayfare.int32"):
        wf.tensor([0.5, number], dtype=wf.int32)


def test_an_object_that_gives_an_array_keeps_its_dtype():
    """Tables, images and other libraries' tensors: their float64 is theirs, unlike a Python float's."""

    class Column:
        def __array__(self, dtype=None, copy=None):
            return np.array([1.0, 2.0])

        def __len__(self):
            return 2

    assert wf.tensor(Column()).dtype is wf.float64
    assert wf.as_tensor(Column()).dtype is wf.float64
    assert wf.tensor(Column(), dtype=wf.int8).tolist() == [1, 2]


@pytest.mark.parametrize("make", [wf.zeros_like, wf.ones_like, wf.empty_like, lambda x: wf.full_like(x, 1)])
def test_a_tensor_like_another_needs_a_tensor(make):
    with pytest.raises(ArgumentTypeError, match=r"_like: expected a tensor, not list .*wf\.tensor"):
        make([1.0])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: wf.arange(10**15), r"arange: not enough memory for i64\[1000000000000000\]"),
        (lambda: wf.arange(10**30), r"arange: not enough memory for i64"),
        (lambda: wf.linspace(0, 1, 10**15), r"linspace: not enough memory for f64\[1000000000000000\]"),
        (lambda: wf.eye(10**8), r"eye: not enough memory for f32\[100000000,100000000\]"),
    ],
)
def test_a_range_or_matrix_too_large_for_memory_is_a_sentence(make, sentence):
    with pytest.raises(OutOfMemoryError, match=sentence):
        make()


def test_from_numpy_shares_memory_both_ways():
    array = np.arange(6.0).reshape(2, 3).T
    t = wf.from_numpy(array)
    t[0, 0] = 7
    array[1, 1] = 9
    assert array[0, 0] == 7 and t[1, 1].item() == 9
    assert t.stride() == (1, 3)


def test_from_numpy_refuses_what_it_cannot_share():
    with pytest.raises(DTypeError, match=r"byte order.*wf.tensor"):
        wf.from_numpy(np.arange(3, dtype=">f4"))
    with pytest.raises(DTypeError, match="uint32' is not a dtype Wayfare has"):
        wf.from_numpy(np.arange(3, dtype=np.uint32))
    with pytest.raises(ArgumentTypeError, match="expected a NumPy array, not list"):
        wf.from_numpy([1, 2])


def test_a_read_only_array_gives_a_tensor_that_refuses_writes():
    array = np.ones(2)
    array.flags.writeable = False
    t = wf.from_numpy(array)
    with pytest.raises(InPlaceError, match="read-only"):
        t.add_(1)


def test_dlpack_goes_both_ways_without_a_copy():
    array = np.arange(3.0)
    t = wf.from_dlpack(array)
    assert np.shares_memory(np.from_dlpack(t), array)
    with pytest.raises(ArgumentTypeError, match="list has no __dlpack__"):
        wf.from_dlpack([1])


def test_frombuffer_and_asarray():
    raw = bytearray(np.arange(4, dtype=np.int16).tobytes())
    t = wf.frombuffer(raw, dtype=wf.int16, offset=2, count=2)
    raw[2] = 9
    assert t.tolist() == [9, 2]
    with pytest.raises(ArgumentError, match=r"frombuffer: cannot read wayfare.float64 from offset 1"):
        wf.frombuffer(b"abc", dtype=wf.float64, offset=1)
    array = np.ones(2)
    assert wf.asarray(array).data_ptr() == array.__array_interface__["data"][0]
    assert wf.asarray(array, copy=True).data_ptr() != array.__array_interface__["data"][0]
    with pytest.raises(ArgumentError, match="copy=False"):
        wf.asarray([1, 2], copy=False)


def test_filled_tensors_take_sizes_in_every_form():
    for t in (wf.zeros(2, 3), wf.zeros((2, 3)), wf.zeros([2, 3]), wf.zeros(size=(2, 3)), wf.zeros(wf.Size((2, 3)))):
        assert t.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert tuple(wf.ones(()).shape) == ()
    assert wf.ones(wf.tensor(2), dtype=wf.bool).tolist() == [True, True]
    assert wf.full((2,), 7).dtype is wf.int64
    assert wf.full((2,), True).dtype is wf.bool
    assert wf.full((2,), wf.tensor(2.5, dtype=wf.float64)).dtype is wf.float64
    with pytest.raises(ShapeError, match=r"zeros: size -1 in \[2, -1\] is negative"):
        wf.zeros(2, -1)
    with pytest.raises(ArgumentTypeError, match="zeros: a size must be an int, not float"):
        wf.zeros(2.0)
    with pytest.raises(OutOfMemoryError, match=r"empty: not enough memory for f32\[\d+\]"):
        wf.empty(2**55)


def test_like_and_new_forms_follow_the_tensor():
    x = wf.ones(2, 3, dtype=wf.float64)
    assert wf.zeros_like(x).dtype is wf.float64
    assert wf.full_like(x, 2, dtype=wf.int8).tolist() == [[2, 2, 2]] * 2
    assert x.new_zeros(4).dtype is wf.float64
    assert x.new_full((2,), 3).tolist() == [3, 3]
    assert x.new_tensor([1, 2]).dtype is wf.float64
    assert x.new_ones((2,), dtype=wf.int32, requires_grad=False).dtype is wf.int32
    assert wf.rand_like(x).shape == x.shape


def test_requires_grad_needs_floats():
    assert wf.zeros(2, requires_grad=True).requires_grad
    with pytest.raises(OperationError, match="only floating-point tensors can require gradients"):
        wf.zeros(2, dtype=wf.int64, requires_grad=True)


def test_new_tensors_under_inference_mode_are_marked():
    with wf.inference_mode():
        x = wf.zeros(2)
    with pytest.raises(RuntimeError, match="inference_mode"):
        x.requires_grad_()


@given(st.integers(-20, 20), st.integers(-20, 20), st.integers(-5, 5).filter(bool))
def test_arange_of_ints_is_pythons_range(start, end, step):
    if (end - start) * step < 0:
        with pytest.raises(OperationError, match="do not lead from"):
            wf.arange(start, end, step)
        return
    t = wf.arange(start, end, step)
    assert t.dtype is wf.int64
    assert t.tolist() == list(range(start, end, step))


def test_arange_by_name_and_of_floats():
    assert wf.arange(end=3).tolist() == [0, 1, 2]
    assert wf.arange(1, end=3).tolist() == [1, 2]
    assert wf.arange(0, 1, 0.25).tolist() == [0, 0.25, 0.5, 0.75]
    assert wf.arange(3, dtype=wf.float16).dtype is wf.float16
    with pytest.raises(OperationError, match="step must not be zero"):
        wf.arange(0, 3, 0)
    with pytest.raises(ArgumentTypeError, match="takes"):
        wf.arange()


@given(st.floats(-100, 100), st.floats(-100, 100), st.integers(0, 30))
def test_linspace_has_its_ends_and_even_steps(start, end, steps):
    t = wf.linspace(start, end, steps, dtype=wf.float64)
    np.testing.assert_allclose(t.numpy(), np.linspace(start, end, steps), rtol=1e-12, atol=1e-12)
    if steps > 1:
        assert t[0].item() == start and t[-1].item() == end


def test_grids():
    x, y = wf.tensor([1, 2, 3]), wf.tensor([4, 5])
    for indexing in ("ij", "xy"):
        ours, theirs = wf.meshgrid(x, y, indexing=indexing), np.meshgrid(x.numpy(), y.numpy(), indexing=indexing)
        assert [t.tolist() for t in ours] == [a.tolist() for a in theirs]
    assert wf.cartesian_prod(x, y).tolist() == [[1, 4], [1, 5], [2, 4], [2, 5], [3, 4], [3, 5]]
    assert wf.combinations(x).tolist() == [[1, 2], [1, 3], [2, 3]]
    assert wf.combinations(y, with_replacement=True).tolist() == [[4, 4], [4, 5], [5, 5]]
    assert wf.vander(x, 3).tolist() == np.vander([1, 2, 3], 3).tolist()
    assert wf.tril_indices(2, 3).tolist() == [[0, 1, 1], [0, 0, 1]]
    assert wf.eye(2, 3).tolist() == [[1, 0, 0], [0, 1, 0]]
    with pytest.raises(OperationError, match="indexing must be 'ij' or 'xy', not 'ab'"):
        wf.meshgrid(x, y, indexing="ab")


def test_dtype_questions():
    assert wf.finfo(wf.float32).eps == 2**-23
    assert wf.finfo().max == wf.finfo(wf.float32).max
    assert wf.iinfo(wf.uint8).max == 255
    with pytest.raises(ArgumentTypeError, match=r"finfo: wayfare.int64 is not a floating-point dtype"):
        wf.finfo(wf.int64)
    assert wf.promote_types(wf.int32, wf.float16) is wf.float16
    assert wf.result_type(wf.zeros(2, dtype=wf.int32), 1.5) is wf.float32
    assert wf.result_type(wf.zeros(2, dtype=wf.float16), wf.tensor(1.0, dtype=wf.float64)) is wf.float16
    assert wf.can_cast(wf.int32, wf.float16) and not wf.can_cast(wf.float32, wf.int64)
    assert wf.is_tensor(wf.zeros(1)) and not wf.is_tensor(np.zeros(1))
    x = wf.zeros(2, 3, dtype=wf.float64)
    assert (x.numel(), x.dim(), x.size(), x.size(-1), x.element_size(), x.is_floating_point()) == (
        6, 2, (2, 3), 3, 8, True)  # fmt: skip


def test_print_options_are_stored():
    from wayfare.core.config import settings

    try:
        wf.set_printoptions(precision=2, linewidth=40)
        assert (settings.printing.precision, settings.printing.linewidth) == (2, 40)
        wf.set_printoptions(profile="full")
        assert settings.printing.threshold > 10**9
    finally:
        wf.set_printoptions(profile="default")
    assert (settings.printing.precision, settings.printing.threshold) == (4, 1000)


def test_a_device_that_is_not_here_is_refused():
    with pytest.raises(OperationError, match="'xpu' is no device that Wayfare has"):
        wf.zeros(2, device="xpu")


def test_tensors_can_be_made_in_threads():
    made = []
    threads = [threading.Thread(target=lambda n=n: made.append(wf.full((10,), n).sum().item())) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [0, 10, 20, 30]
