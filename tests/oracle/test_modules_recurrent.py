"""RNN, LSTM, GRU and their cells against PyTorch's: all options, forms of input, states, gradients and errors."""

import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is the referee")

import wayfare as wf  # noqa: E402
from tests.oracle.module_check import both_refuse, check, check_initialisation  # noqa: E402

KINDS = {"RNN": {}, "LSTM": {}, "GRU": {}, "RNN relu": {"nonlinearity": "relu"}}
E, H, T, B = 3, 4, 5, 3


def pair(kind, *args, **options):
    """The module of a kind in both libraries, in float64."""
    name = kind.split()[0]
    options = options | KINDS[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (getattr(torch.nn, name)(*args, **options).double(), getattr(wf.nn, name)(*args, **options).double())


def normal(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def first_states(kind, *shape, proj=0):
    h = normal(*shape[:-1], proj or shape[-1])
    return (h, normal(*shape) * 0.5) if kind == "LSTM" else h


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("given", [False, True])
def test_padded_batches(kind, layers, both, bias, given):
    for batch_first in (False, True):
        modules = pair(kind, E, H, num_layers=layers, bidirectional=both, bias=bias, batch_first=batch_first)
        x = normal(B, T, E) if batch_first else normal(T, B, E)
        states = (first_states(kind, layers * (1 + both), B, H),) if given else ()
        check(*modules, x, *states)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("both", [False, True])
def test_one_sequence_without_a_batch(kind, both):
    modules = pair(kind, E, H, num_layers=2, bidirectional=both)
    check(*modules, normal(T, E))
    check(*modules, normal(T, E), first_states(kind, 2 * (1 + both), H))
    check(*pair(kind, E, H, batch_first=True), normal(T, E))
    check(*modules, normal(1, 1, E))


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_is_shown_and_off_in_eval(kind):
    check(*pair(kind, E, H, num_layers=3, dropout=0.4), normal(T, B, E), train=False)


@pytest.mark.parametrize("layers, both", [(1, False), (2, True)])
def test_proj_size(layers, both):
    modules = pair("LSTM", E, H, num_layers=layers, bidirectional=both, proj_size=2)
    check(*modules, normal(T, B, E))
    check(*modules, normal(T, B, E), first_states("LSTM", layers * (1 + both), B, H, proj=2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers, both", [(1, False), (2, False), (1, True), (2, True)])
@pytest.mark.parametrize("ordered", [False, True])
def test_packed_sequences(kind, layers, both, ordered):
    lengths = [6, 4, 4, 1] if ordered else [2, 6, 1, 4]
    theirs, ours = pair(kind, E, H, num_layers=layers, bidirectional=both)
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    arrays = [normal(n, E) + k for k, n in enumerate(lengths)]
    states = first_states(kind, layers * (1 + both), len(lengths), H)
    found = []
    for m, module in ((torch, theirs), (wf, ours)):
        rnn = m.nn.utils.rnn
        xs = [m.from_numpy(a.copy()).requires_grad_() for a in arrays]
        hx = tuple(m.from_numpy(s.copy()).requires_grad_() for s in (states if kind == "LSTM" else (states,)))
        packed, ends = module(rnn.pack_sequence(xs, enforce_sorted=ordered), hx if kind == "LSTM" else hx[0])
        assert isinstance(packed, rnn.PackedSequence)
        padded, sizes = rnn.pad_packed_sequence(packed)
        outs = [padded, *(ends if kind == "LSTM" else (ends,))]
        weights = [np.random.default_rng(k).standard_normal(tuple(o.shape)) for k, o in enumerate(outs)]
        sum((o * m.from_numpy(w)).sum() for o, w in zip(outs, weights, strict=True)).backward()
        grads = [t.grad for t in (*xs, *hx, *module.parameters())]
        found.append([t.detach().numpy() for t in (packed.data, packed.batch_sizes, sizes, *outs, *grads)])
    for theirs_, ours_ in zip(*found, strict=True):
        np.testing.assert_allclose(ours_, theirs_, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_a_list_is_pytorch_one_by_one(kind):
    theirs, ours = pair(kind, E, H, bidirectional=True)
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    arrays = [normal(n, E) for n in (3, 7, 1, 3)]
    outs, ends = ours([wf.from_numpy(a) for a in arrays])
    for k, array in enumerate(arrays):
        out, end = theirs(torch.from_numpy(array))
        np.testing.assert_allclose(outs[k].detach().numpy(), out.detach().numpy(), rtol=1e-9, atol=1e-11)
        for mine, other in zip(ends if kind == "LSTM" else (ends,), end if kind == "LSTM" else (end,), strict=True):
            np.testing.assert_allclose(mine[:, k].detach().numpy(), other.detach().numpy(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_single_precision(kind):
    theirs, ours = (m.float() for m in pair(kind, E, H, num_layers=2, bidirectional=True))
    check(theirs, ours, normal(8, B, E).astype(np.float32), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("kind", ["RNNCell", "LSTMCell", "GRUCell"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch", [(), (B,)])
def test_cells(kind, bias, batch):
    for options in ({}, {"nonlinearity": "relu"}) if kind == "RNNCell" else ({},):
        modules = [getattr(m.nn, kind)(E, H, bias=bias, **options).double() for m in (torch, wf)]
        check(*modules, normal(*batch, E))
        check(*modules, normal(*batch, E), first_states(kind.removesuffix("Cell"), *batch, H))


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell"])
def test_initialisation(kind):
    check_initialisation(kind, (20, 300))


def test_attributes_and_other_names():
    for kind in ("RNN", "LSTM", "GRU"):
        theirs, ours = pair(kind, E, H, num_layers=2, bidirectional=True)
        names = ("mode", "input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional",
                 "proj_size")  # fmt: skip
        for name in names:
            assert getattr(ours, name) == getattr(theirs, name), name
        shapes = [[tuple(w.shape) for w in ws] for ws in theirs.all_weights]
        assert [[tuple(w.shape) for w in ws] for ws in ours.all_weights] == shapes
        assert ours.flatten_parameters() is None


def test_positional_arguments():
    """The order in which PyTorch takes its options, which differs for RNN."""
    assert repr(wf.nn.RNN(3, 4, 2, "relu", False, True, 0.5, True)) == repr(
        torch.nn.RNN(3, 4, 2, "relu", False, True, 0.5, True))  # fmt: skip
    assert repr(wf.nn.LSTM(3, 4, 2, False, True, 0.5, True, 2)) == repr(
        torch.nn.LSTM(3, 4, 2, False, True, 0.5, True, 2))  # fmt: skip
    assert repr(wf.nn.GRU(3, 4, 2, False, True, 0.5, True)) == repr(torch.nn.GRU(3, 4, 2, False, True, 0.5, True))


REFUSED = {
    "input size": lambda m: m.nn.LSTM(3, 4)(m.zeros(5, 2, 4)),
    "four dimensions": lambda m: m.nn.GRU(3, 4)(m.zeros(5, 2, 2, 3)),
    "one dimension": lambda m: m.nn.RNN(3, 4)(m.zeros(3)),
    "state of another batch": lambda m: m.nn.GRU(3, 4)(m.zeros(5, 2, 3), m.zeros(1, 3, 4)),
    "state of another layer": lambda m: m.nn.GRU(3, 4, 2)(m.zeros(5, 2, 3), m.zeros(1, 2, 4)),
    "state without the batch": lambda m: m.nn.GRU(3, 4)(m.zeros(5, 2, 3), m.zeros(1, 4)),
    "state with a batch": lambda m: m.nn.RNN(3, 4)(m.zeros(5, 3), m.zeros(1, 1, 4)),
    "second state": lambda m: m.nn.LSTM(3, 4)(m.zeros(5, 2, 3), (m.zeros(1, 2, 4), m.zeros(1, 2, 5))),
    "no steps": lambda m: m.nn.LSTM(3, 4)(m.zeros(0, 2, 3)),
    "no hidden units": lambda m: m.nn.LSTM(3, 0),
    "half a hidden unit": lambda m: m.nn.LSTM(3, 0.5),
    "no layers": lambda m: m.nn.LSTM(3, 4, 0),
    "dropout": lambda m: m.nn.LSTM(3, 4, 2, dropout=-0.5),
    "dropout of True": lambda m: m.nn.LSTM(3, 4, 2, dropout=True),
    "projection as large": lambda m: m.nn.LSTM(3, 4, proj_size=4),
    "negative projection": lambda m: m.nn.LSTM(3, 4, proj_size=-1),
    "nonlinearity": lambda m: m.nn.RNN(3, 4, nonlinearity="sigmoid"),
    "cell's input size": lambda m: m.nn.LSTMCell(3, 4)(m.zeros(2, 4)),
    "cell's dimensions": lambda m: m.nn.GRUCell(3, 4)(m.zeros(2, 2, 3)),
    "cell's batch": lambda m: m.nn.GRUCell(3, 4)(m.zeros(2, 3), m.zeros(3, 4)),
    "cell's hidden size": lambda m: m.nn.RNNCell(3, 4)(m.zeros(2, 3), m.zeros(2, 5)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_both_refuse(what):
    both_refuse(lambda: REFUSED[what](torch), lambda: REFUSED[what](wf))


def test_dropout_of_one_layer_warns_in_both():
    for m in (torch, wf):
        with pytest.warns(UserWarning):
            m.nn.GRU(3, 4, dropout=0.1)


def test_state_dict_loads_both_ways():
    theirs, ours = pair("LSTM", E, H, num_layers=2, bidirectional=True)
    theirs.load_state_dict({k: torch.from_numpy(v.numpy().copy()) for k, v in ours.state_dict().items()})
    x = normal(T, B, E)
    np.testing.assert_allclose(ours(wf.from_numpy(x))[0].detach().numpy(),
                               theirs(torch.from_numpy(x))[0].detach().numpy(), rtol=1e-9, atol=1e-12)  # fmt: skip
