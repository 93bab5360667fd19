"""Which kernels the records launch, and that nothing crosses between host and device for them."""

import numpy as np
import pytest

import wayfare as wf
import wayfare.nn.functional as F
from wayfare.core.op import REGISTRY


def on_device(*shape):
    return wf.randn(*shape).to("cuda").requires_grad_()


def run(launched, counts, function, *given):
    """The kernels of forward and of backward; nothing may be copied, but constants at the first time."""
    function(*given)
    launched.clear()
    counts.reset()
    out = function(*given)
    forward = list(launched)
    seed = wf.ones_like(out)
    launched.clear()
    out.backward(seed)
    assert (counts.to_host, counts.to_device) == (0, 0)
    return forward, list(launched)


def test_a_convolution_is_one_launch_and_so_is_each_gradient(launched, counts):
    x, w, bias = on_device(2, 3, 6, 5), on_device(4, 3, 3, 3), on_device(4)
    forward, backward = run(launched, counts, lambda *a: F.conv2d(*a, stride=2, padding=1), x, w, bias)
    assert forward == ["conv2_f32"]
    assert [name for name in backward if "conv" in name] == ["conv2_dx_f32_strided", "conv2_dw_f32"]


def test_a_convolution_of_few_tiles_is_split_along_its_sum(launched, counts):
    x, w = on_device(1, 40, 4, 4), on_device(3, 40, 3, 3)
    forward, backward = run(launched, counts, lambda *a: F.conv2d(*a, padding=1), x, w)
    assert forward == ["conv2_f32", "conv_parts_f32"]
    assert [name for name in backward if "conv" in name] == ["conv2_dx_f32", "conv2_dw_f32"]


@pytest.mark.parametrize("pool, name", [
    (lambda x: F.max_pool2d(x, 3, 2, 1), "window_max2"), (lambda x: F.adaptive_max_pool2d(x, (2, 3)), "cell_max2"),
])  # fmt: skip
def test_a_pool_is_one_launch_and_so_is_its_gradient(launched, counts, pool, name):
    assert run(launched, counts, pool, on_device(2, 3, 7, 5)) == ([f"{name}_f32"], [f"{name}_dx_f32"])


def test_sums_of_windows_are_one_launch(launched, counts):
    forward, backward = run(launched, counts, lambda x: F.avg_pool2d(x, 3, 2), on_device(2, 3, 7, 5))
    assert "window_sum2_f32" in forward and "window_sum2_dx_f32" in backward


@pytest.mark.filterwarnings("error")
def test_a_compiled_convolution_uses_the_same_kernels(launched):
    w = on_device(4, 3, 3, 3)

    @wf.compile
    def step(x):
        loss = F.max_pool2d(F.conv2d(x, w), 2).sum()
        (made,) = wf.autograd.grad(loss, [w])
        return made

    for _ in range(4):
        x = wf.randn(2, 3, 8, 8).to("cuda")
        launched.clear()
        made = step(x)
    assert {"conv2_f32", "window_max2_f32", "window_max2_dx_f32", "conv2_dw_f32"} <= set(launched)
    (want,) = wf.autograd.grad(F.max_pool2d(F.conv2d(x, w), 2).sum(), [w])
    assert wf.allclose(made, want, rtol=1e-4, atol=1e-5)


ATTENTION = ["attention_{}_32_causal", "attention_dots_{}_32", "attention_dq_{}_32_causal", "attention_dk_{}_32_causal"]


@pytest.mark.parametrize("dtype, name", [(wf.bfloat16, "bf16"), (wf.float16, "f16"), (wf.float32, "f32")])
def test_attention_keeps_no_matrix_of_weights(launched, counts, monkeypatch, dtype, name):
    monkeypatch.setattr("wayfare.nn.functional.attention._MANY_SCORES", 33 * 33)

    def attend(*given):
        return F.scaled_dot_product_attention(*given, is_causal=True)

    given = [wf.randn(2, 2, 33, 32).to(dtype).requires_grad_() for _ in range(3)]
    there = [t.detach().to("cuda").requires_grad_() for t in given]
    attend(*there)
    launched.clear()
    counts.reset()
    out = attend(*there)
    out.backward(wf.ones_like(out))
    assert launched == [each.format(name) for each in ATTENTION] and counts.crossings() == 0
    attend(*given).backward(wf.ones(2, 2, 33, 32, dtype=dtype))
    close = 1e-4 if dtype is wf.float32 else 0.03
    for got, want in zip(there, given, strict=True):
        assert wf.allclose(got.grad.cpu().float(), want.grad.float(), rtol=close, atol=close)


