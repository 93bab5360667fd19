"""Normalisation layers against formulas in NumPy: statistics, what is tracked, modes, dtypes and refusals."""

import copy

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError

rng = np.random.default_rng(0)


def standardized(x, axis, eps=1e-5):
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + eps)


def scrambled(layer):
    for parameter in layer.parameters():
        parameter.data.copy_(wf.from_numpy(rng.normal(size=parameter.shape)))
    return layer


def channels(values, ndim):
    return values.detach().numpy().reshape(1, -1, *(1,) * (ndim - 2))


@pytest.mark.parametrize("shape", [(6, 3), (4, 3, 5), (4, 3, 5, 2), (2, 3, 4, 2, 3), (64, 3, 20, 20)])
def test_batch_norm_in_training_and_after(shape):
    rank = max(len(shape) - 2, 1)
    layer = scrambled(getattr(nn, f"BatchNorm{rank}d")(3, momentum=0.25, dtype=wf.float64))
    axis = (0, *range(2, len(shape)))
    mean, var = np.zeros(3), np.ones(3)
    for step in range(2):
        x = rng.normal(size=shape) * 2 + 1
        out = layer(wf.from_numpy(x))
        wanted = standardized(x, axis) * channels(layer.weight, len(shape)) + channels(layer.bias, len(shape))
        np.testing.assert_allclose(out.detach().numpy(), wanted, atol=1e-10)
        mean = 0.75 * mean + 0.25 * x.mean(axis)
        var = 0.75 * var + 0.25 * x.var(axis, ddof=1)
        np.testing.assert_allclose(layer.running_mean.numpy(), mean)
        np.testing.assert_allclose(layer.running_var.numpy(), var)
        assert layer.num_batches_tracked.item() == step + 1
    layer.eval()
    inverse = 1 / np.sqrt(layer.running_var.numpy() + 1e-5)
    wanted = (x - channels(layer.running_mean, len(shape))) * channels(wf.from_numpy(inverse), len(shape))
    wanted = wanted * channels(layer.weight, len(shape)) + channels(layer.bias, len(shape))
    np.testing.assert_allclose(layer(wf.from_numpy(x)).detach().numpy(), wanted, atol=1e-10)
    assert layer.num_batches_tracked.item() == 2


def test_without_momentum_all_batches_count_alike():
    layer = nn.BatchNorm1d(2, momentum=None, dtype=wf.float64)
    batches = rng.normal(size=(5, 8, 2))
    for batch in batches:
        layer(wf.from_numpy(batch))
    np.testing.assert_allclose(layer.running_mean.numpy(), batches.mean((0, 1)))
    np.testing.assert_allclose(layer.running_var.numpy(), batches.var(1, ddof=1).mean(0))


def test_without_tracking_the_batch_decides_in_eval_mode_too():
    layer = nn.BatchNorm1d(2, track_running_stats=False, affine=False).eval()
    x = rng.normal(size=(8, 2)).astype(np.float32)
    np.testing.assert_allclose(layer(wf.from_numpy(x)).numpy(), standardized(x, 0), atol=1e-5)
    assert dict(layer.state_dict()) == {}


def test_tracking_is_no_part_of_the_graph_but_a_write():
    layer = nn.BatchNorm1d(2)
    before = layer.running_mean
    layer(wf.from_numpy(rng.normal(size=(8, 2)).astype(np.float32)).requires_grad_())
    assert layer.running_mean is before and not before.requires_grad
    layer.eval()
    x = wf.ones(4, 2, requires_grad=True)
    out = layer(x)
    layer.train()
    layer(wf.randn(4, 2))
    # The gradient by the weight needs the running mean as it was.
    with pytest.raises(wf.errors.InPlaceError):
        out.sum().backward()


def test_gradients_of_any_order():
    layer = scrambled(nn.BatchNorm1d(2, dtype=wf.float64))
    x = wf.from_numpy(rng.normal(size=(4, 2))).requires_grad_()

    def run(x, w, b):
        return nn.functional.batch_norm(x, None, None, w, b, training=True)

    assert wf.testing.gradcheck(run, (x, layer.weight, layer.bias))
    assert wf.testing.gradgradcheck(run, (x, layer.weight, layer.bias))


