"""Every layer under `wf.compile`: as a module differentiated from outside, and inside a whole training step.

The cases of the plain layers and losses are those that PyTorch referees; the others are listed here.
"""

import copy
import inspect
import warnings
from contextlib import contextmanager

import numpy as np
import pytest

pytest.importorskip("torch", reason="the cases are those of the referee: pip install torch==2.13.0")

import wayfare as wf
from tests.oracle.test_modules_attention import CALLS as ATTENTION
from tests.oracle.test_modules_loss import ALONG, ELEMENTWISE, IN_PLACE, PAIRS
from tests.oracle.test_modules_plain import CASES as PLAIN
from wayfare import nn

_RNG = np.random.default_rng(23)


def _normal(*shape):
    return _RNG.standard_normal(shape)


def _transformer(kind, *args, **settings):
    settings = {"dropout": 0.2, "batch_first": True, **settings}
    return lambda: getattr(nn, kind)(*args, **settings)


_STATE = (_normal(2, 4), _normal(2, 4))
_CAUSAL = np.triu(np.ones((4, 4), bool), 1)

# (title, how to make it, inputs, keywords of the call)
OTHERS = [
    *((f"{kind} {rest}", (lambda kind=kind, rest=rest: getattr(nn, kind)(3, 4, **rest)), [_normal(5, 2, 3)], {})
      for kind in ("RNN", "LSTM", "GRU") for rest in ({}, {"num_layers": 2, "bidirectional": True, "dropout": 0.3})),
    ("LSTM proj", lambda: nn.LSTM(3, 4, proj_size=2, batch_first=True), [_normal(2, 5, 3)], {}),
    ("LSTM state", lambda: nn.LSTM(3, 4), [_normal(5, 2, 3), (_normal(1, 2, 4), _normal(1, 2, 4))], {}),
    ("RNN relu", lambda: nn.RNN(3, 4, nonlinearity="relu"), [_normal(5, 2, 3)], {}),
    ("RNNCell", lambda: nn.RNNCell(3, 4), [_normal(2, 3), _normal(2, 4)], {}),
    ("LSTMCell", lambda: nn.LSTMCell(3, 4), [_normal(2, 3), _STATE], {}),
    ("LSTMCell", lambda: nn.LSTMCell(3, 4), [_normal(2, 3)], {}),
    ("GRUCell", lambda: nn.GRUCell(3, 4), [_normal(2, 3), _normal(2, 4)], {}),
    ("BinaryTreeLSTMCell", lambda: nn.BinaryTreeLSTMCell(3, 4), [_STATE, _STATE], {}),
    ("BinaryTreeLSTMCell", lambda: nn.BinaryTreeLSTMCell(3, 4), [_STATE, _STATE, _normal(2, 3)], {}),
    ("ChildSumTreeLSTMCell", lambda: nn.ChildSumTreeLSTMCell(3, 4), [_normal(2, 3), [_STATE, _STATE, _STATE]], {}),
    ("ChildSumTreeLSTMCell", lambda: nn.ChildSumTreeLSTMCell(3, 4), [_normal(2, 3), []], {}),
    ("TransformerEncoderLayer", _transformer("TransformerEncoderLayer", 6, 2, 8), [_normal(3, 4, 6)], {}),
    ("TransformerEncoderLayer", _transformer("TransformerEncoderLayer", 6, 2, 8, norm_first=True, activation="gelu"),
     [_normal(3, 4, 6)], {"src_mask": _CAUSAL, "is_causal": True}),
    ("TransformerDecoderLayer", _transformer("TransformerDecoderLayer", 6, 2, 8), [_normal(3, 4, 6), _normal(3, 5, 6)],
     {"tgt_mask": _CAUSAL}),
    ("TransformerEncoder", lambda: nn.TransformerEncoder(_transformer("TransformerEncoderLayer", 6, 2, 8)(), 2,
                                                         nn.LayerNorm(6)), [_normal(3, 4, 6)], {}),
    ("TransformerDecoder", lambda: nn.TransformerDecoder(_transformer("TransformerDecoderLayer", 6, 2, 8)(), 2),
     [_normal(3, 4, 6), _normal(3, 5, 6)], {}),
    ("Transformer", _transformer("Transformer", 6, 2, 1, 1, 8), [_normal(3, 5, 6), _normal(3, 4, 6)], {}),
    *((f"{kind}", (lambda kind=kind: getattr(nn, kind)(0.4)), [_normal(2, 3, 4, 2, 2)[(slice(None),) * rank]], {})
      for kind, rank in (("Dropout", 2), ("Dropout3d", 5), ("AlphaDropout", 2), ("FeatureAlphaDropout", 2))),
    ("Dropout1d", lambda: nn.Dropout1d(0.4), [_normal(2, 3, 4)], {}),
    ("Dropout2d", lambda: nn.Dropout2d(0.4), [_normal(2, 3, 4, 2)], {}),
    ("Sequential", lambda: nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.2),
                                         nn.Linear(8, 2)), [_normal(6, 3)], {}),
    ("ModuleList", lambda: Listed(), [_normal(6, 3)], {}),
    ("ModuleDict", lambda: Named(), [_normal(6, 3)], {}),
    ("ParameterList", lambda: Loose(), [_normal(6, 3)], {}),
    *((f"MaxUnpool{rank}d", (lambda rank=rank: getattr(nn, f"MaxUnpool{rank}d")(2)), [
        t.numpy() for t in getattr(nn.functional, f"max_pool{rank}d")(
            wf.from_numpy(_normal(2, 3, *(4, 6, 4)[:rank])), 2, return_indices=True)
    ], {}) for rank in (1, 2, 3)),
    ("FractionalMaxPool2d", lambda: nn.FractionalMaxPool2d(2, output_size=4), [_normal(2, 3, 9, 8)], {}),
    ("FractionalMaxPool3d", lambda: nn.FractionalMaxPool3d(2, output_size=3), [_normal(1, 2, 6, 7, 6)], {}),
    ("UpsamplingNearest2d", lambda: nn.UpsamplingNearest2d(scale_factor=2), [_normal(2, 3, 4, 5)], {}),
    ("UpsamplingBilinear2d", lambda: nn.UpsamplingBilinear2d(scale_factor=2), [_normal(2, 3, 4, 5)], {}),
    ("PairwiseDistance", lambda: nn.PairwiseDistance(), [_normal(4, 3), _normal(4, 3)], {}),
    ("CosineSimilarity", lambda: nn.CosineSimilarity(), [_normal(4, 3), _normal(4, 3)], {}),
]  # fmt: skip


