"""Plain layers side by side with PyTorch's: outputs, gradients, buffers, state, text, first values and errors."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

import torch

import wayfare as wf
from tests.oracle.module_check import both_refuse, check, check_initialisation, check_module

_RNG = np.random.default_rng(3)


def _normal(*shape):
    return _RNG.standard_normal(shape)


def _distinct(*shape):
    """No two numbers are equal, so that a maximum lies in one place only."""
    return _RNG.permutation(np.arange(float(np.prod(shape)))).reshape(shape) / 10


LINEAR = [
    ("Identity", (54, 3), {"unused": 1}, [_normal(2, 3)]),
    ("Linear", (4, 3), {}, [_normal(5, 4)]),
    ("Linear", (4, 3), {"bias": False}, [_normal(2, 5, 4)]),
    ("Linear", (4, 3), {}, [_normal(4)]),
    ("Linear", (4, 1), {}, [_normal(0, 4)]),
    ("Linear", (4, 3), {}, [_normal(2, 0, 4)]),
    ("Bilinear", (4, 3, 5), {}, [_normal(6, 4), _normal(6, 3)]),
    ("Bilinear", (4, 3, 5), {"bias": False}, [_normal(2, 6, 4), _normal(2, 6, 3)]),
]  # fmt: skip

CONVOLUTIONS = [
    ("Conv1d", (4, 6, 3), {}, [_normal(2, 4, 9)]),
    ("Conv1d", (4, 6, 3), {"stride": 2, "padding": 1, "dilation": 2, "groups": 2}, [_normal(2, 4, 9)]),
    ("Conv1d", (4, 6, 4), {"padding": "same", "bias": False}, [_normal(4, 9)]),
    ("Conv1d", (4, 6, 4), {"padding": "same", "padding_mode": "circular"}, [_normal(2, 4, 9)]),
    ("Conv2d", (3, 4, 3), {}, [_normal(2, 3, 7, 6)]),
    ("Conv2d", (3, 4, (3, 2)), {"stride": (2, 1), "padding": (1, 0)}, [_normal(2, 3, 7, 6)]),
    ("Conv2d", (1, 4, 1), {"bias": False}, [_normal(2, 1, 5, 5)]),
    ("Conv2d", (4, 4, 3), {"groups": 4, "padding": "valid"}, [_normal(4, 7, 6)]),
    ("Conv2d", (2, 4, (3, 5)), {"padding": "same", "dilation": (2, 1)}, [_normal(2, 2, 7, 6)]),
    ("Conv2d", (2, 4, 3), {"padding": 1, "padding_mode": "reflect"}, [_normal(2, 2, 7, 6)]),
    ("Conv2d", (2, 4, 3), {"padding": (2, 1), "padding_mode": "replicate"}, [_normal(2, 2, 7, 6)]),
    ("Conv2d", (2, 4, 4), {"padding": "same", "padding_mode": "circular"}, [_normal(2, 2, 7, 6)]),
    ("Conv2d", (2, 4, 3), {"padding": "valid", "padding_mode": "reflect"}, [_normal(2, 2, 7, 6)]),
    ("Conv2d", (3, 4, 3), {}, [_normal(0, 3, 7, 6)]),
    ("Conv3d", (2, 4, 2), {"padding": 1}, [_normal(2, 2, 4, 5, 3)]),
    ("Conv3d", (2, 4, (1, 2, 3)), {"stride": (1, 2, 1), "groups": 2, "bias": False}, [_normal(2, 2, 4, 5, 3)]),
    ("ConvTranspose1d", (4, 6, 3), {}, [_normal(2, 4, 5)]),
    ("ConvTranspose1d", (4, 6, 3), {"stride": 3, "padding": 1, "output_padding": 2, "groups": 2}, [_normal(4, 5)]),
    ("ConvTranspose2d", (3, 4, 3), {"stride": 2, "output_padding": (1, 0)}, [_normal(2, 3, 5, 4)]),
    ("ConvTranspose2d", (3, 4, (2, 3)), {"dilation": 2, "bias": False}, [_normal(2, 3, 5, 4)]),
    ("ConvTranspose2d", (3, 4, 3), {"stride": 2}, [_normal(0, 3, 5, 4)]),
    ("ConvTranspose3d", (2, 3, 2), {"stride": (1, 2, 1)}, [_normal(2, 2, 3, 3, 3)]),
    ("Unfold", ((2, 3),), {"padding": 1, "stride": (2, 1)}, [_normal(2, 3, 5, 6)]),
    ("Unfold", (2,), {"dilation": 2}, [_normal(3, 5, 6)]),
    ("Fold", ((4, 5), (2, 2)), {}, [_normal(2, 12, 12)]),
    ("Fold", ((4, 5), 2), {"padding": 1, "stride": 2, "dilation": 1}, [_normal(12, 9)]),
]  # fmt: skip

POOLING = [
    ("MaxPool1d", (3,), {}, [_distinct(2, 3, 10)]),
    ("MaxPool1d", (3, 2), {"padding": 1, "return_indices": True}, [_distinct(3, 10)]),
    ("MaxPool2d", (2,), {}, [_distinct(2, 3, 6, 8)]),
    ("MaxPool2d", (2,), {}, [_distinct(2, 3, 7, 9)]),
    ("MaxPool2d", (2,), {"return_indices": True}, [_distinct(3, 6, 8)]),
    ("MaxPool2d", ((2, 2), 2), {"ceil_mode": True}, [_distinct(2, 3, 7, 9)]),
    ("MaxPool2d", (2,), {}, [np.zeros((1, 2, 4, 4))]),
    ("MaxPool2d", ((3, 2),), {"stride": (2, 1), "padding": (1, 1), "dilation": (1, 2)}, [_distinct(2, 3, 7, 9)]),
    ("MaxPool2d", (3, 2), {"ceil_mode": True, "padding": 1, "return_indices": True}, [_distinct(2, 3, 8, 8)]),
    ("MaxPool2d", (2,), {}, [_distinct(0, 3, 6, 8)]),
    ("MaxPool3d", (2,), {}, [_distinct(2, 2, 4, 5, 6)]),
    ("AvgPool1d", (3,), {}, [_normal(2, 3, 10)]),
    ("AvgPool1d", (3, 2), {"padding": 1, "ceil_mode": True, "count_include_pad": False}, [_normal(3, 10)]),
    ("AvgPool2d", (2,), {}, [_normal(2, 3, 6, 8)]),
    ("AvgPool2d", (2,), {}, [_normal(2, 3, 7, 9)]),
    ("AvgPool2d", ((3, 2), (2, 1)), {"padding": (1, 0), "count_include_pad": False}, [_normal(2, 3, 7, 9)]),
    ("AvgPool2d", (3,), {"divisor_override": 4, "ceil_mode": True}, [_normal(2, 3, 7, 9)]),
    ("AvgPool3d", (2,), {"stride": 1}, [_normal(2, 2, 4, 5, 6)]),
    ("LPPool1d", (2, 3), {}, [np.abs(_normal(2, 3, 10)) + 0.1]),
    ("LPPool2d", (3, 2), {"stride": 1}, [np.abs(_normal(2, 3, 5, 6)) + 0.1]),
    ("LPPool2d", (1.5, (2, 3)), {"ceil_mode": True}, [np.abs(_normal(2, 3, 5, 6)) + 0.1]),
    ("LPPool1d", (1, 2), {}, [_normal(2, 3, 10)]),
    ("LPPool2d", (3, 2), {}, [_normal(2, 3, 5, 6)]),
    ("LPPool1d", (2, 2), {}, [np.zeros((1, 2, 4))]),
    ("LPPool3d", (2, 2), {}, [np.abs(_normal(2, 2, 4, 4, 4)) + 0.1]),
    ("AdaptiveMaxPool1d", (4,), {}, [_distinct(2, 3, 10)]),
    ("AdaptiveMaxPool2d", ((3, None),), {"return_indices": True}, [_distinct(2, 3, 7, 5)]),
    ("AdaptiveMaxPool3d", (2,), {}, [_distinct(2, 2, 4, 5, 3)]),
    ("AdaptiveAvgPool1d", (4,), {}, [_normal(2, 3, 10)]),
    ("AdaptiveAvgPool2d", (1,), {}, [_normal(2, 3, 7, 5)]),
    ("AdaptiveAvgPool2d", ((3, None),), {}, [_normal(3, 7, 5)]),
    ("AdaptiveAvgPool3d", ((2, 1, 3),), {}, [_normal(2, 2, 4, 5, 3)]),
]  # fmt: skip

PADDING = [
    (f"{kind}Pad{rank}d", (amount, *value), {}, [_normal(*(2, 3, 4, 5, 6)[: rank + 2])])
    for kind, value in (("Zero", ()), ("Constant", (3.5,)), ("Reflection", ()), ("Replication", ()), ("Circular", ()))
    for rank in (1, 2, 3)
    for amount in (2, tuple(range(1, 3)) * rank)
] + [
    ("ZeroPad2d", ((-1, 2, 0, -1),), {}, [_normal(3, 4, 5)]),
    ("CircularPad1d", ((1, -1),), {}, [_normal(3, 5)]),
    ("ConstantPad1d", (1, 7.0), {}, [_normal(5)]),
]

RESHAPING = [
    ("Flatten", (), {}, [_normal(2, 3, 4)]),
    ("Flatten", (0, 1), {}, [_normal(2, 3, 4)]),
    ("Flatten", (), {}, [_normal(0, 3, 4)]),
    ("Unflatten", (1, (3, 2)), {}, [_normal(2, 6, 4)]),
    ("Unflatten", (-1, [2, -1]), {}, [_normal(2, 6)]),
    ("PixelShuffle", (2,), {}, [_normal(2, 8, 3, 4)]),
    ("PixelUnshuffle", (2,), {}, [_normal(2, 2, 6, 4)]),
    ("ChannelShuffle", (2,), {}, [_normal(2, 6, 3, 3)]),
    ("Upsample", (), {"scale_factor": 2}, [_normal(2, 3, 4, 5)]),
    ("Upsample", ((3, 7),), {"mode": "bilinear"}, [_normal(2, 3, 4, 5)]),
    ("Upsample", (), {"scale_factor": (1.5, 2), "mode": "bilinear", "align_corners": True}, [_normal(2, 3, 4, 5)]),
    ("Upsample", (9,), {"mode": "linear", "align_corners": False}, [_normal(2, 3, 5)]),
    ("Upsample", (), {"scale_factor": 2.5, "mode": "bicubic", "recompute_scale_factor": True}, [_normal(2, 3, 4, 5)]),
    ("Upsample", (), {"scale_factor": 2, "mode": "trilinear"}, [_normal(1, 2, 3, 3, 2)]),
    ("UpsamplingNearest2d", (), {"scale_factor": 2}, [_normal(2, 3, 4, 5)]),
    ("UpsamplingBilinear2d", ((6, 7),), {}, [_normal(2, 3, 4, 5)]),
]  # fmt: skip

NORMS = [
    ("BatchNorm1d", (3,), {}, [_normal(6, 3)]),
    ("BatchNorm1d", (3,), {"eps": 1e-3, "momentum": 0.3}, [_normal(4, 3, 5)]),
    ("BatchNorm1d", (3,), {"momentum": None}, [_normal(6, 3)]),
    ("BatchNorm2d", (3,), {}, [_normal(4, 3, 5, 2)]),
    ("BatchNorm2d", (3,), {"affine": False}, [_normal(4, 3, 5, 2)]),
    ("BatchNorm2d", (3,), {"bias": False}, [_normal(4, 3, 5, 2)]),
    ("BatchNorm2d", (3,), {"track_running_stats": False}, [_normal(4, 3, 5, 2)]),
    ("BatchNorm2d", (3,), {"momentum": None, "affine": False}, [_normal(4, 3, 5, 2)]),
    ("BatchNorm3d", (2,), {}, [_normal(3, 2, 3, 2, 4)]),
    ("LayerNorm", (5,), {}, [_normal(4, 3, 5)]),
    ("LayerNorm", ((3, 5),), {"eps": 1e-3}, [_normal(4, 3, 5)]),
    ("LayerNorm", ([5],), {"bias": False}, [_normal(4, 5)]),
    ("LayerNorm", (5,), {"elementwise_affine": False}, [_normal(4, 5)]),
    ("LayerNorm", (5,), {}, [_normal(0, 5)]),
    ("RMSNorm", (5,), {}, [_normal(4, 3, 5)]),
    ("RMSNorm", ((3, 5),), {"eps": 1e-3}, [_normal(4, 3, 5)]),
    ("RMSNorm", (5,), {"elementwise_affine": False}, [_normal(4, 5)]),
    ("GroupNorm", (2, 6), {}, [_normal(3, 6, 4, 2)]),
    ("GroupNorm", (3, 6), {"affine": False}, [_normal(3, 6)]),
    ("GroupNorm", (3, 6), {"bias": False, "eps": 1e-2}, [_normal(3, 6, 5)]),
    ("InstanceNorm1d", (3,), {}, [_normal(2, 3, 7)]),
    ("InstanceNorm1d", (3,), {"affine": True}, [_normal(3, 7)]),
    ("InstanceNorm2d", (3,), {"affine": True, "track_running_stats": True}, [_normal(2, 3, 4, 5)]),
    ("InstanceNorm2d", (3,), {"track_running_stats": True, "momentum": 0.4}, [_normal(2, 3, 4, 5)]),
    ("InstanceNorm3d", (2,), {"affine": True, "bias": False}, [_normal(2, 2, 3, 4, 2)]),
    ("LocalResponseNorm", (3,), {}, [_normal(2, 5, 4, 3)]),
    ("LocalResponseNorm", (2,), {"alpha": 0.1, "beta": 0.5, "k": 2.0}, [_normal(2, 5, 4)]),
]  # fmt: skip

_NUMBERS = np.array([[0, 2, 2, 1], [6, 1, 3, 1]])
_BAGS = np.array([0, 2, 2, 1, 6, 1, 3, 1])

EMBEDDINGS = [
    ("Embedding", (7, 4), {}, [_NUMBERS]),
    ("Embedding", (7, 4), {}, [np.zeros((2, 0), np.int64)]),
    ("Embedding", (7, 4), {}, [np.array(3)]),
    ("Embedding", (7, 4), {"padding_idx": -6}, [_NUMBERS]),
    ("Embedding", (7, 4), {"max_norm": 0.5}, [_NUMBERS]),
    ("Embedding", (7, 4), {"max_norm": 0.9, "norm_type": 1.0, "padding_idx": 2}, [_NUMBERS]),
    ("Embedding", (7, 4), {"scale_grad_by_freq": True}, [_NUMBERS]),
    ("Embedding", (7, 4), {"sparse": True}, [_NUMBERS.astype(np.int32)]),
    ("EmbeddingBag", (7, 4), {}, [_NUMBERS]),
    ("EmbeddingBag", (7, 4), {"mode": "sum", "padding_idx": 2}, [_NUMBERS]),
    ("EmbeddingBag", (7, 4), {"mode": "max"}, [_NUMBERS]),
    ("EmbeddingBag", (7, 4), {"mode": "mean"}, [_BAGS, np.array([0, 3, 3])]),
    ("EmbeddingBag", (7, 4), {"mode": "sum", "include_last_offset": True}, [_BAGS, np.array([0, 3, 8])]),
    ("EmbeddingBag", (7, 4), {"mode": "sum", "max_norm": 0.5}, [_BAGS, np.array([0, 3])]),
    ("EmbeddingBag", (7, 4), {"mode": "sum"}, [_BAGS, np.array([0, 3]), _normal(8)]),
]  # fmt: skip

CASES = LINEAR + CONVOLUTIONS + POOLING + PADDING + RESHAPING + NORMS + EMBEDDINGS


def _title(case):
    name, args, kwargs, inputs = case
    settings = [*map(str, args), *(f"{key}={value}" for key, value in kwargs.items())]
    sizes = "x".join(map(str, np.shape(inputs[0]))) if inputs else "made"
    return f"{name}({','.join(settings)})-{sizes}".replace(" ", "")


@pytest.mark.parametrize("case", CASES, ids=_title)
def test_the_same_layer(case):
    name, args, kwargs, inputs = case
    # Sums of float32 products come in another order.
    check_module(name, args, kwargs, inputs, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_max_unpool_puts_back_what_max_pool_took(rank):
    for sizes, wanted in (((6, 8, 4), False), ((6, 7, 5), True)):
        x = torch.from_numpy(_distinct(2, 3, *sizes[:rank]))
        pooled, places = getattr(torch.nn.functional, f"max_pool{rank}d")(x, 2, return_indices=True)
        call = {"output_size": list(x.shape)} if wanted else {}
        check_module(f"MaxUnpool{rank}d", (2, 2, 0), {}, [pooled.numpy(), places.numpy()], **call)


@pytest.mark.parametrize("size", [[9, 8], [10, 7], [2, 4, 10, 8]])
def test_transposed_convolution_to_a_size(size):
    x = _normal(2, 3, 5, 4)
    check_module("ConvTranspose2d", (3, 4, 3, 2, 1), {}, [x], output_size=size, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("how", [{"output_size": 4}, {"output_size": (5, 3)}, {"output_ratio": (0.5, 0.7)}])
@pytest.mark.parametrize("return_indices", [False, True])
def test_fractional_max_pool_with_given_samples(how, return_indices):
    samples = _RNG.uniform(size=(2, 3, 2)).astype(np.float32)
    modules = [
        m.nn.FractionalMaxPool2d(2, **how, return_indices=return_indices, _random_samples=m.from_numpy(samples.copy()))
        for m in (torch, wf)
    ]
    check(*modules, _distinct(2, 3, 9, 8).astype(np.float32))


def test_a_bag_of_pretrained_rows_and_an_embedding_share_their_memory():
    table = _normal(5, 3).astype(np.float32)
    for name, kwargs in (("Embedding", {"padding_idx": 1}), ("EmbeddingBag", {"mode": "sum"})):
        for freeze in (True, False):
            given = [torch.from_numpy(table.copy()), wf.from_numpy(table.copy())]
            layers = [
                getattr(m.nn, name).from_pretrained(rows, freeze=freeze, **kwargs)
                for m, rows in zip((torch, wf), given, strict=True)
            ]
            given[1][0, 0] = 99.0
            assert layers[1].weight[0, 0].item() == 99.0
            assert layers[1].weight.requires_grad is not freeze
            check(*layers, np.array([[0, 1, 4]]))


@pytest.mark.parametrize(
    ("name", "args", "kwargs"),
    [
        ("Linear", (60, 400), {}), ("Bilinear", (20, 10, 400), {}), ("Conv1d", (8, 400, 5), {}),
        ("Conv2d", (8, 400, 3), {"groups": 2}), ("Conv3d", (3, 400, 2), {}), ("ConvTranspose2d", (6, 400, 3), {}),
        ("ConvTranspose1d", (40, 400, 3), {"groups": 4}), ("Embedding", (100, 20), {}),
        ("EmbeddingBag", (100, 20), {}), ("BatchNorm2d", (5,), {}), ("LayerNorm", ((2, 3),), {}),
        ("GroupNorm", (2, 4), {}), ("InstanceNorm1d", (3,), {"affine": True, "track_running_stats": True}),
        ("RMSNorm", (4,), {}), ("Linear", (60, 400), {"bias": False}),
    ],
)  # fmt: skip
def test_first_values(name, args, kwargs):
    check_initialisation(name, args, kwargs)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_layers_are_made_in_a_dtype(dtype):
    for name, args in [("Linear", (4, 3)), ("Conv2d", (2, 3, 3)), ("BatchNorm1d", (3,)), ("LayerNorm", (3,)),
                       ("Embedding", (5, 2)), ("GroupNorm", (1, 3)), ("Bilinear", (2, 3, 4)), ("RMSNorm", (3,)),
                       ("ConvTranspose1d", (2, 3, 3)), ("EmbeddingBag", (5, 2))]:  # fmt: skip
        states = [
            getattr(m.nn, name)(*args, device="cpu", dtype=getattr(m, dtype)).state_dict() for m in (torch, wf)
        ]
        assert [str(t.dtype).rpartition(".")[2] for t in states[1].values()] == [
            str(t.dtype).rpartition(".")[2] for t in states[0].values()
        ]


REFUSED = [
    ("Linear", (4, 3), {}, [_normal(2, 5)]),
    ("Linear", (4, 3), {}, [np.ones((2, 4), np.int64)]),
    ("Bilinear", (4, 3, 2), {}, [_normal(2, 4), _normal(2, 5)]),
    ("Bilinear", (0, 3, 2), {}, []),
    ("Conv2d", (3, 4, 3), {}, [_normal(2, 4, 7, 7)]),
    ("Conv2d", (3, 4, 3), {}, [_normal(7, 7)]),
    ("Conv2d", (3, 4, 3), {}, [_normal(2, 3, 2, 2)]),
    ("Conv2d", (3, 4, 3), {"groups": 2}, []),
    ("Conv2d", (4, 3, 3), {"groups": 2}, []),
    ("Conv2d", (4, 4, 3), {"groups": 0}, []),
    ("Conv2d", (3, 4, 3), {"padding": "full"}, []),
    ("Conv2d", (3, 4, 3), {"padding": "same", "stride": 2}, []),
    ("Conv2d", (3, 4, 3), {"padding_mode": "mirror"}, []),
    ("ConvTranspose2d", (3, 4, 3), {"padding_mode": "reflect"}, []),
    ("ConvTranspose2d", (3, 4, 3), {}, [_normal(2, 4, 7, 7)]),
    ("MaxPool2d", (2,), {}, [_normal(4, 4)]),
    ("MaxPool2d", (5,), {}, [_normal(1, 1, 4, 4)]),
    ("MaxPool2d", (2,), {"padding": 2}, [_normal(1, 1, 4, 4)]),
    ("AvgPool2d", (2,), {"divisor_override": 0}, [_normal(1, 1, 4, 4)]),
    ("FractionalMaxPool2d", (2,), {}, []),
    ("FractionalMaxPool2d", (2,), {"output_ratio": 1.5}, []),
    ("ReflectionPad1d", (5,), {}, [_normal(1, 1, 4)]),
    ("CircularPad1d", (1,), {}, [_normal(4)]),
    ("Unflatten", (1, 6), {}, []),
    ("Unflatten", (1, (2, 3)), {}, [_normal(2, 5)]),
    ("PixelShuffle", (2,), {}, [_normal(1, 3, 4, 4)]),
    ("BatchNorm1d", (3,), {}, [_normal(2, 3, 4, 4)]),
    ("BatchNorm2d", (3,), {}, [_normal(2, 3, 4)]),
    ("BatchNorm2d", (3,), {}, [_normal(2, 5, 4, 4)]),
    ("BatchNorm1d", (3,), {}, [_normal(1, 3)]),
    ("InstanceNorm2d", (3,), {"affine": True}, [_normal(2, 4, 5, 5)]),
    ("InstanceNorm2d", (3,), {}, [_normal(2, 4)]),
    ("LayerNorm", (5,), {}, [_normal(2, 4)]),
    ("GroupNorm", (4, 6), {}, []),
    ("GroupNorm", (2, 6), {}, [_normal(2, 4, 3)]),
    ("RMSNorm", (5,), {}, [_normal(2, 4)]),
    ("Embedding", (7, 4), {}, [np.array([0, 7])]),
    ("Embedding", (7, 4), {}, [np.array([-1])]),
    ("Embedding", (7, 4), {}, [_normal(3)]),
    ("EmbeddingBag", (7, 4), {}, [np.array([[0, 7]])]),
    ("EmbeddingBag", (7, 4), {}, [np.array([0, 1])]),
    ("EmbeddingBag", (7, 4), {"mode": "prod"}, [np.array([[0, 1]])]),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=_title)
def test_the_same_is_refused(case):
    name, args, kwargs, inputs = case

    def call(m):
        layer = getattr(m.nn, name)(*args, **kwargs)
        if inputs:
            layer(*(m.from_numpy(x.astype(np.float32) if x.dtype.kind == "f" else x) for x in inputs))

    message = both_refuse(lambda: call(torch), lambda: call(wf))
    if inputs:
        assert repr(getattr(wf.nn, name)(*args, **kwargs)) in message, message
