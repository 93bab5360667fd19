"""Indexing side by side: every form, for reading and for writing, with gradients."""

from __future__ import annotations

import operator

import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

from tests.oracle.side_by_side import agree

# Each makes an index for a tensor of shape [4, 5, 6].
INDEXES = {
    "integer": lambda m: 1,
    "negative integer": lambda m: -1,
    "slice": lambda m: slice(1, 3),
    "slice with step": lambda m: slice(None, None, 2),
    "slice past the end": lambda m: slice(2, 100),
    "empty slice": lambda m: slice(3, 1),
    "negative slice": lambda m: slice(-3, -1),
    "negative step": lambda m: slice(None, None, -1),
    "zero step": lambda m: slice(None, None, 0),
    "ellipsis": lambda m: ...,
    "ellipsis and integer": lambda m: (..., 2),
    "integer, ellipsis, slice": lambda m: (1, ..., slice(0, 2)),
    "two ellipses": lambda m: (..., 1, ...),
    "None": lambda m: None,
    "None between": lambda m: (slice(None), None, 2),
    "None at the end": lambda m: (..., None),
    "all integers": lambda m: (1, 2, 3),
    "too many": lambda m: (1, 2, 3, 0),
    "out of range": lambda m: 4,
    "negative out of range": lambda m: -5,
    "out of range in the second": lambda m: (0, 5),
    "True": lambda m: True,
    "False": lambda m: False,
    "zero-dimensional index": lambda m: m.tensor(2),
    "integer tensor": lambda m: m.tensor([0, 2, 2]),
    "negative entries": lambda m: m.tensor([-1, 0]),
    "integer tensor out of range": lambda m: m.tensor([0, 4]),
    "int32 tensor": lambda m: m.tensor([0, 2], dtype=m.int32),
    "two-dimensional index": lambda m: m.tensor([[0, 1], [2, 3]]),
    "empty index": lambda m: m.tensor([], dtype=m.int64),
    "empty list": lambda m: [],
    "float index": lambda m: m.tensor([0.0]),
    "python float": lambda m: 1.0,
    "list": lambda m: [0, 2],
    "list of bools": lambda m: [True, False, True, False],
    "tuple of lists": lambda m: ([0, 1], [2, 3]),
    "pair of tensors": lambda m: (m.tensor([0, 1]), m.tensor([2, 3])),
    "broadcast pair": lambda m: (m.tensor([[0], [1]]), m.tensor([2, 3])),
    "pair that does not broadcast": lambda m: (m.tensor([0, 1]), m.tensor([0, 1, 2])),
    "tensors apart": lambda m: (m.tensor([0, 1]), slice(None), m.tensor([2, 3])),
    "tensors together behind": lambda m: (slice(None), m.tensor([0, 1]), m.tensor([2, 3])),
    "integer apart from tensor": lambda m: (0, slice(None), m.tensor([2, 3])),
    "integer beside tensor": lambda m: (slice(None), 0, m.tensor([2, 3])),
    "tensor and None": lambda m: (m.tensor([0, 1]), None, m.tensor([2, 3])),
    "tensor and ellipsis": lambda m: (m.tensor([0, 1]), ..., m.tensor([2, 3])),
    "slice and tensor": lambda m: (slice(1, 3), m.tensor([0, 4])),
    "mask of rows": lambda m: m.tensor([True, False, True, False]),
    "mask of nothing": lambda m: m.zeros(4, dtype=m.bool),
    "mask of all": lambda m: m.arange(120).reshape(4, 5, 6) % 7 == 3,
    "mask of two dims": lambda m: m.arange(20).reshape(4, 5) % 3 == 0,
    "mask behind a slice": lambda m: (slice(None), m.tensor([True, False, True, False, True])),
    "mask with integer": lambda m: (m.tensor([True, False, True, False]), 1),
    "mask with tensor": lambda m: (m.tensor([True, False, True, False]), m.tensor([0, 1])),
    "mask of wrong size": lambda m: m.tensor([True, False]),
    "mask and None": lambda m: (None, m.tensor([True, False, True, False])),
    "text": lambda m: "a",
}


def _subject(m, **options):
    return m.arange(120, dtype=m.float64).reshape(4, 5, 6).clone().requires_grad_(options.get("grad", False))


@pytest.mark.parametrize("index", INDEXES.values(), ids=INDEXES)
def test_read(index):
    agree(lambda m: _subject(m)[index(m)], any_error=True)


@pytest.mark.parametrize("index", INDEXES.values(), ids=INDEXES)
def test_read_with_gradient(index):
    def snippet(m):
        x = _subject(m, grad=True)
        y = x[index(m)]
        (y * m.arange(y.numel(), dtype=m.float64).reshape(y.shape)).sum().backward()
        return x.grad

    agree(snippet, any_error=True)


@pytest.mark.parametrize("index", INDEXES.values(), ids=INDEXES)
def test_write_a_number(index):
    def snippet(m):
        x = _subject(m)
        x[index(m)] = -1.0
        return x

    agree(snippet, any_error=True)


