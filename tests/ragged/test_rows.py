"""Making ragged tensors, taking them apart, indexing and joining: every way equals the loop over rows."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import wayfare as wf
from wayfare.errors import ArgumentError, ArgumentTypeError, DTypeError, IndexRangeError, ShapeError

from .strategies import made, raggeds, rows_of, same

quick = settings(max_examples=40, deadline=None)
bounds = st.one_of(st.none(), st.integers(-7, 7))


def test_parts_of_a_small_one():
    r = wf.Ragged([wf.tensor([[1.0, 2.0], [3.0, 4.0]]), wf.empty(0, 2), wf.tensor([[5.0, 6.0]])])
    assert r.values.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert r.offsets.tolist() == [0, 2, 2, 3] and r.offsets.dtype is wf.int64
    assert r.lengths.tolist() == [2, 0, 1]
    assert (len(r), r.shape, r.ndim, r.dtype, r.numel()) == (3, (3, None, 2), 3, wf.float32, 6)
    assert r.tolist() == [[[1, 2], [3, 4]], [], [[5, 6]]]


@given(raggeds())
@quick
def test_round_trips(r):
    rows = [row.detach() for row in rows_of(r)]
    if rows:
        assert wf.Ragged(rows).equal(r)
        assert wf.Ragged(r.detach().to_list()).equal(r)
        assert wf.Ragged(list(r.detach())).equal(r)
        assert wf.Ragged(r.detach().unbind()).equal(r)
    assert wf.Ragged.from_parts(r.values, r.offsets).equal(r)
    assert wf.Ragged.from_parts(r.values, r.offsets.tolist()).equal(r)
    assert pickle.loads(pickle.dumps(r.detach())).equal(r)
    assert copy.deepcopy(r.detach()).equal(r)
    same(r.to_list(), rows_of(r), [r.values])


@given(raggeds(), st.integers(0, 3))
@quick
def test_padded_and_back(r, extra):
    longest = max(r.lengths.tolist(), default=0)
    padded = r.to_padded(padding=-9, length=longest + extra)
    assert tuple(padded.shape) == (len(r), longest + extra, *r.shape[2:])
    mask = r.mask(longest + extra)
    for number, row in enumerate(rows_of(r)):
        assert wf.equal(padded[number, : len(row)], row)
        assert bool((padded[number, len(row) :] == -9).all())
        assert mask[number].tolist() == [k < len(row) for k in range(longest + extra)]
    assert wf.Ragged.from_padded(padded, r.lengths).equal(r)
    loop = [padded[k, : len(row)] for k, row in enumerate(rows_of(r))]
    same(wf.Ragged.from_padded(padded, r.lengths), loop, [r.values])


def test_gradients_of_a_list_reach_its_tensors():
    a, b = wf.ones(2, 3, requires_grad=True), wf.ones(1, 3, requires_grad=True)
    (wf.Ragged([a, b]) * wf.tensor([[[2.0]], [[5.0]]])).sum().backward()
    assert a.grad.tolist() == [[2.0] * 3] * 2 and b.grad.tolist() == [[5.0] * 3]


@pytest.mark.parametrize("rows", [[], [[]], [[], []]])
def test_no_values_at_all(rows):
    r = wf.Ragged(rows)
    assert len(r) == len(rows) and r.values.shape == (0,) and r.dtype is wf.float32
    assert r.sum(1).tolist() == [0.0] * len(rows)
    assert r.to_padded().shape == (len(rows), 0)
    assert (r + 1).equal(r) and r.tolist() == rows


def test_a_blank_row_takes_dtype_and_features_of_the_others():
    r = wf.Ragged([[], [[1, 2]], []])
    assert r.shape == (3, None, 2) and r.dtype is wf.int64 and r.lengths.tolist() == [0, 1, 0]


def test_dtype_of_mixed_rows():
    r = wf.Ragged([[1, 2], [0.5]], dtype=wf.float64)
    assert r.dtype is wf.float64 and r.tolist() == [[1.0, 2.0], [0.5]]


@given(raggeds(fewest=1), st.data())
@quick
def test_one_row(r, data):
    number = data.draw(st.integers(-len(r), len(r) - 1))
    same(r[number], rows_of(r)[number], [r.values])
    assert wf.equal(r[wf.tensor(number)], r[number])


@given(raggeds(), bounds, bounds, st.sampled_from([None, 1, 2, -1, -2]))
@quick
def test_slices_of_rows(r, start, stop, step):
    chosen = r[start:stop:step]
    assert chosen.lengths.tolist() == r.lengths.tolist()[start:stop:step]
    same(chosen, rows_of(r)[start:stop:step], [r.values])


@given(raggeds(fewest=1), st.data())
@quick
def test_rows_by_numbers_and_masks(r, data):
    numbers = data.draw(st.lists(st.integers(-len(r), len(r) - 1), max_size=6))
    for index in (numbers, np.array(numbers, np.int64), wf.tensor(numbers, dtype=wf.int64)):
        chosen = r[index]
        assert chosen.lengths.tolist() == [r.lengths.tolist()[k] for k in numbers]
        same(chosen, [rows_of(r)[k] for k in numbers], [r.values])
    mask = data.draw(st.lists(st.booleans(), min_size=len(r), max_size=len(r)))
    same(r[wf.tensor(mask)], [row for row, kept in zip(rows_of(r), mask, strict=True) if kept], [r.values])


@given(raggeds(), bounds, bounds)
@example(made([3, 0, 1]), 2, 1)
@example(made([3, 0, 1]), -2, -1)
@quick
def test_slices_within_rows(r, start, stop):
    loop = [row[start:stop] for row in rows_of(r)]
    cut = r[:, start:stop]
    assert cut.lengths.tolist() == [len(row) for row in loop]
    same(cut, loop, [r.values])


@given(raggeds(shortest=2), st.integers(-2, 1))
@quick
def test_one_value_of_each_row(r, place):
    picked = r[:, place]
    assert tuple(picked.shape) == (len(r), *r.shape[2:])
    same(picked, [row[place].unsqueeze(0) for row in rows_of(r)], [r.values])


def test_features_by_index():
    r = made([2, 0, 3], (4,))
    same(r[:, :, 1], [row[:, 1] for row in rows_of(r)], [r.values])
    same(r[..., 1:3], [row[:, 1:3] for row in rows_of(r)], [r.values])
    same(r[[2, 0], 1:, 1:3], [rows_of(r)[k][1:, 1:3] for k in (2, 0)], [r.values])
    same(r[2, 0, 1], rows_of(r)[2][0, 1], [r.values])
    same(r[[0, 2], -1, 2], wf.stack([rows_of(r)[k][-1, 2] for k in (0, 2)]), [r.values])


@given(raggeds())
@quick
def test_flip(r):
    same(r.flip(1), [row.flip(0) for row in rows_of(r)], [r.values])


@given(st.lists(raggeds(features=(2,)), min_size=1, max_size=3))
@quick
def test_cat_of_rows(many):
    joined = wf.Ragged.cat(many)
    assert joined.lengths.tolist() == [n for r in many for n in r.lengths.tolist()]
    same(joined, [row for r in many for row in rows_of(r)], [r.values for r in many])


@given(st.integers(0, 4), st.integers(1, 3), st.data())
@quick
def test_cat_along_the_length(rows, count, data):
    many = [data.draw(raggeds(features=(2,)).filter(lambda r: len(r) >= rows))[:rows].detach() for _ in range(count)]
    for r in many:
        r.requires_grad_()
    joined = wf.Ragged.cat(many, dim=1)
    loop = [wf.cat([rows_of(r)[k] for r in many]) for k in range(rows)]
    assert joined.lengths.tolist() == [len(row) for row in loop]
    same(joined, loop, [r.values for r in many])


@given(raggeds(features=(2,)))
@quick
def test_cat_along_the_features(r):
    joined = wf.Ragged.cat([r, r * 2, r], dim=-1)
    same(joined, [wf.cat([row, row * 2, row], 1) for row in rows_of(r)], [r.values])


def test_text_fits_80_columns():
    shown = [
        made([3, 0, 5], (3,)), made([60] * 30), made([2], (30, 30)), made([1, 2], (40,)) * 1e-9, wf.Ragged([]),
        made([100000, 2]), wf.Ragged([wf.arange(50)]), made([4] * 12, (2,)).softmax(1).detach().requires_grad_(),
    ]  # fmt: skip
    for r in shown:
        assert max(map(len, repr(r).splitlines())) <= 80, repr(r)
    text = repr(wf.Ragged([[1.0, 2.5], [], [4.0]]))
    assert text.splitlines() == ["Ragged(3 rows of 0 to 2, 3 in all, float32)", "  0: [1, 2.5]", "  1: []", "  2: [4]"]
    assert len(repr(shown[1]).splitlines()) == 10 and "grad_fn=<MulBackward0>" in repr(shown[3])


@pytest.mark.parametrize(
    "make, error, words",
    [
        (lambda: wf.Ragged([wf.ones(2, 3), wf.ones(1, 3), wf.ones(2, 4)]), ShapeError, "row 2 is f32.2,4. and row 0"),
        (lambda: wf.Ragged([wf.ones(2), wf.ones(1).double()]), DTypeError, "row 1 is .*float64 and row 0"),
        (lambda: wf.Ragged([wf.ones(2), wf.tensor(1.0)]), ShapeError, "row 1 is a single number"),
        (lambda: wf.Ragged([wf.ones(2), "ab"]), ArgumentTypeError, "row 1 cannot be made a tensor"),
        (lambda: wf.Ragged(wf.ones(2, 3)), ArgumentTypeError, "not one tensor"),
        (lambda: wf.Ragged(7), ArgumentTypeError, "list of rows, not int"),
        (lambda: wf.Ragged.from_parts(wf.ones(4), [0, 3, 2, 4]), ArgumentError, "row 1 would go from 3 to 2"),
        (lambda: wf.Ragged.from_parts(wf.ones(4), [0, 3]), ArgumentError, "go from 0 to 4"),
        (lambda: wf.Ragged.from_parts(wf.ones(4), [1, 4]), ArgumentError, "these go from 1 to 4"),
        (lambda: wf.Ragged.from_parts(wf.ones(4), []), ArgumentError, "there are none"),
        (lambda: wf.Ragged.from_parts(wf.ones(4), wf.ones(2)), DTypeError, "whole numbers"),
        (lambda: wf.Ragged.from_parts(wf.ones(4), wf.zeros(1, 2).long()), ShapeError, "one dimension"),
        (lambda: wf.Ragged.from_parts(wf.tensor(1.0), [0]), ShapeError, "at least one dimension"),
        (lambda: wf.Ragged.from_lengths(wf.ones(4), [1, 2]), ArgumentError, "add up to 3, but there are 4"),
        (lambda: wf.Ragged.from_lengths(wf.ones(4), [5, -1]), ArgumentError, "length of row 1 is -1"),
        (lambda: wf.Ragged.from_padded(wf.ones(2, 3), [1, 4]), ArgumentError, "row 1 .* length 4.* 3 places"),
        (lambda: wf.Ragged.from_padded(wf.ones(2, 3), [1]), ShapeError, "2 rows need as many lengths"),
        (lambda: wf.Ragged.from_padded(wf.ones(2), [1, 1]), ShapeError, "expected .rows, length"),
        (lambda: made([3, 1]).to_padded(length=2), ArgumentError, "row 0 has 3"),
        (lambda: made([3, 1])[2], IndexRangeError, "row 2 is out of range, there are 2 rows"),
        (lambda: made([3, 1])[[0, -3]], IndexRangeError, "row -3 is out of range"),
        (lambda: made([3, 1])[[0.5]], ArgumentTypeError, "whole numbers"),
        (lambda: made([3, 1])[[True]], ShapeError, "mask of rows needs 2 entries"),
        (lambda: made([3, 1])[[[0]]], ShapeError, "one dimension"),
        (lambda: made([3, 1])[:, 1], IndexRangeError, "row 1 has 1 values"),
        (lambda: made([3, 1])[:, -2], IndexRangeError, "row 1 has 1 values"),
        (lambda: made([3, 1])[:, ::2], ArgumentTypeError, "step 1"),
        (lambda: made([3, 1])[:, [0]], ArgumentTypeError, "number or a slice, not list"),
        (lambda: made([3, 1])[None], ArgumentTypeError, "None in an index"),
        (lambda: made([3, 1])[0, 0, 0], IndexRangeError, "3 indices for a ragged tensor of 2 dimensions"),
        (lambda: made([3, 1]).flip(0), ArgumentError, "dims=0"),
        (lambda: wf.Ragged.cat([]), ArgumentError, "at least one"),
        (lambda: wf.Ragged.cat([made([1]), wf.ones(2)]), ArgumentTypeError, "number 1 is Tensor"),
        (lambda: wf.Ragged.cat([made([1]), made([1], (2,))]), ShapeError, "number 1 has the features .2. and"),
        (lambda: wf.Ragged.cat([made([1]), made([1, 2])], 1), ShapeError, "number 1 has 2 rows"),
        (lambda: wf.Ragged.cat([made([1], (2,)), made([2], (2,))], 2), ShapeError, "row 0 has 1 values in one"),
        (lambda: wf.Ragged.cat([made([1])], 2), IndexRangeError, "dim 2 is out of range"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_sentence(make, error, words):
    with pytest.raises(error, match=words):
        make()
