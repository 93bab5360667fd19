"""Views, rearrangements and splits, against NumPy and by their promises: shared memory, gradients, errors."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wayfare as wf
from wayfare.errors import IndexRangeError, InPlaceError, OperationError, ShapeError

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
nonempty = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


def numbered(shape, dtype=np.float64):
    array = np.arange(math.prod(shape), dtype=dtype).reshape(shape)
    return array, wf.from_numpy(array.copy())


def shares(a, b):
    return np.shares_memory(a.detach().numpy(), b.detach().numpy())


# -- against NumPy ------------------------------------------------------------------------------------------------


@given(shapes, st.data())
def test_permute_and_transpose(shape, data):
    array, x = numbered(shape)
    order = data.draw(st.permutations(range(len(shape))))
    np.testing.assert_array_equal(x.permute(*order).numpy(), array.transpose(order))
    if shape:
        a, b = data.draw(st.tuples(*[st.integers(-len(shape), len(shape) - 1)] * 2))
        np.testing.assert_array_equal(x.transpose(a, b).numpy(), array.swapaxes(a, b))
        np.testing.assert_array_equal(wf.movedim(x, a, b).numpy(), np.moveaxis(array, a, b))


@given(nonempty, st.data())
def test_flatten_unflatten_and_squeeze(shape, data):
    array, x = numbered(shape)
    first = data.draw(st.integers(0, len(shape) - 1))
    last = data.draw(st.integers(first, len(shape) - 1))
    flat = x.flatten(first, last)
    assert tuple(flat.shape) == (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :])
    np.testing.assert_array_equal(flat.unflatten(first, shape[first : last + 1]).numpy(), array)
    np.testing.assert_array_equal(x.squeeze().numpy(), array.squeeze())
    np.testing.assert_array_equal(x.unsqueeze(first).squeeze(first).numpy(), array)


@given(nonempty, st.data())
def test_flip_roll_and_rot90(shape, data):
    array, x = numbered(shape)
    dims = data.draw(st.lists(st.integers(0, len(shape) - 1), unique=True))
    np.testing.assert_array_equal(x.flip(dims).numpy(), np.flip(array, dims))
    shift, dim = data.draw(st.integers(-9, 9)), data.draw(st.integers(0, len(shape) - 1))
    np.testing.assert_array_equal(x.roll(shift, dim).numpy(), np.roll(array, shift, dim))
    np.testing.assert_array_equal(x.roll(shift).numpy(), np.roll(array, shift))
    if len(shape) > 1:
        turns = data.draw(st.integers(-5, 5))
        np.testing.assert_array_equal(x.rot90(turns, (0, -1)).numpy(), np.rot90(array, turns, (0, -1)))


@given(nonempty, st.data())
def test_repetition(shape, data):
    array, x = numbered(shape)
    times = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=5))
    np.testing.assert_array_equal(x.tile(times).numpy(), np.tile(array, times))
    dim = data.draw(st.integers(0, len(shape) - 1))
    count = data.draw(st.integers(0, 3))
    np.testing.assert_array_equal(x.repeat_interleave(count, dim).numpy(), np.repeat(array, count, dim))
    counts = data.draw(st.lists(st.integers(0, 3), min_size=shape[dim], max_size=shape[dim]))
    repeats = wf.tensor(counts, dtype=wf.int64)
    np.testing.assert_array_equal(x.repeat_interleave(repeats, dim).numpy(), np.repeat(array, counts, dim))


@given(nonempty, st.data())
def test_splits(shape, data):
    array, x = numbered(shape)
    dim = data.draw(st.integers(0, len(shape) - 1))
    count = data.draw(st.integers(1, 5))
    for ours, theirs in zip(x.tensor_split(count, dim), np.array_split(array, count, dim), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs)
    where = data.draw(st.lists(st.integers(-5, 5), max_size=3))
    for ours, theirs in zip(x.tensor_split(where, dim), np.array_split(array, where, dim), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs)
    for parts in (x.chunk(count, dim), x.split(count, dim), wf.split(x, [shape[dim]], dim)):
        np.testing.assert_array_equal(wf.cat(parts, dim).numpy(), array)
        assert all(shares(part, x) for part in parts)
    assert [part.shape[dim] for part in x.split(count, dim)[:-1]] == [count] * (-(-shape[dim] // count) - 1)


@given(nonempty, st.data())
def test_unfold_gives_numpys_windows(shape, data):
    array, x = numbered(shape)
    dim = data.draw(st.integers(0, len(shape) - 1))
    size, step = data.draw(st.integers(1, shape[dim])), data.draw(st.integers(1, 3))
    windows = np.lib.stride_tricks.sliding_window_view(array, size, dim)
    starts = (slice(None),) * dim + (slice(None, None, step),)
    np.testing.assert_array_equal(x.unfold(dim, size, step).numpy(), windows[starts])


@given(st.lists(st.sampled_from([1, 2, 3]), max_size=4), st.data())
def test_expand_and_broadcast(shape, data):
    array, x = numbered(tuple(shape))
    target = [*data.draw(st.lists(st.integers(0, 3), max_size=2)),
              *(data.draw(st.integers(0, 3)) if n == 1 else n for n in shape)]  # fmt: skip
    np.testing.assert_array_equal(x.expand(target).numpy(), np.broadcast_to(array, target))
    np.testing.assert_array_equal(wf.broadcast_to(x, target).numpy(), np.broadcast_to(array, target))
    kept = [-1 if i >= len(target) - len(shape) and n == shape[i - len(target)] else n for i, n in enumerate(target)]
    assert tuple(x.expand(kept).shape) == tuple(target)
    assert tuple(wf.broadcast_shapes(tuple(shape), tuple(target))) == np.broadcast_shapes(tuple(shape), tuple(target))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(-4, 4))
def test_diagonals_and_triangles(rows, columns, offset):
    array, x = numbered((rows, columns))
    np.testing.assert_array_equal(x.diagonal(offset).numpy(), np.diagonal(array, offset))
    np.testing.assert_array_equal(x.tril(offset).numpy(), np.tril(array, offset))
    np.testing.assert_array_equal(x.triu(offset).numpy(), np.triu(array, offset))
    vector = x.reshape(-1)
    np.testing.assert_array_equal(wf.diag(vector, offset).numpy(), np.diag(array.reshape(-1), offset))
    np.testing.assert_array_equal(wf.diag(x, offset).numpy(), np.diag(array, offset))
    np.testing.assert_array_equal(wf.diagflat(x, offset).numpy(), np.diagflat(array, offset))


def test_diag_embed_puts_the_last_dimension_on_diagonals():
    x = wf.arange(6.0).reshape(2, 3)
    out = wf.diag_embed(x, 1, 0, 2)
    assert tuple(out.shape) == (4, 2, 4)
    assert out.diagonal(1, 0, 2).tolist() == x.tolist()
    assert out.sum().item() == x.sum().item()


# -- promises -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.view(6),
        lambda x: x.reshape(3, 2),
        lambda x: x.T,
        lambda x: x.unsqueeze(0),
        lambda x: x.expand(4, 2, 3),
        lambda x: x.diagonal(),
        lambda x: x.unfold(1, 2, 1),
        lambda x: x.as_strided((2,), (1,)),
        lambda x: x.flatten(),
        lambda x: x.mT,
        lambda x: x.unbind(1)[2],
    ],
)
def test_views_share_memory(view):
    x = wf.zeros(2, 3)
    seen = view(x)
    assert shares(seen, x)
    x.fill_(5)
    assert set(seen.reshape(-1).tolist()) == {5}


@pytest.mark.parametrize(
    "copy",
    [
        lambda x: x.clone(),
        lambda x: x.flip(0),
        lambda x: x.repeat(1, 1),
        lambda x: x.roll(1),
        lambda x: wf.diag(x),
        lambda x: wf.view_copy(x, (6,)),
        lambda x: wf.expand_copy(x, (4, 2, 3)),
        lambda x: wf.unbind_copy(x)[0],
        lambda x: x.rot90(0),
    ],
)
def test_copies_do_not(copy):
    x = wf.zeros(2, 3)
    assert not shares(copy(x), x)


@pytest.mark.parametrize(
    "part",
    [lambda x: x.diagonal(), lambda x: x.unfold(0, 1, 2), lambda x: x.T.reshape(3, 3)[0], lambda x: x.split(2)[1]],
)
def test_writing_into_a_view_reaches_the_base_and_its_gradient(part):
    leaf = wf.ones(3, 3, requires_grad=True)
    x = leaf * 1
    part(x).mul_(3)
    want = np.ones((3, 3))
    part(wf.from_numpy(want)).mul_(3)
    assert x.tolist() == want.tolist()
    x.sum().backward()
    assert leaf.grad.tolist() == want.tolist()


def test_overlapping_windows_and_strides_are_for_reading():
    x = wf.arange(5.0)
    with pytest.raises(InPlaceError, match=r"add_: several elements of this f32\[3,3\] share memory.*\.clone\(\)"):
        x.unfold(0, 3, 1).add_(1)
    with pytest.raises(InPlaceError, match="read-only.*as_strided"):
        x[:2].as_strided((4,), (1,)).zero_()  # beyond its own elements
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_as_strided_reads_memory_relative_to_the_storage():
    base = wf.arange(12.0)
    x = base[2:8].reshape(2, 3).T
    assert x.storage_offset() == 2 and x.stride() == (1, 3)
    assert x.as_strided((2, 2), (1, 2)).tolist() == [[2, 4], [3, 5]]
    assert x.as_strided((2,), (1,), 0).tolist() == [0, 1]
    with pytest.raises(OperationError, match=r"as_strided: sizes \[5\] and strides \[4\] reach outside"):
        x.as_strided((5,), (4,))


def test_gradient_of_as_strided_sums_what_overlaps():
    x = wf.arange(4.0, requires_grad=True)
    x.as_strided((3, 2), (1, 1)).sum().backward()
    assert x.grad.tolist() == [1, 2, 2, 1]


def test_contiguous_copies_only_where_needed():
    x = wf.zeros(2, 3)
    assert x.contiguous() is x and x.is_contiguous()
    assert not x.T.is_contiguous()
    assert x.T.contiguous().is_contiguous() and not shares(x.T.contiguous(), x)


def test_in_place_forms_of_views_change_only_the_look():
    leaf = wf.arange(6.0).reshape(2, 3).requires_grad_()
    x = leaf.clone()
    address = x.data_ptr()
    assert x.unsqueeze_(0).transpose_(0, 2) is x
    assert tuple(x.shape) == (3, 2, 1) and x.data_ptr() == address
    x.squeeze_().t_()
    x.mul_(2)
    (x * wf.tensor([[1.0, 2.0, 3.0]])).sum().backward()
    assert leaf.grad.tolist() == [[2, 4, 6], [2, 4, 6]]
    with pytest.raises(InPlaceError, match="t_: a leaf variable that requires grad cannot be changed"):
        leaf.t_()


@pytest.mark.parametrize(
    "shape, wrap",
    [((3, 3), False), ((2, 4), False), ((7, 2), False), ((7, 2), True), ((3, 2), True), ((3, 3, 3), False)],
)
def test_fill_diagonal_is_numpys(shape, wrap):
    x, array = wf.zeros(shape), np.zeros(shape, np.float32)
    np.fill_diagonal(array, 5, wrap=wrap)
    assert x.fill_diagonal_(5, wrap) is x
    np.testing.assert_array_equal(x.numpy(), array)


def test_no_gradient_comes_from_a_filled_diagonal():
    w = wf.ones(2, 2, requires_grad=True)
    x = w * 3
    x.fill_diagonal_(-wf.inf)
    x.exp().sum().backward()
    assert w.grad.tolist() == [[0, pytest.approx(60.26, abs=0.01)], [pytest.approx(60.26, abs=0.01), 0]]


def test_copy_fill_and_zero():
    source = wf.ones(3, requires_grad=True)
    x = wf.zeros(2, 3)
    x.copy_(source)
    assert x.tolist() == [[1, 1, 1]] * 2
    x.sum().backward()
    assert source.grad.tolist() == [2, 2, 2]
    value = wf.tensor(4.0, requires_grad=True)
    y = wf.zeros(2, 2)
    y[0].fill_(value)
    y.sum().backward()
    assert y.tolist() == [[4, 4], [0, 0]] and value.grad.item() == 2
    leaf = wf.ones(2, requires_grad=True)
    z = leaf * 2
    z.zero_()
    assert z.requires_grad
    z.sum().backward()
    assert leaf.grad.tolist() == [0, 0]
    assert wf.zeros(2, dtype=wf.int64).copy_(wf.tensor([1.9, -1.9])).tolist() == [1, -1]
    with pytest.raises(ShapeError, match=r"copy_: f32\[2,2\] has 2 dimensions, so it cannot become \[3\]"):
        wf.zeros(3).copy_(wf.zeros(2, 2))


def test_resize_keeps_the_first_elements():
    x = wf.arange(4.0)
    assert x.resize_(2, 1).tolist() == [[0], [1]]
    assert tuple(x.resize_(3, 3).shape) == (3, 3)
    assert x[0, :2].tolist() == [0, 1]
    with pytest.raises(OperationError, match="resize_: a tensor that requires a gradient"):
        wf.zeros(2, requires_grad=True).resize_(3)


# -- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda x: x.view(4), ShapeError, r"view: 6 elements of f32\[2,3\] do not fit into shape \[4\]"),
        (lambda x: x.T.view(6), OperationError, r"view: f32\[3,2\] cannot become \[6\] without a copy, because it is "
         r"non-contiguous \(test_shape.py:\d+\)\. Use .reshape"),
        (lambda x: x.reshape(-1, -1), ShapeError, "only one size can be -1"),
        (lambda x: x.reshape(-1, 4), ShapeError, r"do not fit into shape \[-1, 4\].*must multiply to 6"),
        (lambda x: x[:0].reshape(-1, 0), ShapeError, "could be anything"),
        (lambda x: x.permute(0), ShapeError, r"permute: \[0\] names 1 dimensions, but f32\[2,3\] has 2"),
        (lambda x: x.permute(0, 0), OperationError, "named twice"),
        (lambda x: x.transpose(0, 2), IndexRangeError, "transpose: dim 2 is out of range"),
        (lambda x: x.expand(3, 3), ShapeError, r"expand: dimension 0 of f32\[2,3\] cannot be stretched to 3"),
        (lambda x: x.expand(-1, 2, 3), ShapeError, "-1 keeps a size, but dimension 0"),
        (lambda x: x[0].mT, OperationError, r"mT: needs at least 2 dimensions, not f32\[3\]"),
        (lambda x: wf.t(x[None]), OperationError, "Use .mT"),
        (lambda x: x.unfold(0, 3, 1), OperationError, r"a window of 3 does not fit into dimension 0 of f32\[2,3\]"),
        (lambda x: x.repeat(2), ShapeError, "only 1 repeats are given"),
        (lambda x: x.split(0), OperationError, "parts of size 0"),
        (lambda x: x.split([1, 2], 0), ShapeError, r"sizes \[1, 2\] do not add up to dimension 0 of f32\[2,3\]"),
        (lambda x: wf.hsplit(x, 2), OperationError, "has no 2 equal parts.*tensor_split"),
        (lambda x: x.chunk(0), OperationError, "must be positive"),
        (lambda x: x.unflatten(1, (2, 2)), ShapeError, "does not multiply to the 3"),
        (lambda x: wf.tensor(1.0).unbind(), OperationError, "0-dim tensor cannot be cut"),
        (lambda x: wf.diag(x[None]), OperationError, "Use diagonal or diag_embed"),
        (lambda x: x.flip(dim=0), TypeError, "unexpected argument 'dim'"),
        (lambda x: x.unsqueeze(5), IndexError, "for a result of 3 dimensions .*It can be from -3 to 2"),
        (lambda x: x[0].fill_diagonal_(1), ShapeError, "needs a matrix"),
        (lambda x: wf.zeros(2, 2, 3).fill_diagonal_(1), ShapeError, "more dimensions of one size"),
        (lambda x: wf.broadcast_tensors(x, wf.zeros(2)), ShapeError, "do not broadcast"),
    ],
)
def test_errors_are_sentences(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call(wf.zeros(2, 3))


def test_zero_dimensions():
    x = wf.tensor(3.0)
    assert x.flatten().tolist() == [3]
    assert x.ravel().tolist() == [3]
    assert x.unsqueeze(-1).tolist() == [3]
    assert x.squeeze(0).item() == 3
    assert x.expand(2).tolist() == [3, 3]
    assert x.T.item() == 3
    assert wf.atleast_3d(x).tolist() == [[[3]]]
    assert wf.atleast_2d([x, wf.zeros(2)])[1].tolist() == [[0, 0]]


def test_views_under_vmap():
    x = wf.arange(12.0).reshape(3, 2, 2)
    assert wf.vmap(lambda m: m.T.reshape(-1))(x).tolist() == [m.T.reshape(-1).tolist() for m in x]
    assert wf.vmap(lambda m: wf.stack([m[0], m[1].flip(0)], 1))(x).tolist() == [
        wf.stack([m[0], m[1].flip(0)], 1).tolist() for m in x
    ]
    assert wf.vmap(lambda m: m.unfold(0, 1, 1).contiguous().clone())(x).shape == (3, 2, 2, 1)
