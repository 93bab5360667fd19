"""Joining: against NumPy, mixed dtypes, gradients as views, errors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wayfare as wf
from wayfare.errors import ArgumentError, ArgumentTypeError, IndexRangeError, ShapeError


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.lists(st.integers(0, 3), min_size=1, max_size=4),
    st.data(),
)
def test_cat_is_numpys_concatenate(shape, lengths, data):
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    arrays = []
    for n, length in enumerate(lengths):
        shape[dim] = length
        arrays.append(np.random.default_rng(n).normal(size=shape))
    # A vector of length 0 among vectors is an ordinary one.
    got = wf.cat([wf.from_numpy(a) for a in arrays], dim)
    np.testing.assert_array_equal(got.numpy(), np.concatenate(arrays, dim))


@given(st.lists(st.integers(0, 3), max_size=3), st.integers(1, 4), st.data())
def test_stack_is_numpys_stack(shape, count, data):
    dim = data.draw(st.integers(-len(shape) - 1, len(shape)))
    arrays = [np.random.default_rng(n).normal(size=shape) for n in range(count)]
    np.testing.assert_array_equal(wf.stack([wf.tensor(a) for a in arrays], dim).numpy(), np.stack(arrays, dim))


@pytest.mark.parametrize("name", ["hstack", "vstack", "dstack", "column_stack"])
@pytest.mark.parametrize("shapes", [[(3,), (3,)], [(2, 3), (2, 3)], [(), ()], [(2, 3, 2), (2, 3, 2)]])
def test_the_stacks_of_numpy(name, shapes):
    arrays = [np.arange(float(np.prod(s))).reshape(s) + n for n, s in enumerate(shapes)]
    got = getattr(wf, name)([wf.tensor(a) for a in arrays])
    np.testing.assert_array_equal(got.numpy(), getattr(np, name)(arrays))


def test_dtypes_are_promoted():
    out = wf.cat([wf.tensor([1, 2]), wf.tensor([0.5])])
    assert out.dtype is wf.float32 and out.tolist() == [1, 2, 0.5]
    assert wf.stack([wf.tensor(True), wf.tensor(3, dtype=wf.int8)]).dtype is wf.int8


def test_an_empty_vector_joins_anything():
    x = wf.ones(2, 3, requires_grad=True)
    out = wf.cat([wf.tensor([]), x, x * 2])
    assert tuple(out.shape) == (4, 3)
    out.sum().backward()
    assert x.grad.tolist() == [[3, 3, 3]] * 2


def test_gradients_reach_each_part():
    a, b = wf.ones(2, requires_grad=True), wf.ones(3, requires_grad=True)
    (wf.cat([a, b, a]) * wf.arange(7.0)).sum().backward()
    assert a.grad.tolist() == [5, 7] and b.grad.tolist() == [2, 3, 4]
    rows = [wf.zeros(2, requires_grad=True) for _ in range(3)]
    (wf.stack(rows, 1) * wf.arange(6.0).reshape(2, 3)).sum().backward()
    assert [r.grad.tolist() for r in rows] == [[0, 3], [1, 4], [2, 5]]


def test_part_gradients_are_views_of_one_array():
    a, b = wf.ones(2, requires_grad=True), wf.ones(3, requires_grad=True)
    seen = []
    c, d = a * 1, b * 1
    c.register_hook(lambda g: seen.append(g.numpy()))
    d.register_hook(lambda g: seen.append(g.numpy()))
    wf.cat([c, d]).backward(wf.ones(5))
    assert seen[0].base is not None and seen[0].base is seen[1].base


def test_block_diag():
    a, b = wf.ones(2, 2, requires_grad=True), wf.tensor([3.0, 4.0, 5.0])
    out = wf.block_diag(a, b, wf.tensor(6.0))
    assert out.tolist() == [[1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [0, 0, 3, 4, 5, 0], [0, 0, 0, 0, 0, 6]]
    (out * 2).sum().backward()
    assert a.grad.tolist() == [[2, 2], [2, 2]]


@pytest.mark.parametrize(
    ("call", "error", "sentence"),
    [
        (lambda x: wf.cat([x, wf.zeros(3, 3)], 1), ShapeError,
         r"cat: tensor 0 is f32\[2,3\] and tensor 1 is f32\[3,3\]; all sizes but that of dimension 1 must be equal "
         r"\(test_join.py:\d+\)"),
        (lambda x: wf.cat([x, x[0]]), ShapeError, r"tensor 1 is f32\[3\]"),
        (lambda x: wf.cat([x], 2), IndexRangeError, "cat: dim 2 is out of range"),
        (lambda x: wf.cat([]), ArgumentError, "at least one tensor"),
        (lambda x: wf.cat(x), ArgumentTypeError, r"expects a tuple or list of tensors, not Tensor.*wf.cat\(\(a, b\)\)"),
        (lambda x: wf.cat([x, 1.0]), ArgumentTypeError, "item 1 is float, not a tensor"),
        (lambda x: wf.cat([x.sum(), x.sum()]), ShapeError, "0-dim.*wf.stack"),
        (lambda x: wf.stack([x, x[0]]), ShapeError, r"stack: tensor 0 is f32\[2,3\] and tensor 1 is f32\[3\].*wf.cat"),
        (lambda x: wf.block_diag(x[None]), ShapeError, r"block_diag: item 0 is f32\[1,2,3\]"),
    ],
)  # fmt: skip
def test_errors_are_sentences(call, error, sentence):
    with pytest.raises(error, match=sentence):
        call(wf.zeros(2, 3))


def test_an_array_among_tensors_is_told_what_to_become():
    with pytest.raises(TypeError, match=r"cat: item 1 is ndarray, not a tensor .*wf\.tensor\(\.\.\.\)"):
        wf.cat([wf.ones(2), np.ones(2)])
