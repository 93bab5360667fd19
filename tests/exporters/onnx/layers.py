"""Every layer of the library with an input for it, the names of its dynamic axes, and why some have no model file."""

import inspect

import wayfare as wf
from wayfare import nn

BATCH = {0: "batch"}


def signal(rank, channels=3, batch=2, size=6):
    """An input [batch, channels, size, …]."""
    return wf.randn(batch, channels, *[size] * rank)


def axes(rank):
    """The batch and all sizes of a signal stay open."""
    return {0: "batch", **{2 + i: name for i, name in enumerate(("depth", "height", "width")[3 - rank :])}}


def positive(*shape):
    return wf.rand(*shape) * 0.8 + 0.1


# name → list of (layer, inputs, dynamic axes of each input)
LAYERS = {}


def layer(name, *args, inputs=None, open_axes=None, **options):
    """Enter a layer; by default it takes [batch, 6], of which the batch stays open. A list is several examples."""
    inputs = (wf.randn(3, 6),) if inputs is None else inputs
    open_axes = [BATCH] * len(inputs) if open_axes is None else open_axes
    LAYERS.setdefault(name, []).append((getattr(nn, name)(*args, **options), inputs, open_axes))


wf.random.manual_seed(0)
PLAIN = (
    "ReLU RReLU Hardtanh ReLU6 Sigmoid Hardsigmoid Tanh SiLU Mish Hardswish ELU CELU SELU GLU GELU Hardshrink "
    "LeakyReLU LogSigmoid Softplus Softshrink PReLU Softsign Tanhshrink Identity Dropout AlphaDropout"
)
for plain in PLAIN.split():
    layer(plain)
layer("Threshold", 0.1, 20.0)
layer("GELU", approximate="tanh")
for along in ("Softmin", "Softmax", "LogSoftmax"):
    layer(along, 1)
layer("Softmax2d", inputs=(signal(2),), open_axes=[axes(2)])
layer("FeatureAlphaDropout", inputs=(signal(1),), open_axes=[axes(1)])
layer("Linear", 6, 4)
layer("Linear", 6, 4, bias=False, inputs=(wf.randn(2, 5, 6),), open_axes=[{0: "batch", 1: "length"}])
layer("Bilinear", 6, 4, 5, inputs=(wf.randn(3, 6), wf.randn(3, 4)))
layer("PairwiseDistance", inputs=(wf.randn(3, 6), wf.randn(3, 6)))
layer("CosineSimilarity", inputs=(wf.randn(3, 6), wf.randn(3, 6)))
layer("Flatten", inputs=(signal(2),))
layer("Unflatten", 1, (2, 3))
words = wf.tensor([[1, 2, 3, 4], [4, 3, 0, 9], [7, 7, 1, 0]])
layer("Embedding", 10, 4, padding_idx=0, inputs=(words,), open_axes=[{0: "batch", 1: "length"}])
for mode in ("sum", "mean", "max"):
    for padding in (None, 0):
        how = {"mode": mode, "padding_idx": padding}
        layer("EmbeddingBag", 10, 4, inputs=(words,), open_axes=[{0: "batch", 1: "length"}], **how)
        # Offsets cannot be made up: what stays open is shown in examples. Some bags are empty, or nothing but padding.
        bags = [(wf.tensor(numbers), wf.tensor(offsets)) for numbers, offsets in (
            ([1, 2, 0, 3, 0, 4, 4], [0, 2, 2, 4]), ([0, 5], [0, 1]), ([9, 0, 1, 7, 8], [0, 0, 4]), ([3, 3, 3], [0]))]
        layer("EmbeddingBag", 10, 4, inputs=bags, open_axes=[{0: "length"}, {0: "bags"}], **how)
bags = [(wf.tensor(numbers), wf.tensor(offsets)) for numbers, offsets in (
    ([1, 2, 0, 3, 0, 4, 4], [0, 2, 2, 7]), ([0, 5], [0, 1, 2]), ([9, 0, 1, 7, 8], [0, 1, 1, 4, 5]), ([3, 3], [0, 2]))]
layer("EmbeddingBag", 10, 4, include_last_offset=True, inputs=bags, open_axes=[{0: "length"}, {0: "bags"}])
layer("EmbeddingBag", 10, 4, mode="sum", padding_idx=7, inputs=(words, None, positive(3, 4)),
      open_axes=[{0: "batch", 1: "length"}] * 2)  # fmt: skip

