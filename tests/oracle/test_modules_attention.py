"""Attention and transformers side by side with PyTorch's: outputs, weights, gradients, state, text, first values."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("torch", reason="the referee needs PyTorch: pip install torch==2.13.0")

import torch

import wayfare as wf
from tests.oracle.module_check import assert_same_signature, both_refuse, check, check_initialisation, check_module

_RNG = np.random.default_rng(11)
_CLOSE = {"rtol": 2e-5, "atol": 2e-5}


def _normal(*shape):
    return _RNG.standard_normal(shape)


def _padding(batch, keys):
    """True for what is padding; each row has something that is none."""
    return np.arange(keys) >= _RNG.integers(1, keys + 1, (batch, 1))


_CAUSAL = np.triu(np.ones((4, 4), bool), 1)
# (settings, inputs, call): L = 4 queries, S = 5 keys, N = 3, E = 6 in 2 heads
CALLS = [
    ({}, [_normal(4, 3, 6), _normal(5, 3, 6), _normal(5, 3, 6)], {}),
    ({"batch_first": True}, [_normal(3, 4, 6), _normal(3, 5, 6), _normal(3, 5, 6)], {}),
    ({"bias": False}, [_normal(4, 3, 6), _normal(5, 3, 6), _normal(5, 3, 6)], {"need_weights": False}),
    ({}, [_normal(4, 6), _normal(5, 6), _normal(5, 6)], {}),
    ({"kdim": 3, "vdim": 2}, [_normal(4, 3, 6), _normal(5, 3, 3), _normal(5, 3, 2)], {}),
    ({"kdim": 3}, [_normal(4, 3, 6), _normal(5, 3, 3), _normal(5, 3, 6)], {"need_weights": False}),
    ({"add_bias_kv": True}, [_normal(4, 3, 6), _normal(5, 3, 6), _normal(5, 3, 6)], {}),
    ({"add_zero_attn": True}, [_normal(4, 3, 6), _normal(5, 3, 6), _normal(5, 3, 6)], {"need_weights": False}),
    ({"add_bias_kv": True, "add_zero_attn": True}, [_normal(4, 3, 6), _normal(5, 3, 6), _normal(5, 3, 6)],
     {"key_padding_mask": _padding(3, 5), "attn_mask": _RNG.random((4, 5)) < 0.2}),
    ({"add_bias_kv": True}, [_normal(4, 3, 6), _normal(5, 3, 6), _normal(5, 3, 6)],
     {"key_padding_mask": _padding(3, 5), "need_weights": False, "attn_mask": _normal(4, 5)}),
    ({}, [_normal(4, 3, 6), _normal(5, 3, 6), _normal(5, 3, 6)], {"average_attn_weights": False}),
    ({}, [_normal(4, 3, 6), _normal(5, 3, 6), _normal(5, 3, 6)], {"key_padding_mask": _padding(3, 5)}),
    ({}, [_normal(4, 3, 6), _normal(5, 3, 6), _normal(5, 3, 6)],
     {"key_padding_mask": _padding(3, 5), "need_weights": False}),
    ({}, [_normal(4, 6), _normal(5, 6), _normal(5, 6)], {"key_padding_mask": _padding(1, 5)[0]}),
    ({}, [_normal(4, 3, 6), _normal(4, 3, 6), _normal(4, 3, 6)], {"attn_mask": _CAUSAL}),
    ({}, [_normal(4, 3, 6), _normal(4, 3, 6), _normal(4, 3, 6)],
     {"attn_mask": _CAUSAL, "is_causal": True, "need_weights": False}),
    ({}, [_normal(4, 3, 6), _normal(4, 3, 6), _normal(4, 3, 6)],
     {"attn_mask": _CAUSAL, "is_causal": True, "key_padding_mask": _padding(3, 4), "need_weights": False}),
    ({}, [_normal(4, 3, 6), _normal(5, 3, 6), _normal(5, 3, 6)],
     {"attn_mask": np.isin(np.arange(120) % 7, (0, 3)).reshape(6, 4, 5), "need_weights": False}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_attention(number):
    settings, inputs, call = CALLS[number]
    check_module("MultiheadAttention", (6, 2), settings, inputs, **_CLOSE, **call)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
def test_attention_of_a_sequence_to_itself(batch_first, need_weights):
    """One tensor for all three: a single projection, another record."""
    x = _normal(3, 4, 6)
    theirs = torch.nn.MultiheadAttention(6, 2, batch_first=batch_first).double()
    ours = wf.nn.MultiheadAttention(6, 2, batch_first=batch_first).double()
    ours.load_state_dict({key: value.numpy() for key, value in theirs.state_dict().items()})
    batch, length = (3, 4) if batch_first else (4, 3)
    mask, padding = np.triu(np.ones((length, length), bool), 1), np.zeros((batch, length), bool)
    padding[0, 1:] = True
    for masks in ({}, {"attn_mask": mask}, {"key_padding_mask": padding}, {"attn_mask": _normal(length, length)},
                  {"attn_mask": mask, "key_padding_mask": padding}):  # fmt: skip
        results = []
        for m, module in ((torch, theirs), (wf, ours)):
            t = m.tensor(x, requires_grad=True)
            module.zero_grad()
            given = {key: m.tensor(value) for key, value in masks.items()}
            out, weights = module(t, t, t, need_weights=need_weights, **given)
            loss = (out * m.tensor(np.cos(np.arange(72.0)).reshape(3, 4, 6))).sum()
            if need_weights:
                loss = loss + (weights * weights).sum()  # the weights have a gradient too
            loss.backward()
            results.append([out, t.grad, *(p.grad for p in module.parameters())] + [weights] * need_weights)
        for mine, wanted in zip(results[1], results[0], strict=True):
            np.testing.assert_allclose(mine.detach().numpy(), wanted.detach().numpy(), 1e-9, 1e-9)


def test_float_masks_have_a_gradient():
    x, mask = _normal(4, 3, 6), _normal(4, 4)
    theirs = torch.nn.MultiheadAttention(6, 2).double()
    ours = wf.nn.MultiheadAttention(6, 2).double()
    ours.load_state_dict({key: value.numpy() for key, value in theirs.state_dict().items()})
    for need_weights in (True, False):
        grads = []
        for m, module in ((torch, theirs), (wf, ours)):
            t, given = m.tensor(x), m.tensor(mask, requires_grad=True)
            module(t, t, t, attn_mask=given, need_weights=need_weights)[0].sum().backward()
            grads.append(given.grad.numpy())
        np.testing.assert_allclose(*grads, 1e-9, 1e-9)


LAYERS = [
    {}, {"batch_first": True}, {"norm_first": True}, {"activation": "gelu"}, {"bias": False},
    {"layer_norm_eps": 0.1, "norm_first": True, "batch_first": True},
]  # fmt: skip


@pytest.mark.parametrize("settings", LAYERS)
def test_encoder_layers(settings):
    settings = {"dropout": 0.0, **settings}
    shape = (3, 4, 6) if settings.get("batch_first") else (4, 3, 6)
    for call in ({}, {"src_mask": _CAUSAL}, {"src_mask": _CAUSAL, "is_causal": True},
                 {"src_key_padding_mask": _padding(3, 4)}):  # fmt: skip
        theirs = torch.nn.TransformerEncoderLayer(6, 2, 8, **settings)
        ours = wf.nn.TransformerEncoderLayer(6, 2, 8, **settings)
        # In evaluation PyTorch takes a way of its own past masked positions, so only training is compared with padding.
        check(theirs, ours, _normal(*shape).astype("float32"), rtol=2e-4, atol=2e-4, **call)


@pytest.mark.parametrize("settings", LAYERS)
def test_decoder_layers(settings):
    settings = {"dropout": 0.0, **settings}
    order = (1, 0, 2) if settings.get("batch_first") else (0, 1, 2)
    inputs = [_normal(4, 3, 6).transpose(order).astype("float32"), _normal(5, 3, 6).transpose(order).astype("float32")]
    for call in ({}, {"tgt_mask": _CAUSAL, "tgt_is_causal": True}, {"memory_key_padding_mask": _padding(3, 5)},
                 {"memory_mask": np.arange(20).reshape(4, 5) % 3 == 0, "tgt_mask": _CAUSAL}):  # fmt: skip
        theirs = torch.nn.TransformerDecoderLayer(6, 2, 8, **settings)
        ours = wf.nn.TransformerDecoderLayer(6, 2, 8, **settings)
        check(theirs, ours, *inputs, rtol=2e-4, atol=2e-4, **call)


def test_stacks_with_and_without_a_norm():
    for norm in (False, True):
        def stack(nn, norm=norm):
            layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, activation=nn.functional.gelu)
            return nn.TransformerEncoder(layer, 2, nn.LayerNorm(6) if norm else None, enable_nested_tensor=False)

        check(stack(torch.nn), stack(wf.nn), _normal(4, 3, 6).astype("float32"), rtol=2e-3, atol=2e-4,
              mask=np.where(_CAUSAL, -np.inf, 0).astype("float32"), is_causal=True)  # fmt: skip


@pytest.mark.parametrize("norm_first", [False, True])
def test_the_whole_transformer(norm_first):
    settings = {"dropout": 0.0, "norm_first": norm_first, "batch_first": True}
    theirs, ours = torch.nn.Transformer(6, 2, 1, 2, 8, **settings), wf.nn.Transformer(6, 2, 1, 2, 8, **settings)
    check(theirs, ours, _normal(3, 5, 6).astype("float32"), _normal(3, 4, 6).astype("float32"), rtol=2e-3, atol=3e-4,
          tgt_mask=_CAUSAL)  # fmt: skip
    mask = wf.nn.Transformer.generate_square_subsequent_mask(4)
    np.testing.assert_array_equal(mask.numpy(), torch.nn.Transformer.generate_square_subsequent_mask(4).numpy())


def test_signatures():
    import inspect

    assert_same_signature("MultiheadAttention")
    for name in ("TransformerEncoderLayer", "TransformerDecoderLayer", "Transformer", "TransformerEncoder",
                 "TransformerDecoder"):  # fmt: skip
        for method in ("__init__", "forward"):
            mine, theirs = (
                [(p.name, "function" if callable(p.default) and p.default is not p.empty else p.default)
                 for p in inspect.signature(getattr(getattr(m.nn, name), method)).parameters.values()]
                for m in (wf, torch)
            )  # fmt: skip
            assert mine == theirs


def test_first_values():
    check_initialisation("MultiheadAttention", (20, 2))
    check_initialisation("MultiheadAttention", (20, 2), {"kdim": 30, "vdim": 25, "bias": False})
    check_initialisation("TransformerDecoderLayer", (24, 2, 40), {"bias": False})
    check_initialisation("Transformer", (24, 2, 1, 1, 40), {"bias": False})


def test_what_is_refused():
    for bad in (lambda nn: nn.MultiheadAttention(7, 2), lambda nn: nn.MultiheadAttention(0, 1)):
        with pytest.raises((ValueError, AssertionError)):
            bad(torch.nn)
        with pytest.raises(ValueError, match="MultiheadAttention: "):
            bad(wf.nn)

    def with_mask(m, **masks):
        x = m.ones(4, 3, 6)
        return m.nn.MultiheadAttention(6, 2)(x, x, x, **{key: m.tensor(mask) for key, mask in masks.items()})

    for masks, words in (
        ({"attn_mask": np.ones((3, 4), bool)}, r"attn_mask bool\[3,4\] must be \[4, 4\] or \[6, 4, 4\]"),
        ({"attn_mask": np.ones((2, 4, 4), bool)}, r"attn_mask bool\[2,4,4\] must be \[4, 4\] or \[6, 4, 4\]"),
        ({"key_padding_mask": np.ones((3, 5), bool)}, r"key_padding_mask bool\[3,5\] must be \[3, 4\]"),
        ({"attn_mask": np.ones((4, 4), np.int64)}, r"attn_mask must be of bool .* not i64\[4,4\]"),
    ):
        with pytest.raises((RuntimeError, AssertionError)):
            with_mask(torch, **masks)
        with pytest.raises(RuntimeError, match=words):
            with_mask(wf, **masks)
    both_refuse(lambda: torch.nn.TransformerEncoderLayer(6, 2, activation="tanh"),
                lambda: wf.nn.TransformerEncoderLayer(6, 2, activation="tanh"))  # fmt: skip


def test_queries_that_see_nothing_get_zeros():
    """PyTorch gives NaN where the weights are wanted, and zeros where they are not; here it is zeros either way."""
    x = _normal(4, 1, 6)
    theirs, ours = torch.nn.MultiheadAttention(6, 2).double(), wf.nn.MultiheadAttention(6, 2).double()
    ours.load_state_dict({key: value.numpy() for key, value in theirs.state_dict().items()})
    mask = np.zeros((4, 4), bool)
    mask[2] = True
    t, u = torch.tensor(x), wf.tensor(x)
    wanted = theirs(t, t, t, attn_mask=torch.tensor(mask), need_weights=False)[0].detach().numpy()
    for need_weights in (True, False):
        out, weights = ours(u, u, u, attn_mask=wf.tensor(mask), need_weights=need_weights)
        np.testing.assert_allclose(out.detach().numpy(), wanted, 1e-9, 1e-9)
        assert weights is None or (weights[0, 2] == 0).all()


def test_functional_form():
    x = _normal(4, 3, 6)
    module = torch.nn.MultiheadAttention(6, 2).double()
    results = []
    for m in (torch, wf):
        p = {key: m.tensor(value.numpy()) for key, value in module.state_dict().items()}
        t = m.tensor(x)
        out, weights = m.nn.functional.multi_head_attention_forward(
            t, t, t, 6, 2, p["in_proj_weight"], p["in_proj_bias"], None, None, False, 0.0, p["out_proj.weight"],
            p["out_proj.bias"], training=False, is_causal=False,
        )  # fmt: skip
        results.append((out.numpy(), weights.numpy()))
    for mine, wanted in zip(results[1], results[0], strict=True):
        np.testing.assert_allclose(mine, wanted, 1e-9, 1e-9)
    assert math.isclose(results[1][1].sum(), 12.0)