class Listed(nn.Module):
    """Layers in a list, some of them used twice."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    def forward(self, x):
        for layer in [*self.layers, self.layers[0]]:
            x = layer(x).tanh() + x
        return x


class Named(nn.Module):
    """Layers by name, chosen by the sign of a mean."""

    def __init__(self):
        super().__init__()
        self.ways = nn.ModuleDict({"up": nn.Linear(3, 3), "down": nn.Linear(3, 3)})

    def forward(self, x):
        return self.ways["up" if x.mean() > 0 else "down"](x), {"mean": x.mean()}


class Loose(nn.Module):
    """Parameters without layers."""

    def __init__(self):
        super().__init__()
        self.scales = nn.ParameterList([wf.ones(3), wf.arange(3.0)])
        self.shifts = nn.ParameterDict({"one": wf.zeros(3)})

    def forward(self, x):
        return x * self.scales[0] + self.scales[1] * self.shifts["one"].cos()


def _made(name, args=(), kwargs=None):
    return lambda: getattr(nn, name)(*args, **(kwargs or {}))


CASES = [
    *((name, _made(name, args, kwargs), inputs, {}) for name, args, kwargs, inputs in PLAIN),
    *((name, _made(name, args, kwargs), [_normal(3, 4, 2) * 3], {}) for name, args, kwargs in ELEMENTWISE),
    *((name, _made(name, args, kwargs), [x], {}) for name, args, kwargs, x in ALONG),
    *((f"{name} in place", lambda name=name: nn.Sequential(nn.Identity(), Twice(), getattr(nn, name)(
        *((0.1, 2.0) if name == "Threshold" else ()), inplace=True)), [_normal(3, 4)], {}) for name in IN_PLACE),
    *((name, _made(name, (), kwargs), inputs, {}) for name, kwargs, inputs in PAIRS),
    *(("MultiheadAttention", _made("MultiheadAttention", (6, 2), settings), inputs, call)
      for settings, inputs, call in ATTENTION),
    *OTHERS,
]  # fmt: skip
TITLES = [f"{number}-{case[0]}" for number, case in enumerate(CASES)]
# Each step is many kernels: one case of a kind will do.
STEPPED = list({case[0]: case for case in reversed(CASES)}.values())


class Twice(nn.Module):
    """Something that may be overwritten."""

    def forward(self, x):
        return x * 2


def tensors_of(value, grads=True):
    """Arrays, in whatever they come, as fresh tensors."""
    if isinstance(value, np.ndarray):
        tensor = wf.from_numpy(np.array(value, np.float64 if value.dtype.kind == "f" else None))
        return tensor.requires_grad_() if grads and value.dtype.kind == "f" else tensor
    if isinstance(value, (tuple, list)):
        return type(value)(tensors_of(v, grads) for v in value)
    if isinstance(value, dict):
        return {key: tensors_of(v, grads) for key, v in value.items()}
    return value


def found_in(value):
    """All tensors of a structure."""
    if isinstance(value, wf.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [t for part in parts for t in found_in(part)]


def total_of(output):
    """One number that hangs on every element that has a gradient; None if there is none."""
    live = [t for t in found_in(output) if t.requires_grad]
    parts = [(t * wf.arange(t.numel(), dtype=t.dtype).reshape(t.shape).cos()).sum() for t in live]
    return sum(parts[1:], parts[0]) if parts else None


def agree(got, want, what):
    """Two lists of tensors or None, alike."""
    assert len(got) == len(want), what
    for mine, theirs in zip(got, want, strict=True):
        assert (mine is None) == (theirs is None), what
        if mine is not None:
            assert mine.dtype == theirs.dtype, what
            mine, theirs = mine.detach().numpy(), theirs.detach().numpy()
            np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-9, err_msg=what)


@contextmanager
def planned(make):
    """All of it is replayed from a plan, but what is written back into a table of too long rows."""
    with warnings.catch_warnings():
        renews = any(getattr(module, "max_norm", None) for module in make().modules())
        warnings.filterwarnings("ignore" if renews else "error", "compile: ")
        yield


def two_of(make):
    """The same layer twice, in double precision."""
    layer = make()
    layer = layer.double()
    return layer, copy.deepcopy(layer)


def one_call(call, layer, inputs, keywords, seed):
    """Forward, and backward from outside: the output, then the gradients of inputs and parameters."""
    args, given = tensors_of(inputs), tensors_of(keywords, False)
    wf.manual_seed(seed)
    layer.zero_grad()
    output = call(*args, **given)
    total = total_of(output)
    if total is not None:
        total.backward()
    grads = [t.grad if t.is_leaf else None for t in (*found_in(args), *layer.parameters())]
    return found_in(output), grads, wf.get_rng_state()


@pytest.mark.parametrize("case", CASES, ids=TITLES)
def test_a_compiled_module(case):
    _, make, inputs, keywords = case
    plain, mine = two_of(make)
    compiled = wf.compile(mine)
    for mode, calls in ((True, 4), (False, 2), (True, 1)):
        plain.train(mode)
        mine.train(mode)
        for call in range(calls):
            want = one_call(plain, plain, inputs, keywords, call)
            with planned(make):
                got = one_call(compiled, mine, inputs, keywords, call)
            for what, a, b in zip(("outputs", "gradients", "generator"), got, want, strict=True):
                a, b = ([a], [b]) if what == "generator" else (a, b)
                agree(a, b, f"{what}, training {mode}, call {call}")
            agree(list(mine.buffers()), list(plain.buffers()), f"buffers, training {mode}, call {call}")


@pytest.mark.parametrize("case", STEPPED, ids=lambda case: case[0])
def test_a_training_step(case):
    _, make, inputs, keywords = case
    results = []
    for way in (wf.compile, lambda f: f):
        wf.manual_seed(1)
        layer = two_of(make)[0]

        def step(args, given, layer=layer):
            layer.zero_grad()
            total = total_of(layer(*args, **given))
            if total is not None:
                total.backward()
                with wf.no_grad():
                    for p in layer.parameters():
                        if p.grad is not None:
                            p.sub_(p.grad, alpha=0.01)
            return None if total is None else total.detach()

        run = way(step)
        seen = []
        for _ in range(4):
            args = tensors_of(inputs)
            with planned(make):
                seen.append(run(args, tensors_of(keywords, False)))
            seen += [t.grad for t in found_in(args)]
        results.append([*seen, *layer.state_dict().values()])
    agree(*results, "training")


def test_every_layer_has_a_case():
    covered = {type(module).__name__ for _, make, _, _ in CASES for module in make().modules()}
    layers = {name for name, value in vars(nn).items() if inspect.isclass(value) and issubclass(value, nn.Module)}
    assert layers - covered == {"Module", "RNNBase", "RNNCellBase"}