@pytest.mark.filterwarnings("error")
def test_compiled_attention_uses_the_same_kernels(launched):
    @wf.compile
    def step(q, k, v):
        loss = F.scaled_dot_product_attention(q, k, v).float().square().sum()
        return wf.autograd.grad(loss, [q, k, v])

    for seed in range(3):
        wf.manual_seed(seed)
        given = [wf.randn(1, 2, 20, 32).to(wf.bfloat16).to("cuda").requires_grad_() for _ in range(3)]
        launched.clear()
        made = step(*given)
    kernels = ["attention_bf16_32_full", "attention_dots_bf16_32", "attention_dq_bf16_32_full",
               "attention_dk_bf16_32_full"]  # fmt: skip
    assert {name for name in launched if "attention" in name} == set(kernels)
    out = F.scaled_dot_product_attention(*given).float().square().sum()
    for got, want in zip(made, wf.autograd.grad(out, given), strict=True):
        assert wf.allclose(got.float(), want.float(), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("mask, p", [(True, 0.0), (False, 0.5)])
def test_attention_with_a_mask_or_dropout_keeps_its_weights(launched, mask, p):
    given = [wf.randn(1, 1, 8, 32).to(wf.bfloat16).to("cuda") for _ in range(3)]
    seen = wf.ones(8, 8, dtype=wf.bool).tril().to("cuda") if mask else None
    F.scaled_dot_product_attention(*given, seen, p)
    assert not [name for name in launched if "attention" in name]


def test_rows_are_gathered_and_added_by_kernels(launched, counts):
    index = wf.tensor([[3, 0], [3, 3]]).to("cuda")
    forward, backward = run(launched, counts, lambda w: F.embedding(index, w), on_device(5, 4))
    # The first launch asks whether the indices are in range.
    assert forward[1:] == ["gather_rows16"] and "add_rows_f32" in backward
    forward, backward = run(launched, counts, lambda x: x[index], on_device(5, 3))
    assert forward[1:] == ["gather_rows4"] and "add_rows_f32" in backward
    forward, backward = run(launched, counts, lambda x: x.gather(1, index), on_device(2, 4))
    assert "add_rows_f32" in backward


def test_segments_are_reduced_and_spread_by_kernels(launched, counts):
    offsets = wf.tensor([0, 2, 2, 5]).to("cuda")
    forward, backward = run(launched, counts, lambda x: wf.segment_sum(x, offsets), on_device(5, 4))
    assert forward == ["segments_sum_f32"] and backward == ["segments_spread4"]
    forward, _ = run(launched, counts, lambda x: wf.segment_logsumexp(x, offsets), on_device(5, 4))
    assert [name for name in forward if "segments" in name] == [
        "segments_max_f32", "segments_spread4", "segments_sum_f32"
    ]  # fmt: skip


def test_sums_at_indices_that_repeat_have_the_bits_of_the_cpu(cuda):
    """Added in the order of the indices, not as it comes: large and small numbers make every other order show."""
    rng = np.random.default_rng(0)
    values = wf.tensor((rng.standard_normal((400, 3)) * 10.0 ** rng.integers(-6, 6, (400, 3))).astype(np.float32))
    index, zeros = wf.tensor(rng.integers(0, 7, 400)), wf.zeros(7, 3)
    wide = index[:, None].expand(400, 3)
    for made in (
        lambda to: to(zeros).index_put((to(index),), to(values), accumulate=True),
        lambda to: to(zeros).scatter_add(0, to(wide), to(values)),
        lambda to: to(zeros).index_add(0, to(index), to(values)),
        # The last value stays.
        lambda to: to(zeros).scatter(0, to(wide), to(values)),
        lambda to: to(zeros).index_put((to(index),), to(values)),
    ):
        np.testing.assert_array_equal(made(lambda t: t.to("cuda")).cpu().numpy(), made(lambda t: t).numpy())


# -- random numbers


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("low, high", [(0, 1), (-2.0, 5.0)])
def test_the_record_of_uniform_numbers_draws_on_the_device_with_the_bits_of_the_cpu(cuda, launched, dtype, low, high):
    op = REGISTRY["random_uniform"]
    attrs = {"key": (3, 5), "shape": (7, 149), "dtype": getattr(wf, dtype), "low": low, "high": high}
    made = cuda.run(op, (), attrs)
    assert any(name.startswith("uniform_") for name in launched)
    want = op.forward(**attrs)
    np.testing.assert_array_equal(cuda.to_host(made).view(np.uint8), want.view(np.uint8))


def test_bernoulli_draws_on_the_device(counts):
    def drawn(p):
        wf.manual_seed(3)
        return wf.bernoulli(p)

    p = wf.linspace(0, 1, 300)
    there = p.to("cuda")
    counts.reset()
    made = drawn(there)
    assert counts.to_device == 0
    assert wf.equal(made.cpu(), drawn(p))


@pytest.mark.parametrize("shape", [(5, 7), (3, 1024), (2, 1025), (2049,)])
@pytest.mark.parametrize("dropped", [F.dropout, F.dropout1d], ids=["elements", "channels"])
def test_the_mask_of_dropout_is_a_kernel_with_the_bits_of_the_cpu(counts, shape, dropped):
    def run(x):
        wf.manual_seed(3)
        x = x.detach().requires_grad_()
        out = dropped(x, 0.3)
        out.backward(wf.ones_like(out))
        return out.detach(), x.grad

    x = wf.randn(2, 3, *shape) if dropped is F.dropout1d and len(shape) == 1 else wf.randn(*shape)
    there = x.to("cuda")
    run(there)
    counts.reset()
    made = run(there)
    assert counts.crossings() == 0
    for got, want in zip(made, run(x), strict=True):
        assert wf.equal(got.cpu(), want)
