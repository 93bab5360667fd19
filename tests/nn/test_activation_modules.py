"""Activations and dropout as modules, by their formulas; what they show; how dropout's masks behave."""

import math

import numpy as np
import pytest

import wayfare as wf
from wayfare import nn
from wayfare.codegen.routines.dropout_mask import dropout_mask, dropped_out
from wayfare.core.counters import counted

X = np.linspace(-4, 4, 41)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


_NORMAL = np.array([0.5 * (1 + math.erf(x / math.sqrt(2))) for x in X])
FORMULAS = [
    (nn.Threshold(0.5, 7.0), np.where(X > 0.5, X, 7.0)), (nn.ReLU(), np.maximum(X, 0)),
    (nn.ReLU6(), np.clip(X, 0, 6)), (nn.Hardtanh(-2, 3), np.clip(X, -2, 3)), (nn.Sigmoid(), sigmoid(X)),
    (nn.Hardsigmoid(), np.clip(X + 3, 0, 6) / 6), (nn.Tanh(), np.tanh(X)), (nn.SiLU(), X * sigmoid(X)),
    (nn.Mish(), X * np.tanh(np.log1p(np.exp(X)))), (nn.Hardswish(), X * np.clip(X + 3, 0, 6) / 6),
    (nn.ELU(0.5), np.where(X > 0, X, 0.5 * np.expm1(X))), (nn.CELU(2.0), np.where(X > 0, X, 2 * np.expm1(X / 2))),
    (nn.GELU(), X * _NORMAL), (nn.Hardshrink(1.0), np.where(np.abs(X) > 1, X, 0)),
    (nn.LeakyReLU(0.1), np.where(X > 0, X, 0.1 * X)), (nn.LogSigmoid(), np.log(sigmoid(X))),
    (nn.Softplus(2.0), np.log1p(np.exp(2 * X)) / 2), (nn.Softshrink(1.0), np.sign(X) * np.maximum(np.abs(X) - 1, 0)),
    (nn.Softsign(), X / (1 + np.abs(X))), (nn.Tanhshrink(), X - np.tanh(X)),
    (nn.RReLU(0.1, 0.3).eval(), np.where(X > 0, X, 0.2 * X)), (nn.PReLU(init=0.3), np.where(X > 0, X, 0.3 * X)),
    (nn.Softmax(0), np.exp(X) / np.exp(X).sum()), (nn.LogSoftmax(0), X - np.log(np.exp(X).sum())),
    (nn.Softmin(0), np.exp(-X) / np.exp(-X).sum()),
]  # fmt: skip


@pytest.mark.parametrize(("module", "wanted"), FORMULAS, ids=lambda v: type(v).__name__)
def test_formulas(module, wanted):
    out = module.double()(wf.tensor(X))
    np.testing.assert_allclose(out.detach().numpy(), wanted, 1e-7, 1e-7)


def test_halves_and_channels():
    x = np.arange(12.0).reshape(2, 6) / 5
    np.testing.assert_allclose(nn.GLU()(wf.tensor(x)).numpy(), x[:, :3] * sigmoid(x[:, 3:]))
    image = np.arange(24.0).reshape(2, 3, 2, 2) % 5
    np.testing.assert_allclose(nn.Softmax2d()(wf.tensor(image)).numpy(),
                               np.exp(image) / np.exp(image).sum(1, keepdims=True))  # fmt: skip
    slopes = nn.PReLU(3)
    out = slopes(wf.tensor(-image, dtype=wf.float32))
    out.sum().backward()
    np.testing.assert_allclose(slopes.weight.grad.numpy(), -image.sum((0, 2, 3)))


def test_what_they_show():
    shown = [nn.ReLU(inplace=True), nn.Hardtanh(), nn.GELU(), nn.Softmax(dim=1), nn.Dropout(0.1), nn.PReLU(3),
             nn.Softplus(), nn.Threshold(0.1, 20)]  # fmt: skip
    assert [repr(module) for module in shown] == [
        "ReLU(inplace=True)", "Hardtanh(min_val=-1.0, max_val=1.0)", "GELU(approximate='none')", "Softmax(dim=1)",
        "Dropout(p=0.1, inplace=False)", "PReLU(num_parameters=3)", "Softplus(beta=1.0, threshold=20.0)",
        "Threshold(threshold=0.1, value=20)",
    ]  # fmt: skip