def test_reset_forgets_what_was_tracked():
    layer = scrambled(nn.BatchNorm1d(2))
    layer(wf.randn(4, 2))
    layer.reset_parameters()
    state = {key: value.tolist() for key, value in layer.state_dict().items()}
    assert state == {"weight": [1, 1], "bias": [0, 0], "running_mean": [0, 0], "running_var": [1, 1],
                     "num_batches_tracked": 0}  # fmt: skip


def test_a_copy_tracks_for_itself():
    layer = nn.BatchNorm1d(2)
    other = copy.deepcopy(layer)
    other(wf.randn(4, 2) + 5)
    assert layer.running_mean.tolist() == [0, 0] and other.num_batches_tracked.item() == 1


@pytest.mark.parametrize(("shape", "last"), [((4, 5), 5), ((2, 3, 5), (3, 5)), ((0, 5), 5)])
def test_layer_norm_and_rms_norm(shape, last):
    x = rng.normal(size=shape)
    axis = tuple(range(-np.size(last), 0))
    layer = scrambled(nn.LayerNorm(last, dtype=wf.float64))
    wanted = standardized(x, axis) * layer.weight.detach().numpy() + layer.bias.detach().numpy()
    np.testing.assert_allclose(layer(wf.from_numpy(x)).detach().numpy(), wanted, atol=1e-10)
    layer = scrambled(nn.LayerNorm(last, bias=False, dtype=wf.float64))
    np.testing.assert_allclose(layer(wf.from_numpy(x)).detach().numpy(),
                               standardized(x, axis) * layer.weight.detach().numpy(), atol=1e-10)  # fmt: skip
    layer = scrambled(nn.RMSNorm(last, eps=0.1, dtype=wf.float64))
    wanted = x / np.sqrt((x**2).mean(axis, keepdims=True) + 0.1) * layer.weight.detach().numpy()
    np.testing.assert_allclose(layer(wf.from_numpy(x)).detach().numpy(), wanted, atol=1e-10)


@pytest.mark.parametrize("shape", [(3, 6), (3, 6, 4), (2, 6, 3, 2), (16, 6, 24, 24)])
@pytest.mark.parametrize(("affine", "bias"), [(True, True), (True, False), (False, True)])
def test_group_norm(shape, affine, bias):
    layer = scrambled(nn.GroupNorm(2, 6, affine=affine, bias=bias, dtype=wf.float64))
    x = rng.normal(size=shape)
    wanted = standardized(x.reshape(shape[0], 2, -1), 2).reshape(shape)
    if affine:
        wanted = wanted * channels(layer.weight, x.ndim)
    if affine and bias:
        wanted = wanted + channels(layer.bias, x.ndim)
    np.testing.assert_allclose(layer(wf.from_numpy(x)).detach().numpy(), wanted, atol=1e-10)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_instance_norm(rank):
    sizes = (5, 4, 3)[:rank]
    layer = scrambled(getattr(nn, f"InstanceNorm{rank}d")(2, affine=True, track_running_stats=True, dtype=wf.float64))
    x = rng.normal(size=(3, 2, *sizes)) + 1
    axis = tuple(range(2, x.ndim))
    wanted = standardized(x, axis) * channels(layer.weight, x.ndim) + channels(layer.bias, x.ndim)
    np.testing.assert_allclose(layer(wf.from_numpy(x)).detach().numpy(), wanted, atol=1e-10)
    np.testing.assert_allclose(layer.running_mean.numpy(), 0.1 * x.mean(axis).mean(0))
    np.testing.assert_allclose(layer(wf.from_numpy(x[0])).detach().numpy(), wanted[0], atol=1e-10)


def test_local_response_norm():
    x = rng.normal(size=(2, 5, 3))
    out = nn.LocalResponseNorm(3, alpha=0.5, beta=0.75, k=2.0)(wf.from_numpy(x)).numpy()
    for c in range(5):
        near = (x[:, max(c - 1, 0) : c + 2] ** 2).sum(1) / 3
        np.testing.assert_allclose(out[:, c], x[:, c] / (2 + 0.5 * near) ** 0.75)


