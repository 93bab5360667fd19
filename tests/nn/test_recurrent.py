"""Recurrent layers and cells against their formulas in NumPy: forms of input, states, kernels, gradients, errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wayfare as wf
from wayfare import nn
from wayfare.codegen.runtime import kernel
from wayfare.core.counters import counted
from wayfare.errors import ArgumentError, ArgumentTypeError, DTypeError, OperationError, ShapeError
from wayfare.nn.utils.rnn import pack_sequence

KINDS = {
    "LSTM": (nn.LSTM, nn.LSTMCell, {}),
    "GRU": (nn.GRU, nn.GRUCell, {}),
    "tanh": (nn.RNN, nn.RNNCell, {"nonlinearity": "tanh"}),
    "relu": (nn.RNN, nn.RNNCell, {"nonlinearity": "relu"}),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def formula(kind, x, states, wi, wh, bi, bh):
    """One step as the definition has it."""
    if kind == "LSTM":
        i, f, g, o = np.split(wi @ x + bi + wh @ states[0] + bh, 4)
        c = sigmoid(f) * states[1] + sigmoid(i) * np.tanh(g)
        return [sigmoid(o) * np.tanh(c), c]
    if kind == "GRU":
        (xr, xz, xn), (hr, hz, hn) = np.split(wi @ x + bi, 3), np.split(wh @ states[0] + bh, 3)
        z = sigmoid(xz + hz)
        return [(1 - z) * np.tanh(xn + sigmoid(xr + hr) * hn) + z * states[0]]
    y = wi @ x + bi + wh @ states[0] + bh
    return [np.tanh(y) if kind == "tanh" else np.maximum(y, 0)]


def by_formula(kind, layer, sequence, states):
    """Outputs and final states of one sequence [T, E] through all layers and directions; states [L·D, H] each."""
    rows = [np.asarray(x) for x in sequence]
    finals = []
    for names in layer.all_weights_as_arrays:
        outs = []
        for direction, weights in enumerate(names):
            current = [s[len(finals)] for s in states]
            made = []
            for x in reversed(rows) if direction else rows:
                current = formula(kind, x, current, *weights)
                made.append(current[0])
            outs.append(made[::-1] if direction else made)
            finals.append(current)
        rows = [np.concatenate(parts) for parts in zip(*outs, strict=True)]
    return rows, [np.stack(s) for s in zip(*finals, strict=True)]


def call_with(module, weights, *args):
    """The module on these arguments with other tensors for its parameters."""
    own = {name: module.__dict__[name] for name in weights}
    module.__dict__.update(weights)
    try:
        return module(*args)
    finally:
        module.__dict__.update(own)


class Arrays:
    """The weights of a layer as arrays, by layer and direction."""

    def __init__(self, layer):
        flat = [[w.detach().numpy() for w in ws] for ws in layer.all_weights]
        step = 2 if layer.bidirectional else 1
        self.all_weights_as_arrays = [flat[k : k + step] for k in range(0, len(flat), step)]


def made(kind, *args, **options):
    cls, _, extra = KINDS[kind]
    return cls(*args, **options, **extra).double()


def listed(states):
    return list(states) if isinstance(states, tuple) else [states]


def random_states(kind, *shape):
    states = [wf.randn(*shape, dtype=wf.float64) for _ in range(2 if kind == "LSTM" else 1)]
    return states, tuple(states) if kind == "LSTM" else states[0]


def close(ours, expected):
    np.testing.assert_allclose(ours.detach().numpy(), expected, rtol=1e-10, atol=1e-12)


@each_kind
@pytest.mark.parametrize("layers, both", [(1, False), (2, False), (1, True), (2, True)])
def test_a_list_of_sequences_is_each_by_its_formula(kind, layers, both):
    wf.manual_seed(3)
    layer = made(kind, 3, 4, num_layers=layers, bidirectional=both)
    sequences = [wf.randn(n, 3, dtype=wf.float64) for n in (2, 0, 5, 1, 5, 0)]
    states, hx = random_states(kind, layers * (1 + both), len(sequences), 4)
    outs, ends = layer(sequences, hx)
    assert isinstance(outs, list) and len(outs) == len(sequences)
    for k, (x, out) in enumerate(zip(sequences, outs, strict=True)):
        rows, finals = by_formula(kind, Arrays(layer), x.numpy(), [s.numpy()[:, k] for s in states])
        assert tuple(out.shape) == (x.shape[0], 4 * (1 + both))
        close(out, np.array(rows).reshape(out.shape))
        for end, final in zip(listed(ends), finals, strict=True):
            close(end[:, k], final)


@each_kind
def test_an_empty_sequence_keeps_its_first_state(kind):
    layer = made(kind, 3, 4, bidirectional=True)
    states, hx = random_states(kind, 2, 3, 4)
    outs, ends = layer([wf.zeros(0, 3, dtype=wf.float64)] * 3, hx)
    assert [tuple(o.shape) for o in outs] == [(0, 8)] * 3
    for end, first in zip(listed(ends), states, strict=True):
        assert wf.equal(end, first)


@each_kind
def test_all_forms_agree_with_each_other(kind):
    wf.manual_seed(0)
    layer = made(kind, 3, 4, num_layers=2, bidirectional=True)
    lengths = [4, 1, 6, 3]
    sequences = [wf.randn(n, 3, dtype=wf.float64) for n in lengths]
    _, hx = random_states(kind, 4, 4, 4)
    outs, ends = layer(sequences, hx)
    ragged, ragged_ends = layer(wf.Ragged(sequences), hx)
    assert isinstance(ragged, wf.Ragged) and ragged.lengths.tolist() == lengths
    close(ragged.values, wf.cat(outs).detach().numpy())
    packed_in = pack_sequence(sequences, enforce_sorted=False)
    packed, packed_ends = layer(packed_in, hx)
    assert type(packed) is type(packed_in) and packed.batch_sizes is packed_in.batch_sizes
    close(packed.data, pack_sequence(outs, enforce_sorted=False).data.detach().numpy())
    for given_ends in (ragged_ends, packed_ends):
        for end, expected in zip(listed(given_ends), listed(ends), strict=True):
            close(end, expected.detach().numpy())


@each_kind
@settings(max_examples=12, deadline=None)
@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=6), seed=st.integers(0, 9))
def test_any_lengths_are_sequences_one_by_one_and_cells_step_by_step(kind, lengths, seed):
    wf.manual_seed(seed)
    layer = made(kind, 2, 3)
    cell = KINDS[kind][1](2, 3, **KINDS[kind][2]).double()
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
    sequences = [wf.randn(n, 2, dtype=wf.float64) for n in lengths]
    states, hx = random_states(kind, 1, len(lengths), 3)
    outs, ends = layer(sequences, hx)
    for k, x in enumerate(sequences):
        mine = tuple(s[0, k] for s in states) if kind == "LSTM" else states[0][0, k]
        if len(x):
            alone, _ = layer(x, tuple(s[:, k] for s in states) if kind == "LSTM" else states[0][:, k])
            close(outs[k], alone.detach().numpy())
        for t, step in enumerate(x):
            mine = cell(step, mine)
            close(outs[k][t], listed(mine)[0].detach().numpy())
        for end, final in zip(listed(ends), listed(mine), strict=True):
            close(end[0, k], final.detach().numpy())


@each_kind
def test_cells_are_their_formula_with_and_without_a_batch(kind):
    _, cls, extra = KINDS[kind]
    cell = cls(3, 4, **extra).double()
    x = wf.randn(5, 3, dtype=wf.float64)
    states, hx = random_states(kind, 5, 4)
    weights = [w.detach().numpy() for w in cell.parameters()]
    row = 2
    for there in (True, False):
        out = listed(cell(x, hx if there else None))
        first = [s[row].numpy() if there else np.zeros(4) for s in states]
        for ours, expected in zip(out, formula(kind, x[row].numpy(), first, *weights), strict=True):
            close(ours[row], expected)
        alone = tuple(s[row] for s in states) if kind == "LSTM" else states[0][row]
        for ours, expected in zip(listed(cell(x[row], alone if there else None)), out, strict=True):
            close(ours, expected[row].detach().numpy())


@pytest.mark.skipif(not kernel.available(), reason="llvmlite does not work here")
@each_kind
def test_a_cell_is_one_kernel_forward_and_one_back(kind):
    _, cls, extra = KINDS[kind]
    cell = cls(16, 32, **extra)
    x = wf.randn(8, 16)
    listed(cell(x))[0].backward(wf.ones(8, 32))
    with counted() as forward:
        out = listed(cell(x))[0]
    with counted() as back:
        out.backward(wf.ones(8, 32))
    # Backward, the sums for the two biases may be kernels as well; on sizes as small as this they are not.
    assert (forward.kernels_run, back.kernels_run) == (1, 1)


@pytest.mark.skipif(not kernel.available(), reason="llvmlite does not work here")
@each_kind
def test_a_layer_is_one_kernel_for_all_steps(kind):
    layer = made(kind, 3, 4)
    sequences = [wf.randn(n, 3, dtype=wf.float64) for n in (7, 2, 2)]
    layer(sequences)[0][0].sum().backward()
    with counted() as forward:
        outs, _ = layer(sequences)
        total = wf.cat(outs)
    assert forward.kernels_run == 1
    with counted() as back:
        total.backward(wf.ones_like(total))
    assert back.kernels_run == 1


@each_kind
def test_gradients_of_all_and_their_gradients(kind):
    wf.manual_seed(1)
    layer = made(kind, 2, 2, bidirectional=True)
    named = dict(layer.named_parameters())
    x = wf.randn(5, 2, dtype=wf.float64, requires_grad=True)
    names = list(named)
    states, _ = random_states(kind, 2, 2, 2)

    def run(x, *rest):
        weights = dict(zip(names, rest[: len(names)], strict=True))
        hx = rest[len(names) :]
        out, ends = call_with(layer, weights, [x[:3], x[3:]], hx if kind == "LSTM" else hx[0])
        return (*out, *listed(ends))

    inputs = (x, *[p.detach().requires_grad_() for p in named.values()], *[s.requires_grad_() for s in states])
    assert wf.autograd.gradcheck(run, inputs)
    some = tuple(t.detach().requires_grad_(k in (2, len(inputs) - 1)) for k, t in enumerate(inputs))
    assert wf.autograd.gradgradcheck(lambda *a: run(*a)[0], some)


@each_kind
def test_vmap_over_inputs_and_over_weights(kind):
    layer = made(kind, 3, 4, bidirectional=True)
    x = wf.randn(5, 6, 2, 3, dtype=wf.float64)
    ours = wf.vmap(lambda one: layer(one)[0])(x)
    for row in range(5):
        close(ours[row], layer(x[row])[0].detach().numpy())
    stacked = {n: wf.stack([p.detach(), p.detach() * 0.5]) for n, p in layer.named_parameters()}
    both = wf.vmap(lambda weights: call_with(layer, weights, x[0])[0])(stacked)
    for row in range(2):
        alone = call_with(layer, {n: w[row] for n, w in stacked.items()}, x[0])[0]
        close(both[row], alone.detach().numpy())


@each_kind
def test_half_precision_is_computed_in_single(kind):
    cls, _, extra = KINDS[kind]
    layer = cls(8, 8, **extra).half()
    x = wf.randn(5, 3, 8).half().requires_grad_()
    out, _ = layer(x)
    out.sum().backward()
    wide = cls(8, 8, **extra)
    wide.load_state_dict(layer.state_dict())
    x32 = x.detach().float().requires_grad_()
    expected, _ = wide(x32)
    expected.sum().backward()
    assert out.dtype is wf.float16 and x.grad.dtype is wf.float16
    np.testing.assert_allclose(out.detach().float().numpy(), expected.detach().numpy(), atol=2e-3)
    np.testing.assert_allclose(x.grad.float().numpy(), x32.grad.numpy(), atol=5e-3)


def test_relu_hands_gradients_to_steps_that_are_nan():
    """As `relu` does: NaN is not below zero, so its step has a gradient."""
    layer = nn.RNN(1, 1, nonlinearity="relu", bias=False)
    with wf.no_grad():
        for weight in layer.parameters():
            weight.fill_(1.0)
    x = wf.tensor([[[np.nan], [-1.0], [3.0]], [[1.0], [1.0], [1.0]]], requires_grad=True)
    layer(x)[0].sum().backward()
    assert x.grad.tolist() == [[[2.0], [0.0], [2.0]], [[1.0], [1.0], [1.0]]]


def test_only_the_final_state_may_be_used():
    layer = nn.LSTM(3, 4).double()
    x = wf.randn(5, 2, 3, dtype=wf.float64, requires_grad=True)
    _, (_, c) = layer(x)
    c.sum().backward()
    eps = 1e-6
    moved = x.detach().clone()
    moved[0, 1, 2] += eps
    slope = (layer(moved)[1][1].sum() - layer(x)[1][1].sum()) / eps
    np.testing.assert_allclose(x.grad[0, 1, 2].item(), slope.item(), rtol=1e-4)


def test_dropout_comes_between_layers_in_training_only():
    layer = nn.GRU(3, 50, num_layers=2, dropout=0.5)
    x = wf.randn(6, 2, 3)
    first, second = layer(x)[0], layer(x)[0]
    assert not wf.equal(first, second)
    layer.eval()
    assert wf.equal(layer(x)[0], layer(x)[0])
    gone = nn.GRU(3, 4, num_layers=2, dropout=1.0)
    with wf.no_grad():
        for p in gone.parameters():
            p.mul_(2)
    assert wf.equal(gone(x)[1][1], gone(x * 5)[1][1])  # nothing of the input is left behind the first layer
    assert not wf.equal(gone(x)[1][0], gone(x * 5)[1][0])


def test_dropout_without_a_place_for_it_warns():
    with pytest.warns(UserWarning, match="num_layers=1"):
        nn.LSTM(2, 3, dropout=0.5)


def test_the_output_may_be_written_to():
    layer = nn.LSTM(3, 4)
    x = wf.randn(5, 2, 3)
    out, _ = layer(x)
    out.mul_(2)
    out.sum().backward()
    doubled = layer.weight_hh_l0.grad.clone()
    layer.zero_grad()
    (layer(x)[0] * 2).sum().backward()
    np.testing.assert_allclose(layer.weight_hh_l0.grad.numpy(), doubled.numpy(), rtol=1e-6)


def test_gradients_of_the_two_biases_are_memory_of_their_own():
    layer = nn.LSTM(3, 4)
    for _ in range(2):
        layer(wf.ones(2, 1, 3))[0].sum().backward()
    twice = layer.bias_ih_l0.grad.clone()
    layer.zero_grad()
    layer(wf.ones(2, 1, 3))[0].sum().backward()
    np.testing.assert_allclose(twice.numpy(), 2 * layer.bias_ih_l0.grad.numpy(), rtol=1e-6)
    assert layer.bias_ih_l0.grad.data_ptr() != layer.bias_hh_l0.grad.data_ptr()


def test_weights_start_within_their_bound():
    for module in (nn.LSTM(10, 400), nn.GRUCell(10, 400)):
        for p in module.parameters():
            assert 0.045 < p.abs().max().item() <= 0.05 + 1e-8


def test_proj_size_maps_h_at_each_step():
    layer = nn.LSTM(3, 5, proj_size=2, batch_first=True).double()
    x = wf.randn(1, 4, 3, dtype=wf.float64)
    wi, wh, bi, bh, wr = (w.detach().numpy() for w in layer.all_weights[0])
    h, c, rows = np.zeros(2), np.zeros(5), []
    for step in x[0].numpy():
        wide, c = formula("LSTM", step, [h, c], wi, wh, bi, bh)
        h = wr @ wide
        rows.append(h)
    out, (h_n, c_n) = layer(x)
    close(out[0], np.array(rows))
    close(h_n[0, 0], h)
    close(c_n[0, 0], c)


@each_kind
@pytest.mark.parametrize("batch_first", [False, True])
def test_padded_batches_run_as_the_sequences_they_are(kind, batch_first):
    make, _, options = KINDS[kind]
    layer = make(4, 6, bidirectional=True, batch_first=batch_first, dtype=wf.float64, **options)
    sequences = [wf.randn(length, 4, dtype=wf.float64, requires_grad=True) for length in (2, 5, 0, 3)]
    expected, expected_end = layer(sequences)
    sum((out * out).sum() for out in expected).backward()
    gradients = [x.grad for x in sequences]

    padded = wf.data.pad_collate([x.detach() for x in sequences], padding_value=7)
    padded.data.requires_grad_()
    out, end = layer(padded)
    assert type(out) is wf.data.Padded and out.data.shape == (4, 5, 12) and out.lengths.tolist() == [2, 5, 0, 3]
    (out.data * out.data).sum().backward()
    for row, (one, gradient) in enumerate(zip(expected, gradients, strict=True)):
        close(out.data[row, : len(one)], one.detach().numpy())
        assert (out.data[row, len(one) :] == 0).all() and (padded.data.grad[row, len(one) :] == 0).all()
        close(padded.data.grad[row, : len(one)], gradient.numpy())
    ends = [(end, expected_end)] if isinstance(end, wf.Tensor) else zip(end, expected_end, strict=True)
    for one, other in ends:
        close(one, other.detach().numpy())


@pytest.mark.parametrize(
    "error, pattern, call",
    [
        (ShapeError, r"\[steps, batch, 4\], not f32\[7,3,5\]", lambda m: m(wf.randn(7, 3, 5))),
        (ShapeError, r"\[steps, 4\], not f32\[7,5\]", lambda m: m(wf.randn(7, 5))),
        (ArgumentError, r"3 dimensions, or of 2", lambda m: m(wf.randn(4))),
        (ShapeError, r"hx\[1\] must be \[1, 3, 6\]", lambda m: m(wf.ones(7, 3, 4), [wf.ones(1, 3, 6), wf.ones(3, 6)])),
        (ShapeError, r"hx\[0\] must be \[1, 6\]", lambda m: m(wf.zeros(7, 4), (wf.zeros(1, 1, 6), wf.zeros(1, 1, 6)))),
        (OperationError, "pair", lambda m: m(wf.zeros(7, 3, 4), wf.zeros(1, 3, 6))),
        (DTypeError, "float64", lambda m: m(wf.randn(7, 3, 4).double())),
        (OperationError, "list of sequences", lambda m: m(wf.zeros(0, 3, 4))),
        (OperationError, "empty", lambda m: m([])),
        (ShapeError, r"sequence 1 must be \[steps, 4\]", lambda m: m([wf.zeros(2, 4), wf.zeros(2, 5)])),
        (ArgumentTypeError, "sequence 0 .* not int", lambda m: m([1])),
        (ArgumentTypeError, "not str", lambda m: m("abc")),
        (ShapeError, r"\[batch, steps, 4\], they are f32\[2,3,5\]",
         lambda m: m(wf.data.Padded(wf.ones(2, 3, 5), wf.tensor([3, 1])))),
        (ShapeError, r"Embed .*_replace", lambda m: m(wf.data.pad_collate([wf.tensor([1, 2]), wf.tensor([3])]))),
        (ArgumentError, "2 whole numbers from 0 to 3",
         lambda m: m(wf.data.Padded(wf.ones(2, 3, 4), wf.tensor([4, 1])))),
        (ArgumentError, "2 whole numbers from 0 to 3",
         lambda m: m(wf.data.Padded(wf.ones(2, 3, 4), wf.tensor([1])))),
        (ArgumentError, "hidden_size", lambda m: nn.GRU(3, 0)),
        (ArgumentTypeError, "hidden_size", lambda m: nn.GRU(3, 2.0)),
        (ArgumentError, "num_layers", lambda m: nn.GRU(3, 2, 0)),
        (ArgumentError, "dropout", lambda m: nn.GRU(3, 2, 2, dropout=1.5)),
        (ArgumentError, "proj_size", lambda m: nn.LSTM(3, 2, proj_size=2)),
        (ArgumentError, "nonlinearity", lambda m: nn.RNN(3, 2, nonlinearity="sine")),
        (ArgumentError, "nonlinearity", lambda m: nn.RNNCell(3, 2, nonlinearity="sine")(wf.zeros(3))),
        (ShapeError, r"\[batch, 3\] or \[3\], not f32\[2,4\]", lambda m: nn.GRUCell(3, 2)(wf.zeros(2, 4))),
        (ShapeError, r"hx must be \[2, 5\]", lambda m: nn.GRUCell(3, 5)(wf.zeros(2, 3), wf.zeros(3, 5))),
        (ArgumentError, "1 or 2 dimensions", lambda m: nn.GRUCell(3, 5)(wf.zeros(2, 3, 3))),
        (ArgumentTypeError, "pair", lambda m: nn.LSTMCell(3, 5)(wf.zeros(2, 3), wf.zeros(2, 5))),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_words(error, pattern, call):
    with pytest.raises(error, match=pattern):
        call(nn.LSTM(4, 6))