def test_compositions_are_one_loop_each_way():
    x = wf.randn(64, 512, requires_grad=True)
    for module in (nn.Softsign(), nn.Tanhshrink(), nn.GLU(), nn.GELU(), nn.Mish()):
        module(x).sum().backward()  # builds what it needs
        with counted() as forward:
            out = module(x)
        grad = wf.ones(out.shape)
        with counted() as backward:
            out.backward(grad)
        assert (forward.kernels_run, backward.kernels_run) == (1, 1), module


def test_errors_name_the_layer():
    net = nn.Sequential(nn.ReLU(), nn.Softmax2d())
    with pytest.raises(RuntimeError, match=r"needs images .*, not f32\[2,3\], in 1 = Softmax2d\(\)"):
        net(wf.ones(2, 3))
    with pytest.raises(TypeError, match="Softmax: dim must be an int, not 'last'"):
        nn.Softmax("last")
    with pytest.raises(RuntimeError, match=r"glu: dimension 1 of f32\[2,3\] must be even"):
        nn.GLU()(wf.ones(2, 3))


# -- dropout -------------------------------------------------------------------------------------------------------


def test_dropout_drops_in_training_only():
    module, x = nn.Dropout(0.25), wf.ones(1000, requires_grad=True)
    assert module.eval()(x) is x
    out = module.train()(x)
    kept = out.detach().numpy() != 0
    assert 0.65 < kept.mean() < 0.85
    np.testing.assert_allclose(out.detach().numpy()[kept], 1 / 0.75, 1e-6)
    out.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), out.detach().numpy())


def test_masks_depend_on_seed_and_call_and_nothing_else():
    x = wf.ones(50, 333)

    def draws(threads):
        before = wf.get_num_threads()
        wf.set_num_threads(threads)
        try:
            wf.manual_seed(3)
            module = nn.Dropout(0.4)
            return [module(x).numpy(), module(x).numpy(), module(x.T.contiguous().T).numpy()]
        finally:
            wf.set_num_threads(before)

    first, second = draws(1), draws(2)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (first[0] != first[1]).any() and (first[1] != first[2]).any()


def test_a_mask_is_the_same_without_native_code(monkeypatch):
    x = np.random.default_rng(0).normal(size=(7, 500)).astype(np.float32)
    native = dropout_mask((5, 9), x.shape, 0.3), dropped_out(x, (5, 9), 0.3)
    monkeypatch.setattr("wayfare.codegen.runtime.kernel.Kernel._try", lambda *args: False)
    plain = dropout_mask((5, 9), x.shape, 0.3), dropped_out(x, (5, 9), 0.3)
    np.testing.assert_array_equal(native[0], plain[0])
    np.testing.assert_allclose(native[1], plain[1], 1e-6)
    np.testing.assert_array_equal(native[1] != 0, native[0] & (x != 0))


def test_masks_have_no_pattern():
    mask = dropout_mask((1, 2), (1 << 18,), 0.5) - 0.5
    spectrum = np.abs(np.fft.rfft(mask)[1:]) ** 2 / (mask.size / 4)
    assert spectrum.max() < 25  # 12 are to be expected
    rows = dropout_mask((1, 2), (256, 1024), 0.5) - 0.5
    across = rows @ rows.T / 256
    assert np.abs(across - np.eye(256)).max() < 6 / math.sqrt(1024)
    calls = np.stack([dropout_mask((1, call), (4096,), 0.5) for call in range(40)]) - 0.5
    assert np.abs(calls @ calls.T / 1024 - np.eye(40)).max() < 6 / math.sqrt(4096)
    seeds = np.stack([dropout_mask((seed, 1), (4096,), 0.5) for seed in range(40)]) - 0.5
    assert np.abs(seeds @ seeds.T / 1024 - np.eye(40)).max() < 6 / math.sqrt(4096)


@pytest.mark.parametrize("p", [1e-4, 0.1, 0.5, 0.9, 0.9999])
def test_as_many_are_dropped_as_asked(p):
    n = 1 << 20
    dropped = n - int(dropout_mask((4, 4), (n,), p).sum())
    assert abs(dropped - n * p) < 5 * math.sqrt(n * p * (1 - p))


def test_dropout_is_one_loop_each_way():
    x = wf.randn(64, 1024, requires_grad=True)
    nn.Dropout(0.1)(x).sum().backward()
    with counted() as forward:
        out = nn.Dropout(0.1)(x)
    grad = wf.ones(out.shape)
    with counted() as backward:
        out.backward(grad)
    assert (forward.kernels_run, backward.kernels_run) == (1, 1)


def test_dropout_refuses_what_is_no_probability():
    for p in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="Dropout2d: p is a probability from 0 to 1"):
            nn.Dropout2d(p)
