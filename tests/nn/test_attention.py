"""Attention by its formula, its masks and dropout, rows of different lengths, and transformers."""

import math

import numpy as np
import pytest

import wayfare as wf
import wayfare.nn.functional as F
from wayfare import nn
from wayfare.core.counters import counted

RNG = np.random.default_rng(4)


def normal(*shape):
    return RNG.normal(size=shape)


def by_formula(q, k, v, seen=None, added=0.0, scale=None):
    scores = np.einsum("...qd,...kd->...qk", q, k) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale) + added
    if seen is not None:
        scores = np.where(seen, scores, -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = np.nan_to_num(weights / weights.sum(-1, keepdims=True))
    return weights @ v


# -- scaled_dot_product_attention ------------------------------------------------------------------------------------


def test_plain_masked_causal_and_scaled():
    q, k, v = normal(2, 3, 5, 4), normal(2, 3, 6, 4), normal(2, 3, 6, 7)
    tensors = [wf.tensor(x) for x in (q, k, v)]
    seen, added = RNG.random((2, 1, 5, 6)) < 0.7, normal(5, 6)
    seen[0, 0, 2] = False
    for given, wanted in (
        ({}, {}), ({"scale": 0.3}, {"scale": 0.3}), ({"scale": -0.3}, {"scale": -0.3}),
        ({"scale": 0.0}, {"scale": 0.0}),
        ({"is_causal": True}, {"seen": np.tri(5, 6, dtype=bool)}),
        ({"attn_mask": wf.tensor(seen)}, {"seen": seen}), ({"attn_mask": wf.tensor(added)}, {"added": added}),
        ({"attn_mask": wf.tensor(added), "scale": -0.3}, {"added": added, "scale": -0.3}),
    ):
        np.testing.assert_allclose(F.scaled_dot_product_attention(*tensors, **given).numpy(),
                                   by_formula(q, k, v, **wanted), 1e-9, 1e-9)  # fmt: skip


@pytest.mark.parametrize("dtype", [wf.float16, wf.float32])
def test_narrow_dtypes(dtype):
    q, k, v = (wf.tensor(normal(2, 9, 8), dtype=dtype, requires_grad=True) for _ in range(3))
    out = F.scaled_dot_product_attention(q, k, v)
    out.sum().backward()
    tolerance = 5e-3 if dtype is wf.float16 else 1e-5
    wanted = by_formula(*(t.detach().numpy().astype(float) for t in (q, k, v)))
    np.testing.assert_allclose(out.detach().numpy(), wanted, tolerance, tolerance)
    assert out.dtype is dtype and q.grad.dtype is dtype


@pytest.mark.parametrize("form", ["bool", "-inf", "no keys", "causal"])
def test_a_query_that_sees_nothing_gets_zeros_and_gives_no_gradient(form):
    rng = np.random.default_rng(0)
    seen = np.ones((2, 1, 3, 4), bool)
    seen[0, 0, 1] = seen[1, 0, 0, 2] = False
    q, k, v = rng.normal(size=(2, 2, 3, 5)), rng.normal(size=(2, 2, 4, 5)), rng.normal(size=(2, 2, 4, 5))
    if form == "no keys":
        k, v, seen = k[:, :, :0], v[:, :, :0], seen[..., :0]
    if form == "causal":
        seen[1, 0, 0, 0] = False
        seen &= np.tril(np.ones((3, 4), bool))
    mask = seen if form != "-inf" else np.where(seen, 0.0, -np.inf)

    def run(m, given):
        tensors = [m.tensor(x, requires_grad=True) for x in (q, k, v)]
        out = m.nn.functional.scaled_dot_product_attention(*tensors, attn_mask=m.tensor(given))
        out.sum().backward()
        return [out.detach().numpy(), *(t.grad.numpy() for t in tensors)]

    found = run(wf, mask)
    scores = np.where(seen, q @ k.swapaxes(-1, -2) / np.sqrt(5), -1e300)
    weights = np.where(seen, np.exp(scores - scores.max(-1, keepdims=True, initial=-1e300)), 0)
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    np.testing.assert_allclose(found[0], weights @ v, atol=1e-12)
    blind = np.broadcast_to(~seen.any(-1), q.shape[:-1])
    assert blind.any() and not found[0][blind].any() and not found[1][blind].any()
    torch = pytest.importorskip("torch")
    for got, want in zip(found, run(torch, mask), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-12)


def test_gradients_against_differences():
    q, k, v, mask = (wf.tensor(normal(*s), requires_grad=True) for s in ((2, 3, 2), (2, 4, 2), (2, 4, 2), (3, 4)))
    wf.testing.gradcheck(lambda *a: F.scaled_dot_product_attention(*a), (q, k, v, mask))

    def dropped(q, k, v):
        wf.manual_seed(3)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.4)

    wf.testing.gradcheck(dropped, (q, k, v))