@pytest.mark.parametrize("index", INDEXES.values(), ids=INDEXES)
def test_write_a_tensor_with_gradients_of_both(index):
    def snippet(m):
        x = _subject(m, grad=True)
        i = index(m)
        with m.no_grad():
            shape = x[i].shape
        y = x * 2
        # Overlapping writes have no defined winner, so all values written are one number.
        value = m.full((), 3.0, dtype=m.float64, requires_grad=True)
        y[i] = value.expand(shape)
        (y * m.arange(120, dtype=m.float64).reshape(4, 5, 6)).sum().backward()
        grad_of_value = value.grad if value.grad is not None else m.zeros_like(value)
        return y.detach(), x.grad, grad_of_value

    # PyTorch lets only one of the repeated writes win, so repeated positions are left to the test of reading.
    agree(snippet, any_error=True)


WRITES = {
    "broadcast row": lambda m, x: x.__setitem__(1, m.arange(6, dtype=m.float64)),
    "broadcast over a mask": lambda m, x: x.__setitem__(x > 50, m.tensor(7.0, dtype=m.float64)),
    "one value per mask entry": lambda m, x: x.__setitem__(x > 117, m.tensor([1.0, 2.0], dtype=m.float64)),
    "wrong number for the mask": lambda m, x: x.__setitem__(x > 117, m.tensor([1.0, 2.0, 3.0], dtype=m.float64)),
    "wrong shape": lambda m, x: x.__setitem__(0, m.zeros(4, dtype=m.float64)),
    "leading ones are dropped": lambda m, x: x.__setitem__(0, m.ones(1, 1, 5, 6, dtype=m.float64)),
    "other dtype is converted": lambda m, x: x.__setitem__(0, m.ones(5, 6, dtype=m.int64)),
    "number into a slice": lambda m, x: x.__setitem__((slice(None), 0), 3),
    "list of numbers": lambda m, x: x.__setitem__((0, 0), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
    "view of itself": lambda m, x: x.__setitem__(0, x[1].clone()),
    "transposed target": lambda m, x: x.transpose(0, 2).__setitem__(0, m.zeros(5, 4, dtype=m.float64)),
    "index_put_": lambda m, x: x.index_put_((m.tensor([0, 1]),), m.zeros((), dtype=m.float64)),
    "index_put_ accumulate": lambda m, x: x.index_put_(
        (m.tensor([0, 0]), m.tensor([1, 1])), m.ones((), dtype=m.float64), accumulate=True
    ),
    "augmented slice": lambda m, x: x[1:3].add_(100),
    "augmented mask": lambda m, x: x.__setitem__(x > 100, x[x > 100] * 2),
    "empty target": lambda m, x: x.__setitem__(slice(0, 0), 5.0),
    "delete": lambda m, x: operator.delitem(x, 0),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_write(write):
    def snippet(m):
        x = _subject(m)
        write(m, x)
        return x

    agree(snippet, any_error=True)


def test_integer_index_gives_a_view():
    def snippet(m):
        x = _subject(m)
        x[1].zero_()
        x[..., 2:4].fill_(-5)
        return x

    agree(snippet)


def test_tensor_index_gives_a_copy():
    def snippet(m):
        x = _subject(m)
        x[m.tensor([1])].zero_()
        x[x > 3].zero_()
        return x

    agree(snippet)


LENGTHS = {
    "len": lambda m: len(m.zeros(3, 2)),
    "len of a number": lambda m: len(m.tensor(1)),
    "iteration": lambda m: [row for row in m.arange(6).reshape(3, 2)],
    "iteration over a number": lambda m: list(m.tensor(1)),
    "contains": lambda m: [2 in m.arange(3), 7 in m.arange(3)],
    "as python index": lambda m: [10, 20, 30][m.tensor(1)],
    "float tensor as index": lambda m: [10, 20, 30][m.tensor(1.0)],
    "bool of one": lambda m: [bool(m.tensor([0.0])), bool(m.tensor(2))],
    "bool of many": lambda m: bool(m.zeros(2)),
    "bool of none": lambda m: bool(m.zeros(0)),
    "int and float": lambda m: [int(m.tensor(2.7)), float(m.tensor(3))],
    "int of many": lambda m: int(m.zeros(2)),
    "item of many": lambda m: m.zeros(2).item(),
    "unpacking": lambda m: [*m.arange(3)],
    "hash by identity": lambda m: len({m.tensor(1), m.tensor(1)}),
    "negative dimension": lambda m: m.zeros(2, 3).size(-1),
    "dimension out of range": lambda m: m.zeros(2, 3).size(2),
    "stride": lambda m: m.zeros(2, 3, 4).transpose(0, 2).stride(),
    "is_contiguous": lambda m: [m.zeros(2, 3).is_contiguous(), m.zeros(2, 3).t().is_contiguous()],
    "storage_offset": lambda m: m.zeros(2, 3)[1].storage_offset(),
}


@pytest.mark.parametrize("snippet", LENGTHS.values(), ids=LENGTHS)
def test_container_protocol(snippet):
    agree(snippet, any_error=True)
