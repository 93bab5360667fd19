"""Every layer called for one example at a time in `wf.map`: the loop's results, gradients and statistics.

The cases are those of the compiled layers; here each example has its own numbers, and where layers take sequences,
points or pictures of any size, sizes of its own.
"""

import copy

import numpy as np
import pytest

pytest.importorskip("torch", reason="the cases are those of the referee: pip install torch==2.13.0")

import wayfare as wf
from tests.batch.checks import compare, equal
from tests.compiler.test_every_layer_compiled import CASES, TITLES, found_in, tensors_of
from wayfare import nn

EXAMPLES = 3


def other(value, example):
    """The same structure with the numbers of another example."""
    if isinstance(value, np.ndarray):
        return value * (1 - 0.1 * example) if value.dtype.kind == "f" else value
    if isinstance(value, (tuple, list)):
        return type(value)(other(v, example) for v in value)
    return value


def check(make_layer, inputs_of, keywords, mode, count=EXAMPLES):
    """Compare for fresh copies of one layer; its buffers must end up alike too."""
    wf.manual_seed(1)
    model = make_layer().double().train(mode)
    layers = []

    def make():
        layer = copy.deepcopy(model)
        layers.append(layer)
        examples = [tensors_of(inputs_of(e)) for e in range(count)]
        given = tensors_of(keywords, False)
        leaves = [t for t in (*found_in(examples), *layer.parameters()) if t.is_leaf and t.requires_grad]
        return lambda args: layer(*args, **given), [examples], leaves

    stats = compare(make)
    equal(dict(layers[1].state_dict()), dict(layers[0].state_dict()), what="state")
    return stats


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("case", CASES, ids=TITLES)
def test_a_layer_per_example(case, mode):
    _, make_layer, inputs, keywords = case
    check(make_layer, lambda e: other(inputs, e), keywords, mode)


def _normal(e, *shape):
    return np.random.default_rng(e).standard_normal(shape)


def _length(e):
    return (2, 4, 2, 1, 4)[e]


# Layers and the inputs of one example (number e), without a batch dimension, of varying size where that makes sense.
ALONE = {
    "Linear": (lambda: nn.Linear(3, 4), lambda e: [_normal(e, 3)]),
    "Linear rows": (lambda: nn.Linear(3, 4), lambda e: [_normal(e, _length(e), 3)]),
    "Bilinear": (lambda: nn.Bilinear(3, 2, 4), lambda e: [_normal(e, 3), _normal(e, 2)]),
    "Embedding": (lambda: nn.Embedding(5, 3), lambda e: [np.array(e)]),
    "Embedding rows": (lambda: nn.Embedding(5, 3, padding_idx=0), lambda e: [np.arange(_length(e))]),
    "LayerNorm": (lambda: nn.LayerNorm(3), lambda e: [_normal(e, _length(e), 3)]),
    "RMSNorm": (lambda: nn.RMSNorm(3), lambda e: [_normal(e, 3)]),
    "PReLU": (lambda: nn.PReLU(), lambda e: [_normal(e, 3)]),
    "Softmax": (lambda: nn.Softmax(-1), lambda e: [_normal(e, _length(e))]),
    "Dropout": (lambda: nn.Dropout(0.4), lambda e: [_normal(e, _length(e), 3)]),
    "RNN": (lambda: nn.RNN(3, 4), lambda e: [_normal(e, _length(e), 3)]),
    "LSTM": (lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True), lambda e: [_normal(e, _length(e), 3)]),
    "LSTM dropout": (lambda: nn.LSTM(3, 4, num_layers=2, dropout=0.4), lambda e: [_normal(e, _length(e), 3)]),
    "GRU": (lambda: nn.GRU(3, 4), lambda e: [_normal(e, _length(e), 3)]),
    "RNNCell": (lambda: nn.RNNCell(3, 4), lambda e: [_normal(e, 3), _normal(e + 9, 4)]),
    "LSTMCell": (lambda: nn.LSTMCell(3, 4), lambda e: [_normal(e, 3), (_normal(e + 9, 4), _normal(e + 8, 4))]),
    "LSTMCell alone": (lambda: nn.LSTMCell(3, 4), lambda e: [_normal(e, 3)]),
    "GRUCell": (lambda: nn.GRUCell(3, 4), lambda e: [_normal(e, 3), _normal(e + 9, 4)]),
    "BinaryTreeLSTMCell": (
        lambda: nn.BinaryTreeLSTMCell(3, 4),
        lambda e: [(_normal(e, 4), _normal(e + 5, 4)), (_normal(e + 6, 4), _normal(e + 7, 4)), _normal(e, 3)],
    ),
    "ChildSumTreeLSTMCell": (
        lambda: nn.ChildSumTreeLSTMCell(3, 4),
        lambda e: [_normal(e, 3), [(_normal(e + i, 4), _normal(e + i + 9, 4)) for i in range(e % 3)]],
    ),
    "MultiheadAttention": (
        lambda: nn.MultiheadAttention(6, 2),
        lambda e: [_normal(e, 3, 6), _normal(e + 5, _length(e), 6), _normal(e + 6, _length(e), 6)],
    ),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.2, batch_first=True),
        lambda e: [_normal(e, _length(e), 6)],
    ),
    "TransformerDecoderLayer": (
        lambda: nn.TransformerDecoderLayer(6, 2, 8, dropout=0.2, batch_first=True),
        lambda e: [_normal(e, 3, 6), _normal(e + 1, _length(e), 6)],
    ),
    "Conv1d": (lambda: nn.Conv1d(2, 3, 2, padding=1), lambda e: [_normal(e, 2, _length(e))]),
    "Conv2d": (lambda: nn.Conv2d(1, 2, 3, padding=1), lambda e: [_normal(e, 1, _length(e), 4)]),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(2, 3, 2), lambda e: [_normal(e, 2, _length(e))]),
    "MaxPool1d": (lambda: nn.MaxPool1d(2, padding=1), lambda e: [_normal(e, 2, _length(e))]),
    "AdaptiveAvgPool1d": (lambda: nn.AdaptiveAvgPool1d(2), lambda e: [_normal(e, 2, _length(e))]),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), lambda e: [_normal(e, 1, 4, _length(e) + 1)]),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(3), lambda e: [_normal(e, _length(e) + 1, 3)]),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), lambda e: [_normal(e, 2, 3, _length(e), 2)]),
    "CrossEntropyLoss": (lambda: nn.CrossEntropyLoss(), lambda e: [_normal(e, 4), np.array(e % 4)]),
    "CrossEntropyLoss rows": (
        lambda: nn.CrossEntropyLoss(),
        lambda e: [_normal(e, _length(e), 4), np.arange(_length(e)) % 4],
    ),
    "MSELoss": (lambda: nn.MSELoss(), lambda e: [_normal(e, _length(e)), _normal(e + 1, _length(e))]),
    "Flatten": (lambda: nn.Flatten(0), lambda e: [_normal(e, _length(e), 2)]),
    "Sequential": (
        lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(8, 2)),
        lambda e: [_normal(e, 3)],
    ),
    "CosineSimilarity": (lambda: nn.CosineSimilarity(0), lambda e: [_normal(e, 3), _normal(e + 5, 3)]),
}


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("title", ALONE)
def test_a_layer_without_a_batch_dimension(title, mode):
    make_layer, inputs_of = ALONE[title]
    check(make_layer, inputs_of, {}, mode, count=5)