for rank in (1, 2, 3):
    d = f"{rank}d"
    open_ = [axes(rank)]
    given = (signal(rank),)
    layer(f"Conv{d}", 3, 4, 3, padding=1, inputs=given, open_axes=open_)
    layer(f"Conv{d}", 3, 6, 2, stride=2, groups=3, bias=False, dilation=2, inputs=given, open_axes=open_)
    layer(f"ConvTranspose{d}", 3, 4, 3, stride=2, padding=1, output_padding=1, inputs=given, open_axes=open_)
    layer(f"BatchNorm{d}", 3, inputs=given, open_axes=open_)
    layer(f"InstanceNorm{d}", 3, affine=True, inputs=given, open_axes=open_)
    layer(f"MaxPool{d}", 2, inputs=given, open_axes=open_)
    layer(f"MaxPool{d}", 3, 2, 1, return_indices=True, inputs=given, open_axes=open_)
    layer(f"AvgPool{d}", 2, inputs=given, open_axes=open_)
    layer(f"AvgPool{d}", 3, 2, 1, count_include_pad=False, inputs=given, open_axes=open_)
    layer(f"AvgPool{d}", 3, 2, ceil_mode=True, inputs=given, open_axes=open_)
    layer(f"LPPool{d}", 2, 2, inputs=(positive(2, 3, *[6] * rank),), open_axes=open_)
    layer(f"AdaptiveAvgPool{d}", 2, inputs=given, open_axes=open_)
    layer(f"AdaptiveAvgPool{d}", 1, inputs=given, open_axes=open_)
    layer(f"AdaptiveMaxPool{d}", 3, return_indices=True, inputs=given, open_axes=open_)
    layer(f"Dropout{d}", inputs=given, open_axes=open_)
    layer(f"ZeroPad{d}", 1, inputs=given, open_axes=open_)
    layer(f"ConstantPad{d}", 1, 2.5, inputs=given, open_axes=open_)
    layer(f"ReflectionPad{d}", 1, inputs=given, open_axes=open_)
    layer(f"ReplicationPad{d}", 1, inputs=given, open_axes=open_)
    layer(f"CircularPad{d}", 1, inputs=given, open_axes=open_)
    pooled, where = getattr(nn, f"MaxPool{d}")(2, return_indices=True)(given[0])
    layer(f"MaxUnpool{d}", 2, inputs=(pooled, where))
samples = {rank: wf.rand(2, 3, rank) for rank in (2, 3)}
for rank, drawn in samples.items():
    # How many windows there are is fixed, and so are the samples: the sizes may stay open.
    open_ = {axis: name for axis, name in axes(rank).items() if axis}
    layer(f"FractionalMaxPool{rank}d", 2, output_size=(3, 2, 1)[:rank], return_indices=True, _random_samples=drawn,
          inputs=(signal(rank),), open_axes=[open_])  # fmt: skip
layer("FractionalMaxPool2d", (2, 3), output_ratio=(0.5, 0.4), _random_samples=samples[2], inputs=(signal(2),),
      open_axes=[{}])  # fmt: skip
layer("AdaptiveAvgPool2d", (None, 4), inputs=(signal(2),), open_axes=[axes(2)])
layer("Unfold", 2, stride=2, inputs=(signal(2),), open_axes=[axes(2)])
layer("Fold", (6, 6), 2, stride=2, inputs=(wf.randn(2, 12, 9),))
layer("LayerNorm", 6)
layer("LayerNorm", (5, 6), inputs=(wf.randn(2, 5, 6),))
layer("RMSNorm", 6)
layer("GroupNorm", 3, 6, inputs=(signal(2, 6),), open_axes=[axes(2)])
layer("LocalResponseNorm", 2, inputs=(signal(2),), open_axes=[axes(2)])
layer("PixelShuffle", 2, inputs=(signal(2, 8),), open_axes=[axes(2)])
layer("PixelUnshuffle", 2, inputs=(signal(2, 2),))
layer("ChannelShuffle", 2, inputs=(signal(2, 4),), open_axes=[axes(2)])
layer("Upsample", scale_factor=2, inputs=(signal(2),), open_axes=[axes(2)])
layer("Upsample", scale_factor=2, mode="bilinear", inputs=(signal(2),))
layer("Upsample", size=(9, 5), mode="bicubic", inputs=(signal(2),))
layer("UpsamplingNearest2d", scale_factor=3, inputs=(signal(2),))
layer("UpsamplingBilinear2d", scale_factor=2, inputs=(signal(2),))

for cell in ("RNNCell", "GRUCell", "LSTMCell"):
    layer(cell, 6, 4)
layer("RNNCell", 6, 4, nonlinearity="relu", inputs=(wf.randn(3, 6), wf.randn(3, 4)))
layer("BinaryTreeLSTMCell", 6, 4, inputs=((wf.randn(3, 4), wf.randn(3, 4)), (wf.randn(3, 4), wf.randn(3, 4))),
      open_axes=[BATCH] * 4)  # fmt: skip
layer("ChildSumTreeLSTMCell", 6, 4, inputs=(wf.randn(6), [(wf.randn(4), wf.randn(4)), (wf.randn(4), wf.randn(4))]),
      open_axes=[{}] * 5)  # fmt: skip