def test_leading_sizes_broadcast_and_heads_are_shared():
    q, k = normal(4, 3, 2), normal(2, 1, 5, 2)
    out = F.scaled_dot_product_attention(wf.tensor(q), wf.tensor(k), wf.tensor(k))
    np.testing.assert_allclose(out.numpy(), by_formula(np.broadcast_to(q, (2, 4, 3, 2)),
                                                       *[np.broadcast_to(k, (2, 4, 5, 2))] * 2))  # fmt: skip
    q, k, v = normal(1, 4, 3, 2), normal(1, 2, 5, 2), normal(1, 2, 5, 2)
    shared = F.scaled_dot_product_attention(*map(wf.tensor, (q, k, v)), enable_gqa=True)
    np.testing.assert_allclose(shared.numpy(), by_formula(q, k.repeat(2, 1), v.repeat(2, 1)))


def test_dropout_takes_weights_away():
    q, k = wf.zeros(1, 2, 200, 4), wf.zeros(1, 2, 300, 4)
    v = wf.eye(300).expand(1, 2, 300, 300)  # the result is the weights
    wf.manual_seed(1)
    weights = F.scaled_dot_product_attention(q, k, v, dropout_p=0.25).numpy()
    kept = weights != 0
    assert abs(kept.mean() - 0.75) < 0.01
    np.testing.assert_allclose(weights[kept], 1 / 300 / 0.75, 1e-5)
    wf.manual_seed(1)
    np.testing.assert_array_equal(F.scaled_dot_product_attention(q, k, v, dropout_p=0.25).numpy(), weights)
    assert (F.scaled_dot_product_attention(q, k, v, dropout_p=0.25).numpy() != weights).any()
    assert (F.scaled_dot_product_attention(q, k, v, dropout_p=1.0) == 0).all()


def test_one_loop_between_the_products():
    # Few enough that NumPy does the products, so that no call of theirs is counted.
    q, k, v = (wf.randn(2, 4, 32, 16, requires_grad=True) for _ in range(3))
    for p in (0.0, 0.1):
        F.scaled_dot_product_attention(q, k, v, dropout_p=p).sum().backward()
        with counted() as forward:
            out = F.scaled_dot_product_attention(q, k, v, dropout_p=p)
        grad = wf.ones(out.shape)
        for t in (q, k, v):
            t.grad = None
        with counted() as backward:
            out.backward(grad)
        assert (forward.kernels_run, backward.kernels_run) == (1, 1)


def test_what_is_refused():
    q = wf.zeros(2, 3, 4)
    for call, words in (
        (lambda: F.scaled_dot_product_attention(q, wf.zeros(2, 3, 5), q), "do not fit.*share their features"),
        (lambda: F.scaled_dot_product_attention(q, q, wf.zeros(2, 4, 4)), "do not fit"),
        (lambda: F.scaled_dot_product_attention(q, q, q, wf.zeros(2, 2)), r"attn_mask f32\[2,2\] does not fit scores"),
        (lambda: F.scaled_dot_product_attention(q, q, q, wf.zeros(3, 3).long()), "must be of bool or of a floating"),
        (lambda: F.scaled_dot_product_attention(q, q, q, dropout_p=1.5), "probability from 0 to 1"),
        (lambda: F.scaled_dot_product_attention(q, q, q, wf.zeros(3, 3), is_causal=True), "attn_mask cannot be given"),
        (lambda: F.scaled_dot_product_attention(q, q.double(), q), "of one floating-point dtype"),
    ):
        with pytest.raises((RuntimeError, ValueError), match=words):
            call()


# -- MultiheadAttention ----------------------------------------------------------------------------------------------