def test_an_empty_batch_tracks_nothing():
    layer = nn.BatchNorm2d(3)
    assert layer(wf.zeros(0, 3, 4, 4)).shape == (0, 3, 4, 4)
    assert layer.running_var.tolist() == [1, 1, 1]


@pytest.mark.parametrize("make", [
    lambda: nn.BatchNorm1d(4), lambda: nn.LayerNorm(4), lambda: nn.GroupNorm(2, 4), lambda: nn.BatchNorm1d(4).eval(),
])  # fmt: skip
def test_half_precision_is_normalised_in_single_precision(make):
    x = rng.normal(size=(6, 4)).astype(np.float16)
    out = make()(wf.from_numpy(x))
    assert out.dtype is wf.float16
    wanted = make()(wf.from_numpy(x.astype(np.float32))).detach().numpy()
    np.testing.assert_array_equal(out.detach().numpy(), wanted.astype(np.float16))


def test_other_channels_are_only_a_warning_where_nothing_depends_on_them():
    with pytest.warns(UserWarning, match="has 4 channels, not num_features=3"):
        nn.InstanceNorm1d(3)(wf.randn(2, 4, 5))


REFUSED = {
    "3 dimensions": (lambda: nn.BatchNorm2d(3)(wf.ones(2, 3, 4)), ArgumentError,
                     r"must be \(N, C, H, W\), with 4 dimensions; this is f32\[2,3,4\] with 3, in BatchNorm2d\(3, eps"),
    "4 dimensions": (lambda: nn.BatchNorm1d(3)(wf.ones(2, 3, 4, 4)), ArgumentError, "with 2 or 3 dimensions"),
    "channels": (lambda: nn.BatchNorm2d(3)(wf.ones(2, 5, 4, 4)), ShapeError,
                 r"f32\[2,5,4,4\] has 5 channels \(dimension 1\), but running_mean is for 3"),
    "one value": (lambda: nn.BatchNorm1d(3)(wf.ones(1, 3)), ArgumentError, r"more than one value per channel"),
    "integers": (lambda: nn.BatchNorm1d(3)(wf.ones(2, 3, dtype=wf.int64)), DTypeError, "needs floating-point"),
    "float64": (lambda: nn.BatchNorm1d(3)(wf.ones(2, 3).double()), DTypeError, r"must have one dtype.*wf\.float32"),
    "layer float64": (lambda: nn.LayerNorm(3)(wf.ones(2, 3).double()), DTypeError, r"must have one dtype"),
    "no tensor": (lambda: nn.BatchNorm1d(3)(np.ones((2, 3))), ArgumentTypeError, "expected a tensor, not ndarray"),
    "instance": (lambda: nn.InstanceNorm1d(3, affine=True)(wf.ones(2, 4, 5)), ArgumentError, "4 channels.*takes 3"),
    "sizes": (lambda: nn.LayerNorm((3, 5))(wf.ones(2, 5)), ShapeError, r"sizes \[3, 5\], this is f32\[2,5\]"),
    "groups": (lambda: nn.GroupNorm(4, 6), ArgumentError, "6 channels cannot be split into 4 groups"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_refusals(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_an_ensemble_tracks_averages_over_all_batches():
    layers = [nn.BatchNorm1d(3, momentum=None).double() for _ in range(2)]
    parameters, buffers = wf.func.stack_module_state(layers)
    batches = [rng.normal(size=(2, 5, 3)), rng.normal(size=(2, 5, 3))]
    for x in batches:
        wf.vmap(lambda p, b, x: wf.func.functional_call(layers[0], (p, b), x))(parameters, buffers, wf.from_numpy(x))
    assert buffers["num_batches_tracked"].tolist() == [2, 2]
    np.testing.assert_allclose(buffers["running_mean"].numpy(), (batches[0].mean(1) + batches[1].mean(1)) / 2)
    assert layers[0].num_batches_tracked.item() == 0