sequence = (wf.randn(2, 5, 6),)
for kind in ("RNN", "GRU", "LSTM"):
    for options in ({}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "bias": False}):
        open_ = {0: "batch", 1: "length"} if options.get("batch_first") else {0: "length", 1: "batch"}
        layer(kind, 6, 4, inputs=sequence, open_axes=[open_], **options)
layer("LSTM", 6, 4, proj_size=3, inputs=sequence)
layer("RNN", 6, 4, nonlinearity="relu", inputs=sequence, open_axes=[{0: "length", 1: "batch"}])
layer("RNNBase", "GRU", 6, 4)
LAYERS.pop("RNNBase")

open_ = {0: "batch", 1: "length"}
layer("MultiheadAttention", 6, 2, batch_first=True, inputs=sequence * 3, open_axes=[open_] * 3)
for name in ("TransformerEncoderLayer", "TransformerDecoderLayer"):
    inputs = sequence if "Encoder" in name else (*sequence, wf.randn(2, 3, 6))
    layer(name, 6, 2, 8, batch_first=True, inputs=inputs, open_axes=[open_, {0: "batch", 1: "context"}][: len(inputs)])
layer("TransformerEncoder", nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, norm_first=True), 2,
      inputs=sequence, open_axes=[open_])  # fmt: skip
layer("TransformerDecoder", nn.TransformerDecoderLayer(6, 2, 8, batch_first=True), 2,
      inputs=(*sequence, wf.randn(2, 3, 6)), open_axes=[open_, {0: "batch", 1: "context"}])  # fmt: skip
layer("Transformer", 6, 2, 1, 1, 8, batch_first=True, inputs=(wf.randn(2, 3, 6), *sequence),
      open_axes=[{0: "batch", 1: "context"}, open_])  # fmt: skip
layer("Sequential", nn.Linear(6, 4), nn.Tanh())

# Losses are functions of two tensors or three; a file may hold them too.
a, b, target = wf.randn(3, 6), wf.randn(3, 6), wf.tensor([0, 2, 5])
for loss in ("L1Loss", "MSELoss", "SmoothL1Loss", "HuberLoss", "PoissonNLLLoss", "SoftMarginLoss"):
    layer(loss, inputs=(a, b))
layer("KLDivLoss", reduction="batchmean", inputs=(a, positive(3, 6)))
for loss in ("CrossEntropyLoss", "NLLLoss", "MultiMarginLoss"):
    layer(loss, inputs=(a, target))
layer("CrossEntropyLoss", label_smoothing=0.1, reduction="none", inputs=(a, target))
layer("BCELoss", inputs=(positive(3, 6), positive(3, 6)))
layer("BCEWithLogitsLoss", inputs=(a, positive(3, 6)))
layer("MultiLabelSoftMarginLoss", inputs=(a, (b > 0).float()))
layer("HingeEmbeddingLoss", inputs=(a, b.sign()))
sign = wf.tensor([1.0, -1.0, 1.0])
layer("MarginRankingLoss", inputs=(wf.randn(3), wf.randn(3), sign))
layer("CosineEmbeddingLoss", inputs=(a, b, sign))
layer("TripletMarginLoss", inputs=(a, b, wf.randn(3, 6)))
layer("TripletMarginWithDistanceLoss", inputs=(a, b, wf.randn(3, 6)))
layer("GaussianNLLLoss", inputs=(a, b, positive(3, 6)))
layer("GaussianNLLLoss", full=True, reduction="none", inputs=(a, b, positive(3, 1)))
lists = wf.tensor([[3, 0, -1, 1, 1, 1], [0, -1, 2, 2, 2, 2], [1, 2, 3, 4, 5, 0]])
layer("MultiLabelMarginLoss", inputs=(a, lists))
layer("MultiLabelMarginLoss", reduction="none", inputs=(a, lists))
spoken, labels = wf.randn(6, 2, 5).log_softmax(2), wf.tensor([[1, 2, 2], [3, 4, 1]])
how_long = (wf.tensor([6, 5]), wf.tensor([3, 2]))
for options in ({}, {"reduction": "none", "zero_infinity": True}):
    layer("CTCLoss", inputs=(spoken, labels, *how_long), open_axes=[{0: "time", 1: "batch"}, {0: "batch", 1: "labels"},
                                                                    BATCH, BATCH], **options)  # fmt: skip
layer("CTCLoss", blank=3, reduction="sum", inputs=(spoken, wf.tensor([1, 2, 2, 4, 1]), *how_long),
      open_axes=[{0: "time"}, {}, {}, {}])  # fmt: skip

# What has no model file, and why.
REASONS = dict.fromkeys(
    ("Module", "RNNCellBase", "RNNBase", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict"),
    "it has no forward of its own: export the module that calls what it holds",
)
ALL = [n for n in nn.__all__ if inspect.isclass(getattr(nn, n)) and issubclass(getattr(nn, n), nn.Module)]
