"""Kernels whose threads share work, at sizes where all of their parts run, against the CPU: on a GPU, too."""

import pytest

import wayfare as wf
import wayfare.nn.functional as F


def compare(function, given, close, seed=None):
    """Result and gradients of a function on the device and on the CPU, in float32."""
    made = []
    for place in ("cpu", "cuda"):
        own = [t.to(place).detach().requires_grad_(t.dtype.is_floating_point) for t in given]
        out = function(*own)
        out.backward(wf.ones_like(out) if seed is None else seed.to(place))
        made.append([x.detach().cpu().float() for x in (out, *(t.grad for t in own if t.grad is not None))])
    for want, got in zip(*made, strict=True):
        largest = want.abs().max().item()
        assert (got - want).abs().max().item() <= close * max(largest, 1e-3)


@pytest.mark.parametrize("dtype, close", [(wf.bfloat16, 0.03), (wf.float16, 0.005), (wf.float32, 2e-5)])
@pytest.mark.parametrize("features", [32, 64, 128])
@pytest.mark.parametrize("queries, keys, causal", [(150, 150, True), (70, 140, False), (140, 70, True)])
def test_attention(cuda, monkeypatch, dtype, close, features, queries, keys, causal):
    monkeypatch.setattr("wayfare.nn.functional.attention._MANY_SCORES", 1)
    wf.manual_seed(1)
    given = [wf.randn(1, 2, length, features).to(dtype) for length in (queries, keys, keys)]
    seed = wf.randn(1, 2, queries, features).to(dtype)
    compare(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal), given, close, seed)


def test_attention_of_heads_side_by_side(cuda):
    """As `MultiheadAttention` has them: views with other strides, and a result that is joined without a copy."""
    wf.manual_seed(2)
    layer = wf.nn.MultiheadAttention(64, 2, batch_first=True).bfloat16()
    x = wf.randn(2, 70, 64).to(wf.bfloat16)
    want = layer(x, x, x, need_weights=False)[0].float()
    got = layer.to("cuda")(*[x.to("cuda")] * 3, need_weights=False)[0].cpu().float()
    assert (got - want).abs().max().item() < 0.03


SHAPES = [((2, 33, 9, 9), (70, 33, 3, 3), {"padding": 1}), ((2, 33, 9, 9), (70, 33, 3, 3), {"padding": 1, "stride": 2}),
          ((3, 64, 4, 4), (130, 64, 1, 1), {"stride": 2}), ((1, 3, 40, 40), (8, 3, 7, 7), {"padding": 3, "stride": 2}),
          ((1, 256, 2, 2), (40, 256, 3, 3), {"padding": 1})]  # fmt: skip


@pytest.mark.parametrize("shape, weight, how", SHAPES)
def test_convolution(cuda, shape, weight, how):
    wf.manual_seed(3)
    given = [wf.randn(*shape), wf.randn(*weight), wf.randn(weight[0])]
    compare(lambda *a: F.conv2d(*a, **how), given, 2e-5)


ROWS = {
    "softmax": lambda x, w, b, t: F.softmax(x, -1) * w,
    "layer_norm": lambda x, w, b, t: F.layer_norm(x, w.shape, w, b),
    "cross_entropy": lambda x, w, b, t: F.cross_entropy(x, t) + (w + b).sum() * 0,
}


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("rows, columns", [(300, 4096), (5, 4096), (150, 8192), (150, 1032), (3000, 64)])
def test_rows(cuda, kind, rows, columns):
    wf.manual_seed(4)
    given = [wf.randn(rows, columns), wf.rand(columns), wf.rand(columns), wf.randint(columns, (rows,))]
    compare(ROWS[kind], given, 3e-5)


@pytest.mark.parametrize("shape", [(1500, 130), (130, 1500), (20000, 3)])
@pytest.mark.parametrize("dim", [0, 1])
def test_reductions(cuda, shape, dim):
    wf.manual_seed(5)
    x = wf.randn(*shape)
    there = x.to("cuda")
    for reduce in (lambda t: t.sum(dim), lambda t: t.amax(dim), lambda t: t.sum(), lambda t: t.max()):
        assert wf.allclose(reduce(there).cpu(), reduce(x), rtol=1e-5, atol=1e-4)
    assert wf.equal(there.argmax(dim).cpu(), x.argmax(dim)) and wf.equal(there.argmin(dim).cpu(), x.argmin(dim))


def test_an_update_of_aligned_and_other_parameters(cuda):
    """Groups of four numbers, the rest of a parameter, and one whose memory begins anywhere."""
    results = []
    for place in ("cpu", "cuda"):
        wf.manual_seed(6)
        whole = wf.randn(2050).to(place)
        own = [wf.nn.Parameter(x) for x in (wf.randn(4099).to(place), whole[1:], wf.randn(3, 5).to(place))]
        optimiser = wf.optim.Adam(own, 0.01)
        for _ in range(3):
            optimiser.zero_grad()
            wf.stack([(p * p).sum() for p in own]).sum().backward()
            optimiser.step()
        results.append([p.detach().cpu() for p in own])
    for want, got in zip(*results, strict=True):
        assert wf.allclose(got, want, rtol=1e-5, atol=1e-6)
