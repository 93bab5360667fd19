"""`nn.utils` and `nn.init` side by side with PyTorch's: clipping, packed and padded sequences, gradients, errors."""

import inspect
import math

import numpy as np
import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

import torch

import wayfare as wf
from wayfare.nn import init, utils
from wayfare.nn.utils import rnn

THEIRS = torch.nn.utils.rnn


def both(array, dtype="float64"):
    """The same leaf twice: Wayfare's and PyTorch's."""
    array = np.asarray(array, dtype)
    return wf.tensor(array, requires_grad=True), torch.tensor(array, requires_grad=True)


def same(mine, other, tolerance=1e-12):
    """Equal shape, dtype and values."""
    assert tuple(mine.shape) == tuple(other.shape)
    assert str(mine.dtype).split(".")[-1] == str(other.dtype).split(".")[-1]
    assert mine.detach().numpy() == pytest.approx(other.detach().numpy(), rel=tolerance, abs=tolerance, nan_ok=True)


# -- clipping ------------------------------------------------------------------------------------------------

GRADIENTS = {
    "several": [np.arange(12.0).reshape(3, 4) - 5, None, np.array([0.5, -3.0]), np.array(2.0)],
    "small": [np.array([1e-4, 2e-4])],
    "zero": [np.zeros(3), np.zeros((2, 2))],
    "nan": [np.array([1.0, math.nan]), np.array([2.0])],
    "infinite": [np.array([1.0, math.inf]), np.array([2.0])],
    "none": [None],
}


def leaves(name, dtype):
    made = []
    for gradient in GRADIENTS[name]:
        mine, other = both(np.zeros(() if gradient is None else gradient.shape), dtype)
        if gradient is not None:
            mine.grad, other.grad = (t.detach() for t in both(gradient, dtype))
        made.append((mine, other))
    return [mine for mine, _ in made], [other for _, other in made]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("order", [2, 1, 3.5, math.inf, -math.inf, 0])
@pytest.mark.parametrize("name", GRADIENTS)
def test_clip_grad_norm(name, order, dtype):
    mine, other = leaves(name, dtype)
    tolerance = 1e-12 if dtype == "float64" else 1e-6
    total = utils.clip_grad_norm_(mine, 1.5, order)
    expected = torch.nn.utils.clip_grad_norm_(other, 1.5, order)
    if name != "none":
        same(total, expected, tolerance)
    for p, q in zip(mine, other, strict=True):
        assert (p.grad is None) == (q.grad is None)
        if p.grad is not None:
            same(p.grad, q.grad, tolerance)


@pytest.mark.parametrize("name", ["several", "nan", "infinite"])
def test_clip_grad_value(name):
    mine, other = leaves(name, "float64")
    utils.clip_grad_value_(mine, 1.25)
    torch.nn.utils.clip_grad_value_(other, 1.25)
    for p, q in zip(mine, other, strict=True):
        if p.grad is not None:
            same(p.grad, q.grad)


def test_clipping_in_two_steps():
    mine, other = leaves("several", "float64")
    total = utils.get_total_norm([p.grad for p in mine if p.grad is not None], 3)
    expected = torch.nn.utils.get_total_norm([p.grad for p in other if p.grad is not None], 3)
    same(total, expected)
    utils.clip_grads_with_norm_(mine, 2.0, total)
    torch.nn.utils.clip_grads_with_norm_(other, 2.0, expected)
    for p, q in zip(mine, other, strict=True):
        if p.grad is not None:
            same(p.grad, q.grad)


def test_vectors():
    pairs = [both(np.arange(6.0).reshape(2, 3)), both(np.arange(4.0))]
    mine, other = [p for p, _ in pairs], [q for _, q in pairs]
    vector, expected = utils.parameters_to_vector(mine), torch.nn.utils.parameters_to_vector(other)
    same(vector, expected)
    utils.vector_to_parameters(vector * 2, mine)
    torch.nn.utils.vector_to_parameters(expected * 2, other)
    for p, q in pairs:
        same(p, q)


