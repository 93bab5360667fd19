"""Indexing: every form of `x[...]` and `x[...] = v` against NumPy, values and gradients; bounds; messages."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import wayfare as wf
from wayfare.core.tensor import wrap


def leaf(array):
    return wrap(np.array(array)).requires_grad_()


def gradient(leaves, out):
    """Gradients of the sum of `out * weights`, with fixed weights."""
    weights = np.random.default_rng(0).normal(size=tuple(out.shape))
    return weights, wf.autograd.grad([out], leaves, [wrap(weights)])


# -- random indices ---------------------------------------------------------------------------------------------

shapes = hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=4)


@st.composite
def basic_indices(draw, shape):
    """Integers, slices, None and one `...`, for a part of the dimensions."""
    entries = []
    for size in shape[: draw(st.integers(0, len(shape)))]:
        kind = draw(st.sampled_from(["int", "slice"]))
        if kind == "int":
            entries.append(draw(st.integers(-size, size - 1)))
        else:
            bound = st.none() | st.integers(-size - 2, size + 2)
            entries.append(slice(draw(bound), draw(bound), draw(st.none() | st.integers(1, 3))))
    for _ in range(draw(st.integers(0, 2))):
        entries.insert(draw(st.integers(0, len(entries))), None)
    if draw(st.booleans()) and len([e for e in entries if e is not None]) < len(shape):
        entries.append(Ellipsis)
    return tuple(entries)


@st.composite
def advanced_indices(draw, shape):
    """Integer arrays (or masks) for some dimensions, slices for the others: the forms NumPy and PyTorch agree on."""
    entries = []
    common = draw(hnp.array_shapes(min_dims=1, max_dims=2, min_side=1, max_side=3))
    some = draw(st.lists(st.booleans(), min_size=len(shape), max_size=len(shape)).filter(any))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    for size, picked in zip(shape, some, strict=True):
        if picked:
            entries.append(rng.integers(-size, size, common))
        else:
            entries.append(slice(draw(st.none() | st.integers(0, size)), None, draw(st.none() | st.integers(1, 2))))
    return tuple(entries)


@given(st.data())
def test_reading_a_basic_index_is_numpys_view(data):
    x = np.arange(np.prod(shape := data.draw(shapes)), dtype=np.float64).reshape(shape)
    index = data.draw(basic_indices(shape))
    t = leaf(x)
    out = t[index]
    np.testing.assert_array_equal(out._array, x[index])
    assert np.may_share_memory(out._array, t._array) or out._array.size == 0
    weights, (g,) = gradient([t], out)
    want = np.zeros(shape)
    want[index] = weights
    np.testing.assert_array_equal(g.numpy(), want)


@given(st.data())
def test_reading_an_advanced_index_is_numpys_copy(data):
    x = np.random.default_rng(1).normal(size=(shape := data.draw(shapes)))
    index = data.draw(advanced_indices(shape))
    t = leaf(x)
    out = t[tuple(wrap(i) if isinstance(i, np.ndarray) else i for i in index)]
    np.testing.assert_array_equal(out._array, x[index])
    assert not np.may_share_memory(out._array, t._array)
    weights, (g,) = gradient([t], out)
    want = np.zeros(shape)
    np.add.at(want, index, weights)
    np.testing.assert_allclose(g.numpy(), want, rtol=1e-12, atol=1e-12)


@given(st.data())
def test_reading_a_mask(data):
    x = np.random.default_rng(1).normal(size=(shape := data.draw(shapes)))
    rank = data.draw(st.integers(1, len(shape)))
    mask = data.draw(hnp.arrays(np.bool_, shape[:rank]))
    t = leaf(x)
    out = t[wrap(mask)]
    np.testing.assert_array_equal(out._array, x[mask])
    weights, (g,) = gradient([t], out)
    want = np.zeros(shape)
    want[mask] = weights
    np.testing.assert_array_equal(g.numpy(), want)


@given(st.data())
@settings(max_examples=200)
def test_writing_any_index(data):
    """Recorded and not recorded alike, and the gradient goes to what stayed and to what was written."""
    x = np.random.default_rng(1).normal(size=(shape := data.draw(shapes)))
    kind = data.draw(st.sampled_from(["basic", "advanced", "mask"]))
    if kind == "basic":
        index = data.draw(basic_indices(shape))
    elif kind == "mask":
        index = data.draw(hnp.arrays(np.bool_, shape[: data.draw(st.integers(1, len(shape)))]))
    else:
        index = data.draw(advanced_indices(shape))
    part = x[index].shape
    stretched = data.draw(st.integers(0, len(part)))
    value = np.random.default_rng(2).normal(size=part[len(part) - stretched :])
    want = x.copy()
    want[index] = value
    ours = tuple(wrap(i) if isinstance(i, np.ndarray) else i for i in (index if isinstance(index, tuple) else (index,)))

    plain = wrap(x.copy())
    plain[ours] = wrap(value)
    np.testing.assert_array_equal(plain._array, want)

    a, b = leaf(x), leaf(value)
    y = a * 1
    y[ours] = b
    np.testing.assert_array_equal(y._array, want)
    weights, (by_x, by_value) = gradient([a, b], y)
    hole = weights.copy()
    hole[index] = 0
    np.testing.assert_allclose(by_x.numpy(), hole, rtol=1e-12, atol=1e-12)
    flat = np.zeros(part)
    flat[...] = weights[index]
    extra = tuple(range(len(part) - stretched))
    np.testing.assert_allclose(by_value.numpy(), flat.sum(extra), rtol=1e-9, atol=1e-12)


# -- one by one -------------------------------------------------------------------------------------------------


def test_integers_beside_tensors_are_taken_first():
    """Here PyTorch differs from NumPy, which would put the indexed part in front."""
    x = wrap(np.arange(24.0).reshape(2, 3, 4))
    assert tuple(x[0, :, wrap(np.array([1, 2]))].shape) == (3, 2)
    np.testing.assert_array_equal(x[0, :, [1, 2]]._array, x._array[0][:, [1, 2]])


def test_python_and_numpy_numbers_lists_and_arrays_index_alike():
    x = wrap(np.arange(12.0).reshape(3, 4))
    for one in (1, np.int32(1), wrap(np.array(1)), -2):
        np.testing.assert_array_equal(x[one]._array, [4, 5, 6, 7])
    for several in ([0, 2], np.array([0, 2]), wrap(np.array([0, 2])), [True, False, True], range(0, 3, 2)):
        np.testing.assert_array_equal(x[several]._array, x._array[[0, 2]])
    assert tuple(x[True].shape) == (1, 3, 4)
    assert tuple(x[wrap(np.array(False))].shape) == (0, 3, 4)
    assert tuple(x[:, None, 1:, None].shape) == (3, 1, 3, 1)


def test_a_list_of_indices_is_taken_for_a_tuple():
    x = wrap(np.arange(12.0).reshape(3, 4))
    np.testing.assert_array_equal(x[[[0, 1], [2, 3]]]._array, [2, 7])


def test_one_element_is_still_a_view():
    x = wrap(np.zeros((2, 2)))
    x[1, 1].fill_(5.0)
    np.testing.assert_array_equal(x._array, [[0, 0], [0, 5]])


def test_common_indices_are_one_record():
    x = leaf(np.zeros((3, 4)))
    for index, name in ((1, "select"), (slice(0, 2), "slice"), ((slice(None), 0), "basic_index")):
        node = x[index].grad_fn
        assert node.op.name == name
        assert node.next_functions[0][0].variable is x
    assert x[wrap(np.array([0]))].grad_fn.op.name == "index"


def test_reading_rows_of_a_long_table_gives_a_sparse_gradient():
    x = leaf(np.zeros((1000, 3)))
    total = x[5] + x[7]
    total.backward(wrap(np.ones(3)))
    numbers, values = x.row_grad()
    assert numbers.tolist() == [5, 7] and values.tolist() == [[1, 1, 1], [1, 1, 1]]
    values.mul_(2)  # The gradient's own memory.
    assert float(x.grad._array.sum()) == 12
    assert x.row_grad() is None


def test_a_loop_over_rows_keeps_one_part_a_row():
    x = leaf(np.zeros((1000, 2)))
    out = x[0] * 1
    for i in range(1, 50):
        out = out + x[i] * i
    out.backward(wrap(np.ones(2)))
    assert x._grad.size_of_parts == 100
    numbers, values = x.row_grad()
    assert numbers.tolist() == list(range(50)) and values.shape == (50, 2)
    np.testing.assert_array_equal(x.grad.numpy()[:50, 0], [1, *range(1, 50)])


def test_reading_large_parts_again_and_again_holds_one_array():
    x = leaf(np.zeros((10, 10)))
    held = []
    x.register_post_accumulate_grad_hook(lambda t: held.append(t.row_grad()))
    y = x * 1
    out = x[1:] + y[1:]
    for _ in range(20):
        out = out + x[1:] + y[1:]
    out.backward(wrap(np.ones((9, 10))))
    assert held == [None]
    np.testing.assert_array_equal(x.grad.numpy()[:2, 0], [0, 42])


def test_a_number_is_written_in_the_tensors_dtype():
    x = wrap(np.zeros(3, np.int64))
    x[0] = 1.9
    x[1:] = wrap(np.array([2.9, -2.9]))
    assert x._array.tolist() == [1, 2, -2]


def test_leading_ones_of_a_value_are_dropped():
    x = leaf(np.zeros((2, 3)))
    y = x * 1
    y[0] = leaf(np.ones((1, 1, 3)))
    plain = wrap(np.zeros((2, 3)))
    plain[:, wrap(np.array([0, 1]))] = wrap(np.ones((1, 2, 2)))
    assert y._array.tolist() == [[1, 1, 1], [0, 0, 0]]
    assert plain._array.tolist() == [[1, 1, 0], [1, 1, 0]]


def test_writing_is_noticed_by_what_kept_the_old_values():
    x = leaf(np.ones(3))
    y = x * 2
    z = y * y
    y[0] = 5.0
    with pytest.raises(RuntimeError, match="modified by an in-place operation"):
        z.backward(wrap(np.ones(3)))


def test_writing_through_a_view_changes_the_bases_history():
    x = leaf(np.arange(6.0).reshape(2, 3))
    y = x * 2
    v = y[1]
    v[0] = 100.0
    assert y._array[1, 0] == 100
    _, (g,) = gradient([x], y)
    assert g.numpy()[1, 0] == 0 and g.numpy()[1, 1] != 0


def test_overlapping_read_and_write():
    x = wrap(np.arange(5.0))
    x[1:] = x[:-1]
    assert x._array.tolist() == [0, 0, 1, 2, 3]


# -- refusals: op, index, dimension and size, the user's line, the way out ------------------------------------------

X = wrap(np.arange(12.0).reshape(3, 4))

READS = {
    "integer": (lambda: X[3], IndexError, "index 3 is out of range for dimension 0 of size 3"),
    "negative": (lambda: X[0, -5], IndexError, "index -5 is out of range for dimension 1 of size 4"),
    "tensor": (
        lambda: X[:, wrap(np.array([0, 7]))],
        IndexError,
        "index 7 is out of range for dimension 1 of size 4",
    ),
    "too many": (lambda: X[0, 0, 0], IndexError, r"3 indices are too many for a shape of \[3, 4\]"),
    "0-dim": (lambda: X[0, 0][0], IndexError, r"Use .item\(\)"),
    "step": (lambda: X[::-1], ValueError, r"positive, not -1.*Use .flip"),
    "mask": (lambda: X[wrap(np.array([True, False]))], IndexError, r"a mask of shape \[2\] does not fit"),
    "float": (lambda: X[1.0], IndexError, "1.0 .float. cannot be an index"),
    "float tensor": (lambda: X[wrap(np.array([1.0]))], IndexError, r"wayfare.float64 cannot be.*\.long"),
    "text": (lambda: X["a"], IndexError, "'a' .str. cannot be an index"),
    "ragged": (lambda: X[0, [[0], [1, 2]]], IndexError, "in equal rows"),
    "pair": (
        lambda: X[wrap(np.array([0, 1])), wrap(np.array([0, 1, 2]))],
        IndexError,
        r"shapes \[2\] and \[3\] do not broadcast",
    ),
    "bounds": (lambda: X[1.5:], TypeError, "bounds of a slice must be integers"),
}


@pytest.mark.parametrize(("call", "error", "text"), READS.values(), ids=READS)
def test_reading_refuses(call, error, text):
    with pytest.raises(error, match=text) as caught:
        call()
    assert isinstance(caught.value, wf.errors.WayfareError)
    assert "test_index.py:" in str(caught.value)


WRITES = {
    "list": (lambda x: x.__setitem__(0, [1.0] * 4), TypeError, r"not list.*wf.tensor"),
    "shape": (
        lambda x: x.__setitem__(0, wrap(np.zeros(3))),
        RuntimeError,
        r"shape \[3\].*indexed part of \[4\]",
    ),
    "mask": (lambda x: x.__setitem__(x > 5, wrap(np.zeros(2))), RuntimeError, r"shape \[2\].*part of \[6\]"),
    "range": (lambda x: x.__setitem__(wrap(np.array([5])), 0.0), IndexError, "index 5 .* of size 3"),
    "dtype": (
        lambda x: x.__setitem__(wrap(np.array([0])), wrap(np.zeros(4, np.float32))),
        RuntimeError,
        r"float32 cannot be written.*\.to\(wf.float64\)",
    ),
}


@pytest.mark.parametrize(("write", "error", "text"), WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("recording", [False, True])
def test_writing_refuses(write, error, text, recording):
    x = leaf(X._array) * 1 if recording else wrap(X._array.copy())
    with pytest.raises(error, match=text):
        write(x)
    np.testing.assert_array_equal(x._array, X._array)


def test_a_leaf_is_not_written_while_recording():
    x = leaf(np.zeros(3))
    with pytest.raises(RuntimeError, match="no_grad"):
        x[0] = 1.0
    with wf.no_grad():
        x[0] = 1.0
    assert x._array.tolist() == [1, 0, 0]


NEGATIVE = {
    "gather": lambda x, i: x.gather(0, i),
    "scatter": lambda x, i: x.scatter(0, i, 1.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i, x),
    "index_select": lambda x, i: x.index_select(0, i),
    "index_add": lambda x, i: x.index_add(0, i, x),
    "index_copy": lambda x, i: x.index_copy(0, i, x),
    "embedding": lambda x, i: wf.nn.functional.embedding(i, x.reshape(3, 1)),
}


@pytest.mark.parametrize("call", NEGATIVE.values(), ids=NEGATIVE)
@pytest.mark.parametrize("bad", [-1, 3])
def test_indices_do_not_wrap_around_where_pytorch_refuses(call, bad):
    with pytest.raises((IndexError, RuntimeError), match=rf"index (is )?{bad}\b.*(size 3|has 3 rows)"):
        call(wrap(np.zeros(3)), wrap(np.array([0, bad, 1])))


# -- functions --------------------------------------------------------------------------------------------------------


def test_index_fill_counts_a_repeated_place_once():
    x, value = leaf(np.zeros((2, 3))), leaf(np.array(7.0))
    out = x.index_fill(1, wrap(np.array([2, 2, -3])), value)
    assert out._array.tolist() == [[7, 0, 7]] * 2
    weights, (_, by_value) = gradient([x, value], out)
    np.testing.assert_allclose(by_value.item(), weights[:, [0, 2]].sum())


def test_scatter_reduce_shares_the_gradient_of_equal_extremes():
    x, src = leaf(np.array([1.0, 5.0])), leaf(np.array([3.0, 3.0, 5.0]))
    out = x.scatter_reduce(0, wrap(np.array([0, 0, 1])), src, "amax")
    assert out._array.tolist() == [3, 5]
    g = wf.autograd.grad([out], [x, src], [wrap(np.array([1.0, 1.0]))])
    assert g[0]._array.tolist() == [0, 0.5]
    assert g[1]._array.tolist() == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_scatter_reduce_has_the_gradient_nan_where_its_extreme_is_nan(reduce):
    """As `amax` and `amin` have: it must not be lost without a word."""
    x, src = leaf(np.array([np.nan, 1.0, 7.0, 3.0])), leaf(np.array([2.0, np.nan, 7.0]))
    out = x.scatter_reduce(0, wrap(np.array([0, 1, 2])), src, reduce)
    g = wf.autograd.grad([out], [x, src], [wrap(np.ones(4))])
    np.testing.assert_array_equal(g[0]._array, [np.nan, np.nan, 0.5, 1])
    np.testing.assert_array_equal(g[1]._array, [np.nan, np.nan, 0.5])


def test_scatter_prod_has_a_gradient_at_zeros():
    x, src = leaf(np.array([2.0, 2.0, 2.0])), leaf(np.array([0.0, 3.0, 0.0, 0.0, 4.0]))
    index = wrap(np.array([0, 0, 1, 1, 2]))
    out = x.scatter_reduce(0, index, src, "prod")
    g = wf.autograd.grad([out], [x, src], [wrap(np.ones(3))])
    assert g[0]._array.tolist() == [0, 0, 4]
    assert g[1]._array.tolist() == [6, 0, 0, 0, 2]


def test_in_place_forms_write_into_the_tensor():
    x = wrap(np.zeros(4))
    same = x.index_add_(0, wrap(np.array([0, 0])), wrap(np.ones(2)), alpha=2)
    x.scatter_(0, wrap(np.array([3])), 9.0).masked_fill_(wrap(np.array([False, True, False, False])), -1)
    assert same is x and x._array.tolist() == [4, -1, 0, 9]


def test_nonzero_in_both_forms():
    x = wrap(np.array([[0, 2], [3, 0]]))
    assert wf.nonzero(x)._array.tolist() == [[0, 1], [1, 0]]
    assert [t._array.tolist() for t in wf.nonzero(x, as_tuple=True)] == [[0, 1], [1, 0]]


def test_the_gradient_of_an_embedding_is_rows_until_asked_for():
    weight = leaf(np.arange(8.0).reshape(4, 2))
    out = wf.nn.functional.embedding(wrap(np.array([[1, 3], [1, 2]])), weight, padding_idx=2)
    out.backward(wrap(np.ones((2, 2, 2))))
    assert weight._grad.size_of_parts == 8
    numbers, values = weight.row_grad()
    assert numbers.tolist() == [1, 2, 3] and values.tolist() == [[2, 2], [0, 0], [1, 1]]
    assert weight.grad.numpy().tolist() == [[0, 0], [2, 2], [0, 0], [1, 1]]


def test_max_norm_shrinks_the_rows_that_are_looked_up():
    weight = leaf(np.array([[3.0, 4.0], [6.0, 8.0], [0.3, 0.4]]))
    wf.nn.functional.embedding(wrap(np.array([1, 2])), weight, max_norm=1.0)
    np.testing.assert_allclose(weight._array, [[3, 4], [0.6, 0.8], [0.3, 0.4]], rtol=1e-6)


def test_scale_grad_by_freq_divides_by_how_often_a_row_was_used():
    weight = leaf(np.ones((3, 1)))
    out = wf.nn.functional.embedding(wrap(np.array([0, 0, 2])), weight, scale_grad_by_freq=True)
    out.backward(wrap(np.array([[1.0], [3.0], [5.0]])))
    assert weight.grad.numpy().tolist() == [[2], [0], [5]]


def test_embedding_bag_with_an_empty_bag_and_padding():
    weight = wrap(np.arange(8.0).reshape(4, 2))
    bag = wf.nn.functional.embedding_bag
    numbers, offsets = wrap(np.array([0, 1, 3, 2])), wrap(np.array([0, 2, 2]))
    assert bag(numbers, weight, offsets, mode="sum")._array.tolist() == [[2, 4], [0, 0], [10, 12]]
    assert bag(numbers, weight, offsets, padding_idx=3)._array.tolist() == [[1, 2], [0, 0], [4, 5]]
    assert bag(numbers, weight, offsets, mode="max")._array.tolist() == [[2, 3], [0, 0], [6, 7]]


def test_one_hot_checks_its_classes():
    one_hot = wf.nn.functional.one_hot
    assert one_hot(wrap(np.array([1, 0])))._array.tolist() == [[0, 1], [1, 0]]
    with pytest.raises(RuntimeError, match="index 2 is out of range"):
        one_hot(wrap(np.array([2])), 2)
    with pytest.raises(RuntimeError, match=r"int64.*\.long"):
        one_hot(wrap(np.array([2.0])), 2)
    with pytest.raises(RuntimeError, match="one_hot: class numbers must not be negative, the smallest is -1"):
        one_hot(wrap(np.array([3, -1])))