def test_heads_by_hand():
    module = nn.MultiheadAttention(6, 2, batch_first=True).double()
    x = normal(3, 5, 6)
    w, b = module.in_proj_weight.detach().numpy(), module.in_proj_bias.detach().numpy()
    q, k, v = np.split(x @ w.T + b, 3, -1)
    heads = [by_formula(*(t[..., h : h + 3] for t in (q, k, v))) for h in (0, 3)]
    wanted = np.concatenate(heads, -1) @ module.out_proj.weight.detach().numpy().T
    t = wf.tensor(x)
    for need_weights in (True, False):
        out, weights = module(t, t, t, need_weights=need_weights)
        np.testing.assert_allclose(out.detach().numpy(), wanted, 1e-9, 1e-9)
    assert weights is None and module(t, t, t)[1].shape == (3, 5, 5)
    assert module(t, t, t, average_attn_weights=False)[1].shape == (3, 2, 5, 5)


def test_causal_needs_no_mask_of_its_own():
    module, x = nn.MultiheadAttention(6, 2), wf.tensor(normal(5, 3, 6), dtype=wf.float32)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    for need_weights in (True, False):
        out, _ = module(x, x, x, attn_mask=mask, need_weights=need_weights)
        np.testing.assert_allclose(module(x, x, x, is_causal=True, need_weights=need_weights)[0].detach().numpy(),
                                   out.detach().numpy(), 1e-5, 1e-6)  # fmt: skip


def test_heads_are_parted_and_joined_without_a_copy():
    """In either order the projection is used as it lies, and the result is joined as it lies."""
    for batch_first in (False, True):
        packed = wf.randn(4, 5, 3, 2, 8)
        seen = packed if batch_first else packed.permute(1, 0, 2, 3, 4)
        out = F.attention.self_attention(seen, None, 0.0, False)
        back = out if batch_first else out.permute(1, 0, 2, 3)
        assert back.is_contiguous()


# -- rows of different lengths ---------------------------------------------------------------------------------------


def ragged(lengths, features, dtype=wf.float64):
    values = wf.tensor(normal(sum(lengths), *features), dtype=dtype, requires_grad=True)
    return wf.Ragged.from_lengths(values, wf.tensor(lengths)), values


LENGTHS = [[5, 2, 5, 1, 2, 9], [3, 3, 3], [4], [2, 0, 3, 0], [0, 0], [1, 2, 3, 4]]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("is_causal", [False, True])
def test_ragged_attention_is_that_of_each_row(lengths, is_causal):
    (q, qv), (k, kv), (v, vv) = (ragged(lengths, (2, 3)) for _ in range(3))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    assert isinstance(out, wf.Ragged) and out.lengths.tolist() == lengths
    weight = wf.tensor(normal(sum(lengths), 2, 3))
    (out.values * weight).sum().backward()
    grads = [t.grad.numpy() for t in (qv, kv, vv)]
    for t in (qv, kv, vv):
        t.grad = None
    rows = []
    for a, b, c in zip(q, k, v, strict=True):
        a, b, c = (t.transpose(0, 1) for t in (a, b, c))
        rows.append(F.scaled_dot_product_attention(a, b, c, is_causal=is_causal).transpose(0, 1))
    joined = wf.cat(rows)
    np.testing.assert_allclose(out.values.detach().numpy(), joined.detach().numpy(), 1e-9, 1e-9)
    (joined * weight).sum().backward()
    for mine, t in zip(grads, (qv, kv, vv), strict=True):
        np.testing.assert_allclose(mine, t.grad.numpy(), 1e-9, 1e-9)


def test_ragged_queries_look_at_ragged_keys_of_other_lengths():
    (q, _), (k, _), (v, _) = ragged([2, 3, 2], (4,)), ragged([5, 1, 0], (4,)), ragged([5, 1, 0], (4,))
    out = F.scaled_dot_product_attention(q, k, v)
    for row, a, b, c in zip(out, q, k, v, strict=True):
        np.testing.assert_allclose(row.detach().numpy(), F.scaled_dot_product_attention(a, b, c).detach().numpy(), 1e-9)
    assert (out[2] == 0).all()
    with pytest.raises(RuntimeError, match="key and value must have rows of the same lengths"):
        F.scaled_dot_product_attention(q, k, q)
    with pytest.raises(ValueError, match="take no attn_mask.*no padding"):
        F.scaled_dot_product_attention(q, k, v, attn_mask=wf.zeros(2, 2))
    with pytest.raises(TypeError, match="key must be ragged as the others are, not Tensor"):
        F.scaled_dot_product_attention(q, k.values, v)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("make", [
    lambda: nn.MultiheadAttention(6, 2, batch_first=True),
    lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, norm_first=True),
    lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0), 2, nn.LayerNorm(6)),
])  # fmt: skip
def test_ragged_sequences_through_modules(make, lengths):
    module = make().double()
    x, values = ragged(lengths, (6,))

    def run(x):
        return module(x, x, x, need_weights=False)[0] if isinstance(module, nn.MultiheadAttention) else module(x)

    out = run(x)
    out.values.sum().backward()
    found = [values.grad.numpy(), *(p.grad.numpy() for p in module.parameters())]
    module.zero_grad()
    values.grad = None
    joined = wf.cat([run(row) for row in x])
    np.testing.assert_allclose(out.values.detach().numpy(), joined.detach().numpy(), 1e-9, 1e-9)
    joined.sum().backward()
    if sum(lengths):
        for mine, wanted in zip(found, [values.grad, *(p.grad for p in module.parameters())], strict=True):
            np.testing.assert_allclose(mine, wanted.numpy(), 1e-8, 1e-8)


