"""Packed and padded sequences: round trips over random lengths, written out by hand, gradients, bad input."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wayfare as wf
from wayfare.nn.utils import rnn

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=7)
REST = st.sampled_from([(), (3,), (2, 2)])


def sequences(lengths, rest=(2,)):
    """Sequences of the given lengths with a different number in every place."""
    total = sum(lengths) * int(np.prod(rest))
    rows = wf.arange(1.0, total + 1).reshape((sum(lengths), *rest))
    return [part.clone().requires_grad_() for part in wf.split(rows, list(lengths))]


def by_hand(lengths, order):
    """(sequence, step) of each packed row."""
    steps = range(max(lengths))
    return [(b, t) for t in steps for b in order if lengths[b] > t]


def order_of(lengths):
    return sorted(range(len(lengths)), key=lambda b: -lengths[b])


# -- packing -------------------------------------------------------------------------------------------------


@given(lengths=LENGTHS, rest=REST)
def test_packing_puts_every_row_in_its_place(lengths, rest):
    made = sequences(lengths, rest)
    packed = rnn.pack_sequence(made, enforce_sorted=False)
    order = order_of(lengths)
    expected = [made[b].detach().numpy()[t] for b, t in by_hand(lengths, order)]
    assert packed.data.tolist() == np.array(expected).tolist()
    assert packed.batch_sizes.tolist() == [sum(n > t for n in lengths) for t in range(max(lengths))]
    assert packed.sorted_indices.tolist() == order
    assert [order[b] for b in packed.unsorted_indices.tolist()] == list(range(len(lengths)))
    assert packed.batch_sizes.dtype is packed.sorted_indices.dtype is wf.int64


@given(lengths=LENGTHS, rest=REST, batch_first=st.booleans(), more=st.integers(0, 3))
def test_padded_or_listed_sequences_pack_alike(lengths, rest, batch_first, more):
    made = sequences(lengths, rest)
    padded = rnn.pad_sequence([*made, wf.zeros((max(lengths) + more, *rest))], batch_first, padding_value=-1.0)
    padded = padded[:-1] if batch_first else padded[:, :-1]
    packed = rnn.pack_padded_sequence(padded, wf.tensor(lengths), batch_first, enforce_sorted=False)
    expected = rnn.pack_sequence(made, enforce_sorted=False)
    for mine, other in zip(packed, expected, strict=True):
        assert mine.tolist() == other.tolist()


@given(lengths=LENGTHS, rest=REST, batch_first=st.booleans(), more=st.none() | st.integers(0, 3))
def test_packed_and_padded_again(lengths, rest, batch_first, more):
    made = sequences(lengths, rest)
    packed = rnn.pack_sequence(made, enforce_sorted=False)
    total = None if more is None else max(lengths) + more
    padded, found = rnn.pad_packed_sequence(packed, batch_first, -7.0, total)
    assert found.tolist() == lengths and found.dtype is wf.int64
    if not batch_first:
        padded = padded.transpose(0, 1)
    assert padded.shape == (len(lengths), total or max(lengths), *rest)
    for sequence, row, length in zip(made, padded, lengths, strict=True):
        assert row[:length].tolist() == sequence.tolist()
        assert (row[length:] == -7.0).all()


@given(lengths=LENGTHS, rest=REST)
def test_packed_and_unpacked_again(lengths, rest):
    made = sequences(lengths, rest)
    for sequence, again in zip(made, rnn.unpack_sequence(rnn.pack_sequence(made, False)), strict=True):
        assert again.tolist() == sequence.tolist()
    ranked = [made[b] for b in order_of(lengths)]
    packed = rnn.pack_sequence(ranked)
    assert packed.sorted_indices is None and packed.unsorted_indices is None
    for sequence, again in zip(ranked, rnn.unpack_sequence(packed), strict=True):
        assert again.tolist() == sequence.tolist()


@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    rest=REST,
    batch_first=st.booleans(),
    side=st.sampled_from(["left", "right"]),
)
def test_padding_on_either_side(lengths, rest, batch_first, side):
    made = sequences(lengths, rest)
    padded = rnn.pad_sequence(made, batch_first, 0.5, side)
    rows = padded if batch_first else padded.transpose(0, 1)
    longest = max(lengths)
    assert rows.shape == (len(lengths), longest, *rest)
    for sequence, row, length in zip(made, rows, lengths, strict=True):
        start = longest - length if side == "left" else 0
        assert row[start : start + length].tolist() == sequence.tolist()
        assert (row == 0.5).sum().item() == (longest - length) * int(np.prod(rest))
    if side == "right":
        for sequence, again in zip(made, rnn.unpad_sequence(padded, wf.tensor(lengths), batch_first), strict=True):
            assert again.shape == sequence.shape and again.tolist() == sequence.tolist()


def test_unpadding_leaves_the_padded_tensor_as_it_was():
    padded = rnn.pad_sequence(sequences([2, 3]))
    before = padded.tolist()
    rnn.unpad_sequence(padded, [2, 3])[0].detach().zero_()
    assert padded.shape == (3, 2, 2) and padded.tolist() == before


def test_a_transposed_batch():
    padded = rnn.pad_sequence(sequences([3, 1, 2]), batch_first=True)
    first = rnn.pack_padded_sequence(padded, [3, 1, 2], True, False)
    second = rnn.pack_padded_sequence(padded.transpose(0, 1), [3, 1, 2], False, False)
    assert first.data.tolist() == second.data.tolist()


def test_whole_numbers_keep_their_dtype():
    packed = rnn.pack_sequence([wf.tensor([1, 2, 3]), wf.tensor([4])])
    assert packed.data.tolist() == [1, 4, 2, 3] and packed.data.dtype is wf.int64
    padded, _ = rnn.pad_packed_sequence(packed)
    assert padded.dtype is wf.int64 and padded.tolist() == [[1, 4], [2, 0], [3, 0]]


# -- gradients -----------------------------------------------------------------------------------------------


def test_gradients_reach_every_step_once():
    made = sequences([3, 1, 4])
    padded = rnn.pad_sequence(made)
    packed = rnn.pack_padded_sequence(padded, [3, 1, 4], enforce_sorted=False)
    again, _ = rnn.pad_packed_sequence(packed, batch_first=True, total_length=5)
    weight = wf.arange(float(again.numel())).reshape(again.shape)
    (again * weight).sum().backward()
    for b, sequence in enumerate(made):
        assert sequence.grad.tolist() == weight[b, : len(sequence)].tolist()


@pytest.mark.parametrize("batch_first", [False, True])
def test_gradients_of_everything(batch_first):
    lengths = [2, 4, 1]
    made = [s.detach().double().requires_grad_() for s in sequences(lengths)]
    padded = rnn.pad_sequence(made, batch_first).detach().requires_grad_()

    def pack(x):
        return rnn.pack_padded_sequence(x, lengths, batch_first, False).data ** 2

    def unpack(*xs):
        return rnn.pad_packed_sequence(rnn.pack_sequence([x**2 for x in xs], False), batch_first)[0]

    def pad(*xs):
        return rnn.pad_sequence([x**2 for x in xs], batch_first, padding_side="left")

    def unpad(x):
        return tuple(rnn.unpad_sequence(x**2, lengths, batch_first))

    def separate(*xs):
        return tuple(rnn.unpack_sequence(rnn.pack_sequence([x**2 for x in xs], False)))

    for function, inputs in ((pack, [padded]), (unpack, made), (pad, made), (unpad, [padded]), (separate, made)):
        assert wf.autograd.gradcheck(function, tuple(inputs))
        assert wf.autograd.gradgradcheck(function, tuple(inputs))


# -- the packed sequence itself ------------------------------------------------------------------------------


def test_a_packed_sequence_is_a_tuple_of_four():
    packed = rnn.pack_sequence(sequences([1, 2]), enforce_sorted=False)
    data, batch_sizes, sorted_indices, unsorted_indices = packed
    assert data is packed.data and batch_sizes is packed[1]
    assert sorted_indices.tolist() == unsorted_indices.tolist() == [1, 0]
    assert packed._fields == ("data", "batch_sizes", "sorted_indices", "unsorted_indices")
    made = rnn.PackedSequence(data, batch_sizes, wf.tensor([2, 0, 1]))
    assert made.unsorted_indices.tolist() == [1, 2, 0]
    pair = rnn.PackedSequence((data, batch_sizes))
    assert pair.data is data and pair.batch_sizes is batch_sizes and pair.sorted_indices is None


def test_a_packed_sequence_is_converted():
    packed = rnn.pack_sequence(sequences([2, 1]))
    assert packed.to(wf.float32) is packed and packed.cpu() is packed and packed.float() is packed
    for convert, dtype in (("double", wf.float64), ("half", wf.float16), ("long", wf.int64), ("int", wf.int32),
                           ("short", wf.int16)):  # fmt: skip
        other = getattr(packed, convert)()
        assert isinstance(other, rnn.PackedSequence) and other.data.dtype is dtype
        assert other.batch_sizes is packed.batch_sizes
    assert packed.to(dtype=wf.float64).data.dtype is wf.float64


def test_permutations_are_inverted():
    assert rnn.invert_permutation(None) is None
    assert rnn.invert_permutation(wf.tensor([2, 0, 3, 1])).tolist() == [1, 3, 0, 2]


PADDED = wf.zeros(4, 3, 2)
BAD = [
    (lambda: rnn.pack_sequence([]), RuntimeError, "pack_sequence: there are no sequences"),
    (lambda: rnn.pad_sequence([]), RuntimeError, "pad_sequence: there are no sequences"),
    (lambda: rnn.pad_sequence(3), RuntimeError, "takes a list of tensors, not int"),
    (lambda: rnn.pad_sequence([wf.zeros(2), [1.0]]), TypeError, "sequence 1 is a list, not a Tensor"),
    (lambda: rnn.pad_sequence([wf.zeros(())]), RuntimeError, "sequence 0 is 0-dim"),
    (lambda: rnn.pad_sequence([wf.zeros(2, 3), wf.zeros(2, 4)]), RuntimeError, r"sequence 1 is f32\[2,4\]"),
    (lambda: rnn.pad_sequence([wf.zeros(2)], padding_side="top"), RuntimeError, "'left' or 'right', it is 'top'"),
    (lambda: rnn.pack_sequence([wf.zeros(1, 2), wf.zeros(2, 2)]), RuntimeError, "enforce_sorted=False"),
    (lambda: rnn.pack_sequence([wf.zeros(2, 2), wf.zeros(0, 2)]), RuntimeError, "sequence 1 has length 0"),
    (lambda: rnn.pack_padded_sequence([1.0], [1]), TypeError, "takes a padded Tensor, not list"),
    (lambda: rnn.pack_padded_sequence(wf.zeros(3), [3]), RuntimeError, r"at least two dimensions.*f32\[3\]"),
    (lambda: rnn.pack_padded_sequence(wf.zeros(0, 3), [0, 0, 0]), RuntimeError, "with something in it"),
    (lambda: rnn.pack_padded_sequence(PADDED, [4, 3]), RuntimeError, "2 lengths for a batch of 3 sequences"),
    (lambda: rnn.pack_padded_sequence(PADDED, [5, 3, 1]), RuntimeError, "a length of 5 is more than the 4 steps"),
    (lambda: rnn.pack_padded_sequence(PADDED, [4, 0, 0]), RuntimeError, "sequence 1 has length 0"),
    (lambda: rnn.pack_padded_sequence(PADDED, [1, 3, 2]), RuntimeError, "from the longest to the shortest"),
    (lambda: rnn.pack_padded_sequence(PADDED, [[4, 3, 1]]), TypeError, "list or a tensor of one dimension"),
    (lambda: rnn.pack_padded_sequence(PADDED, wf.zeros(3)), TypeError, r"whole numbers, not of f32\[3\]"),
    (lambda: rnn.pad_packed_sequence(PADDED), TypeError, "takes a PackedSequence, not Tensor"),
    (lambda: rnn.pad_packed_sequence(rnn.pack_sequence([PADDED]), total_length=3), ValueError, "total_length 3"),
    (lambda: rnn.unpack_sequence([PADDED]), TypeError, "takes a PackedSequence, not list"),
    (lambda: rnn.unpad_sequence(wf.zeros(3), [1]), RuntimeError, "at least two dimensions"),
    (lambda: rnn.unpad_sequence(PADDED, [1, 2]), ValueError, "2 lengths for a batch of 3"),
    (lambda: rnn.unpad_sequence(PADDED, [1, 2, 5]), ValueError, "between 0 and the 4 steps"),
    (lambda: rnn.unpad_sequence(PADDED, [1, 2, -1]), ValueError, "they go from -1 to 2"),
    (lambda: rnn.PackedSequence(PADDED), TypeError, "needs data and batch_sizes"),
]


@pytest.mark.parametrize(("call", "kind", "sentence"), BAD)
def test_bad_arguments_are_named(call, kind, sentence):
    with pytest.raises(kind, match=sentence) as raised:
        call()
    assert "test_rnn_utils.py" in str(raised.value)
