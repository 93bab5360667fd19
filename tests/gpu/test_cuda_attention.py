"""Attention kernels in emulation against NumPy in double precision, forward and backward; and compiled for a GPU."""

import numpy as np
import pytest

import wayfare as wf
from tests.gpu.cases import needs_compiler, needs_nvrtc
from tests.gpu.emulation.host import HostLauncher
from wayfare.codegen.cuda import nvrtc
from wayfare.codegen.cuda.kernels import attention
from wayfare.codegen.cuda.kernels import attention_half as half
from wayfare.errors import LoopError


def reference(q, k, v, g, scale, causal):
    """Result, logarithms and gradients, with the matrix of weights."""
    q, k, v, g = (a.astype(np.float64) for a in (q, k, v, g))
    s = q @ k.swapaxes(2, 3) * scale
    if causal:
        s = np.where(np.arange(s.shape[3]) <= np.arange(s.shape[2])[:, None], s, -np.inf)
    top = s.max(-1, keepdims=True)
    e = np.exp(s - top)
    total = e.sum(-1, keepdims=True)
    p = e / total
    dp = g @ v.swapaxes(2, 3)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * scale
    return p @ v, (top + np.log(total))[..., 0], ds @ k, ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ g


def transposed(a):
    """The same array as [batch, length, heads, width] in memory."""
    return np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2)


bfloat16 = wf.bfloat16.numpy
CASES = [(32, 70, 70, True), (32, 5, 40, False), (64, 33, 90, True), (64, 70, 33, True), (128, 40, 35, False),
         (128, 1, 1, True), (64, 150, 150, True), (64, 140, 200, False), (128, 80, 130, True),
         (32, 200, 20, True)]  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("dtype", [np.float32, np.float16, bfloat16])
@pytest.mark.parametrize("width, queries, keys, causal", CASES)
def test_attention_forward_and_backward(dtype, width, queries, keys, causal):
    rng = np.random.default_rng(0)
    launcher = HostLauncher()
    q, g = (transposed(rng.standard_normal((2, 2, queries, width)).astype(dtype)) for _ in range(2))
    k, v = (rng.standard_normal((2, 2, keys, width)).astype(dtype) for _ in range(2))
    scale = width**-0.5
    want = reference(q, k, v, g, scale, causal)
    out, logs = np.zeros_like(q), np.zeros((2, 2, queries), np.float32)
    attention.forward(launcher, q, k, v, out, logs, scale, causal)
    # Weights are rounded to the dtype before they multiply.
    rtol, atol = {np.float32: (2e-5, 2e-6), np.float16: (4e-3, 2e-3)}.get(dtype, (3e-2, 2e-2))
    np.testing.assert_allclose(out.astype(np.float32), want[0], rtol, atol)
    np.testing.assert_allclose(logs, want[1], 1e-5, 1e-5)
    made = [np.zeros_like(a) for a in (q, k, v)]
    attention.backward(launcher, q, k, v, out, logs, g, *made, scale, causal)
    for got, expected in zip(made, want[2:], strict=True):
        np.testing.assert_allclose(got.astype(np.float32), expected, rtol * 10, atol * 10)
    assert len(launcher.names) == 4


@needs_compiler
def test_large_scores_do_not_overflow():
    launcher = HostLauncher()
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((1, 1, 40, 32)).astype(np.float32) * 100 for _ in range(2))
    out, logs = np.zeros_like(q), np.zeros((1, 1, 40), np.float32)
    attention.forward(launcher, q, k, k, out, logs, 1.0, False)
    np.testing.assert_allclose(out, reference(q, k, k, k, 1.0, False)[0], 1e-2, 1e-2)


def test_what_is_refused():
    x = np.zeros((1, 1, 4, 48), np.float32)
    with pytest.raises(LoopError, match="rows of 48"):
        attention.forward(HostLauncher(), x, x, x, x, None, 1.0, False)
    x = np.zeros((1, 1, 32, 32), np.float32)
    with pytest.raises(LoopError, match="contiguous rows"):
        attention.forward(HostLauncher(), x, x.swapaxes(2, 3), x, x, None, 1.0, False)
    x = np.zeros((1, 1, 4, 33), np.float32)[..., 1:]
    with pytest.raises(LoopError, match="aligned"):
        attention.forward(HostLauncher(), x, x, x, x, None, 1.0, False)


@needs_nvrtc
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("width", attention.WIDTHS)
def test_attention_compiles(dtype, width):
    texts = [attention.dots_text(dtype, width)[1]]
    for causal in (False, True):
        if dtype == "f32":
            makers = (attention.forward_text, attention.queries_text, attention.keys_text)
            texts += [make(width, causal)[1] for make in makers]
            continue
        texts.append(half.forward_text(dtype, width, causal, attention.forward_fields(dtype))[1])
        texts.append(half.queries_text(dtype, width, causal, attention.backward_fields(dtype, "dq"))[1])
        texts.append(half.keys_text(dtype, width, causal, attention.backward_fields(dtype, "dk dv"))[1])
    assert nvrtc.nvrtc().compile("\n".join(texts), "sm_90")[:4] == b"\x7fELF"