# -- sequences -----------------------------------------------------------------------------------------------

LENGTHS = [[3], [4, 2, 2, 1], [1, 5, 3, 5, 2], [2, 2, 2]]
RNG = np.random.default_rng(1)


def listed(lengths, rest=(2,)):
    made = [both(RNG.normal(size=(length, *rest))) for length in lengths]
    return [mine for mine, _ in made], [other for _, other in made]


def same_packed(mine, other):
    for a, b in zip(mine, other, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            same(a, b)


def same_gradients(mine, other, inputs):
    """Weigh the results, go backward, and compare the gradients of all inputs."""
    weights = [RNG.normal(size=tuple(result.shape)) for result in mine]
    sum((a * wf.tensor(w)).sum() for a, w in zip(mine, weights, strict=True)).backward()
    sum((b * torch.tensor(w)).sum() for b, w in zip(other, weights, strict=True)).backward()
    for p, q in zip(*inputs, strict=True):
        same(p.grad, q.grad)


def is_sorted(lengths):
    return lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_pack_padded_sequence(lengths, batch_first):
    steps, batch = max(lengths) + 1, len(lengths)
    mine, other = both(RNG.normal(size=(batch, steps, 3) if batch_first else (steps, batch, 3)))
    for enforce in (True, False) if is_sorted(lengths) else (False,):
        mine.grad = other.grad = None
        packed = rnn.pack_padded_sequence(mine, lengths, batch_first, enforce)
        expected = THEIRS.pack_padded_sequence(other, torch.tensor(lengths), batch_first, enforce)
        same_packed(packed, expected)
        same_gradients([packed.data], [expected.data], ([mine], [other]))


@pytest.mark.parametrize("options", [{}, {"batch_first": True}, {"padding_value": -2.0, "total_length": 7}])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_pack_sequence_and_pad_packed_sequence(lengths, options):
    mine, other = listed(lengths)
    packed, expected = rnn.pack_sequence(mine, is_sorted(lengths)), THEIRS.pack_sequence(other, is_sorted(lengths))
    same_packed(packed, expected)
    padded, found = rnn.pad_packed_sequence(packed, **options)
    their_padded, their_lengths = THEIRS.pad_packed_sequence(expected, **options)
    same(padded, their_padded)
    same(found, their_lengths)
    same_gradients([padded], [their_padded], (mine, other))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("lengths", [*LENGTHS, [3, 0, 1]])
def test_pad_sequence_and_unpad_sequence(lengths, batch_first, side):
    mine, other = listed(lengths, rest=(2, 3))
    padded = rnn.pad_sequence(mine, batch_first, 1.5, side)
    expected = THEIRS.pad_sequence(other, batch_first, 1.5, side)
    same(padded, expected)
    parts = rnn.unpad_sequence(padded, wf.tensor(lengths), batch_first)
    # PyTorch turns its padded tensor around in place.
    their_parts = THEIRS.unpad_sequence(expected.clone(), torch.tensor(lengths), batch_first)
    for a, b in zip(parts, their_parts, strict=True):
        same(a, b)
    same_gradients([*parts, padded], [*their_parts, expected], (mine, other))


@pytest.mark.parametrize("lengths", LENGTHS)
def test_unpack_sequence(lengths):
    mine, other = listed(lengths, rest=())
    parts = rnn.unpack_sequence(rnn.pack_sequence(mine, enforce_sorted=False))
    their_parts = THEIRS.unpack_sequence(THEIRS.pack_sequence(other, enforce_sorted=False))
    for a, b in zip(parts, their_parts, strict=True):
        same(a, b)
    same_gradients(parts, their_parts, (mine, other))


def test_invert_permutation():
    same(rnn.invert_permutation(wf.tensor([2, 0, 1])), THEIRS.invert_permutation(torch.tensor([2, 0, 1])))


BAD = {
    "nothing to pack": lambda m, r: r.pack_sequence([]),
    "nothing to pad": lambda m, r: r.pad_sequence([]),
    "not sorted": lambda m, r: r.pack_sequence([m.zeros(1, 2), m.zeros(3, 2)]),
    "an empty sequence": lambda m, r: r.pack_sequence([m.zeros(1, 2), m.zeros(0, 2)]),
    "an empty tensor": lambda m, r: r.pack_padded_sequence(m.zeros(0, 2), m.tensor([0, 0])),
    "too few lengths": lambda m, r: r.pack_padded_sequence(m.zeros(3, 2), m.tensor([3])),
    "different widths": lambda m, r: r.pad_sequence([m.zeros(3, 2), m.zeros(3, 4)]),
    "no such side": lambda m, r: r.pad_sequence([m.zeros(3, 2)], padding_side="up"),
    "a number": lambda m, r: r.pad_sequence(3),
    "too short": lambda m, r: r.pad_packed_sequence(r.pack_sequence([m.zeros(3, 2)]), total_length=2),
    "lengths that do not fit": lambda m, r: r.unpad_sequence(m.zeros(3, 2), m.tensor([1])),
}


@pytest.mark.parametrize("name", BAD)
def test_the_same_kind_of_error(name):
    with pytest.raises(Exception) as expected:
        BAD[name](torch, THEIRS)
    with pytest.raises(type(expected.value)):
        BAD[name](wf, rnn)


# -- signatures ----------------------------------------------------------------------------------------------

FUNCTIONS = [
    *[(getattr(rnn, name), getattr(THEIRS, name)) for name in rnn.__all__ if name != "PackedSequence"],
    *[(getattr(utils, name), getattr(torch.nn.utils, name)) for name in utils.__all__ if name != "rnn"],
    *[(getattr(init, name), getattr(torch.nn.init, name)) for name in init.__all__],
]


@pytest.mark.parametrize(("mine", "other"), FUNCTIONS, ids=lambda f: f.__name__)
def test_the_same_signature(mine, other):
    ours, theirs = (inspect.signature(f).parameters.values() for f in (mine, other))
    assert [(p.name, p.default, p.kind) for p in ours] == [(p.name, p.default, p.kind) for p in theirs]


INIT_BAD = {
    "gain": lambda m, i: i.calculate_gain("gelu"),
    "slope": lambda m, i: i.calculate_gain("leaky_relu", True),
    "eye": lambda m, i: i.eye_(m.zeros(3)),
    "dirac": lambda m, i: i.dirac_(m.zeros(3, 3)),
    "dirac groups": lambda m, i: i.dirac_(m.zeros(3, 3, 3), 2),
    "fans": lambda m, i: i.xavier_normal_(m.zeros(3)),
    "mode": lambda m, i: i.kaiming_normal_(m.zeros(3, 3), mode="fan"),
    "orthogonal": lambda m, i: i.orthogonal_(m.zeros(3)),
    "sparse": lambda m, i: i.sparse_(m.zeros(3), 0.5),
    "uniform": lambda m, i: i.uniform_(m.zeros(3), 2.0, 1.0),
    "normal": lambda m, i: i.normal_(m.zeros(3), 0.0, -1.0),
}


@pytest.mark.parametrize("name", INIT_BAD)
def test_the_same_kind_of_error_in_init(name):
    with pytest.raises(Exception) as expected:
        INIT_BAD[name](torch, torch.nn.init)
    with pytest.raises(type(expected.value)):
        INIT_BAD[name](wf, init)


def test_what_is_not_random_is_the_same():
    same(init.eye_(wf.zeros(3, 5)), torch.nn.init.eye_(torch.zeros(3, 5)))
    for shape, groups in (((4, 2, 3), 2), ((4, 6, 3, 2), 1), ((6, 2, 1, 5, 4), 3)):
        same(init.dirac_(wf.ones(*shape), groups), torch.nn.init.dirac_(torch.ones(*shape), groups))
    for name in ("linear", "conv3d", "sigmoid", "tanh", "relu", "leaky_relu", "selu"):
        assert init.calculate_gain(name) == pytest.approx(torch.nn.init.calculate_gain(name))
