"""Flatten, Unflatten, shuffles and Upsample: where each number goes."""

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.errors import ArgumentTypeError, OperationError, ShapeError


def test_flatten_and_back():
    x = wf.arange(24.0).reshape(2, 3, 4)
    flat = nn.Flatten()(x)
    assert flat.shape == (2, 12)
    assert nn.Flatten(0, 1)(x).shape == (6, 4)
    assert nn.Flatten()(wf.zeros(0, 3, 4)).shape == (0, 12)
    assert wf.equal(nn.Unflatten(1, (3, 4))(flat), x)
    assert nn.Unflatten(-1, (2, -1))(flat).shape == (2, 2, 6)


def test_pixels_by_their_places():
    r, x = 2, np.arange(2 * 8 * 3 * 5.0).reshape(2, 8, 3, 5)
    out = nn.PixelShuffle(r)(wf.from_numpy(x)).numpy()
    for c, h, w in np.ndindex(2, 6, 10):
        np.testing.assert_array_equal(out[:, c, h, w], x[:, c * r * r + (h % r) * r + w % r, h // r, w // r])
    np.testing.assert_array_equal(nn.PixelUnshuffle(r)(wf.from_numpy(out)).numpy(), x)


def test_channels_are_dealt_in_turn():
    x = wf.arange(6.0).reshape(1, 6, 1)
    assert nn.ChannelShuffle(2)(x).flatten().tolist() == [0, 3, 1, 4, 2, 5]


def test_upsampling():
    x = wf.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    doubled = np.kron(x.numpy(), np.ones((2, 2)))
    np.testing.assert_array_equal(nn.Upsample(scale_factor=2)(x).numpy(), doubled)
    np.testing.assert_array_equal(nn.UpsamplingNearest2d(size=4)(x).numpy(), doubled)
    wanted = np.linspace(1, 2, 3) + np.linspace(0, 2, 3)[:, None]
    np.testing.assert_allclose(nn.UpsamplingBilinear2d(size=(3, 3))(x).numpy()[0, 0], wanted)
    shown = repr(nn.Upsample(scale_factor=(1, 2), mode="bilinear"))
    assert shown == "Upsample(scale_factor=(1.0, 2.0), mode='bilinear')"


REFUSED = {
    "size": (lambda: nn.Unflatten(1, 6), ArgumentTypeError, "a tuple of ints, not int"),
    "size of": (lambda: nn.Unflatten(1, (2, 3.0)), ArgumentTypeError, "number 1 is of type float"),
    "product": (lambda: nn.Unflatten(1, (2, 3))(wf.ones(2, 5)), ShapeError, r"the 5 of dimension 1 .*, in Unflatten"),
    "channels": (lambda: nn.PixelShuffle(2)(wf.ones(1, 3, 4, 4)), OperationError, "3 channels .* not a multiple of 2²"),
    "deal": (lambda: nn.ChannelShuffle(4)(wf.ones(1, 6, 2)), OperationError, "6 channels .* 4 groups"),
    "rank": (lambda: nn.Upsample(scale_factor=2, mode="bilinear")(wf.ones(1, 2, 3)), ShapeError, "4 dimensions"),
    "no tensor": (lambda: nn.Flatten()([1, 2]), ArgumentTypeError, r"not list, in Flatten\(start_dim=1"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_refusals(call, error, text):
    with pytest.raises(error, match=text):
        call()