def test_rows_of_one_length_are_done_together():
    module = nn.MultiheadAttention(16, 2).eval()
    same, _ = ragged([20] * 8, (16,), wf.float32)
    mixed, _ = ragged([20, 30] * 4, (16,), wf.float32)
    for x, groups in ((same, 1), (mixed, 2)):
        with wf.no_grad():
            module(x, x, x)
            with counted() as run:
                module(x, x, x)
        assert run.kernels_run - groups <= 4, run.kernels_run  # besides one loop for each length: gathers and such


# -- transformers ----------------------------------------------------------------------------------------------------


def test_a_layer_by_its_parts():
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, activation="gelu").double()
    x = wf.tensor(normal(5, 3, 6))
    attended = layer.norm1(x + layer.self_attn(x, x, x)[0])
    wanted = layer.norm2(attended + layer.linear2(F.gelu(layer.linear1(attended))))
    np.testing.assert_allclose(layer(x).detach().numpy(), wanted.detach().numpy(), 1e-9, 1e-9)


def test_layers_of_a_stack_are_copies():
    layer = nn.TransformerEncoderLayer(6, 2, 8)
    stack = nn.TransformerEncoder(layer, 3)
    firsts = [part.linear1.weight for part in stack.layers]
    assert len({id(w) for w in (layer.linear1.weight, *firsts)}) == 4
    np.testing.assert_array_equal(firsts[0].detach().numpy(), firsts[2].detach().numpy())


def test_no_position_sees_what_follows():
    model = nn.Transformer(6, 2, 1, 2, 8, dropout=0.0, batch_first=True).double().eval()
    source, target = normal(1, 4, 6), normal(1, 5, 6)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    before = model(wf.tensor(source), wf.tensor(target), tgt_mask=mask).detach().numpy()
    target[:, 3:] += 1
    after = model(wf.tensor(source), wf.tensor(target), tgt_mask=mask).detach().numpy()
    np.testing.assert_allclose(after[:, :3], before[:, :3], 1e-9)
    assert (np.abs(after[:, 3:] - before[:, 3:]) > 1e-6).any()


def test_a_transformer_learns_to_copy():
    wf.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.Sequential(nn.Embedding(5, 16), layer, nn.Linear(16, 5))
    numbers = wf.tensor(RNG.integers(0, 5, (16, 6)))
    losses = []
    for _ in range(40):
        model.zero_grad()
        loss = F.cross_entropy(model(numbers).transpose(1, 2), numbers)
        loss.backward()
        losses.append(loss.item())
        with wf.no_grad():
            for p in model.parameters():
                p -= 0.3 * p.grad
    assert losses[-1] < 0.3 * losses[0]


def test_transformers_refuse_what_does_not_fit():
    model = nn.Transformer(6, 2, 1, 1, 8)
    with pytest.raises(RuntimeError, match=r"source f32\[4,3,6\] and target f32\[5,2,6\] have different batches"):
        model(wf.zeros(4, 3, 6), wf.zeros(5, 2, 6))
    with pytest.raises(RuntimeError, match="must have 6 features"):
        model(wf.zeros(4, 3, 5), wf.zeros(5, 3, 6))
    words = r"key_padding_mask bool\[4,3\] must be \[3, 4\].*encoder\.layers\.0\.self_attn"
    with pytest.raises(RuntimeError, match=words):
        model(wf.zeros(4, 3, 6), wf.zeros(5, 3, 6), src_key_padding_mask=wf.zeros(4, 3).bool())
    with pytest.raises(RuntimeError, match="activation is 'relu', 'gelu' or a function, not 'swish'"):
        nn.TransformerDecoderLayer(6, 2, activation="swish")
