"""Multi-head attention: projections into heads, attention in each head, and a projection of the result."""

from __future__ import annotations

import math
from typing import Any

from wayfare.api.functions._along import check_tensor
from wayfare.api.functions._public import as_dtype_of
from wayfare.api.functions.elementwise import where
from wayfare.api.functions.join import cat
from wayfare.api.functions.matmul import matmul
from wayfare.api.functions.softmax import softmax
from wayfare.core.dispatch import apply
from wayfare.core.errors import DTypeError, RequirementError, ShapeError
from wayfare.core.op import REGISTRY
from wayfare.core.spec import bool_
from wayfare.core.tensor import Tensor
from wayfare.nn.functional.attention import attention_settings, scaled_dot_product_attention, self_attention
from wayfare.nn.functional.dropout import dropout
from wayfare.nn.functional.linear import linear
from wayfare.nn.functional.pad import pad

__all__ = ["multi_head_attention_forward"]

_OP = "multi_head_attention"


def multi_head_attention_forward(
    query: Tensor, key: Tensor, value: Tensor, embed_dim_to_check: int, num_heads: int, in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None, bias_k: Tensor | None, bias_v: Tensor | None, add_zero_attn: bool, dropout_p: float,
    out_proj_weight: Tensor, out_proj_bias: Tensor | None, training: bool = True,
    key_padding_mask: Tensor | None = None, need_weights: bool = True, attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False, q_proj_weight: Tensor | None = None, k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None, static_k: Tensor | None = None, static_v: Tensor | None = None,
    average_attn_weights: bool = True, is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """What `nn.MultiheadAttention` computes, with its parameters given one by one; positions come before the batch."""
    separate = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else None
    return attend(
        query, key, value, embed_dim_to_check, num_heads, in_proj_weight if separate is None else separate,
        in_proj_bias, (bias_k, bias_v), add_zero_attn, dropout_p if training else 0.0, out_proj_weight, out_proj_bias,
        key_padding_mask=key_padding_mask, need_weights=need_weights, attn_mask=attn_mask, static=(static_k, static_v),
        average_attn_weights=average_attn_weights, is_causal=is_causal, batch_first=False,
    )  # fmt: skip


def attend(
    query: Tensor, key: Tensor, value: Tensor, features: int, heads: int, weight: Any, bias: Tensor | None,
    extra: tuple[Tensor | None, Tensor | None], add_zero_attn: bool, dropout_p: float, out_weight: Tensor,
    out_bias: Tensor | None, *, key_padding_mask: Tensor | None, need_weights: bool, attn_mask: Tensor | None,
    average_attn_weights: bool, is_causal: bool, batch_first: bool,
    static: tuple[Tensor | None, Tensor | None] = (None, None),
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The output, like the query, and the weights if they are wanted.

    `weight` is one matrix for queries, keys and values below each other, or three. Inputs are [N, L, E] with
    `batch_first`, else [L, N, E], or [L, E] without a batch. Queries that may look at nothing get zeros.
    """
    single = query.ndim == 2
    _check_inputs(query, key, value, features, heads, batch_first)
    same = query is key and key is value
    if single:  # A batch of one, and then it does not matter where its dimension stands.
        batch_first = True
        query, key, value = (query.unsqueeze(0),) * 3 if same else (t.unsqueeze(0) for t in (query, key, value))
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    batch, queries = (query.shape[0], query.shape[1]) if batch_first else (query.shape[1], query.shape[0])
    width = features // heads
    keys = static[0].shape[1] if static[0] is not None else key.shape[1 if batch_first else 0]
    mask, is_causal = _mask(attn_mask, key_padding_mask, batch, heads, queries, keys, query, is_causal, need_weights)
    plain = extra[0] is None and static == (None, None) and not add_zero_attn
    if same and isinstance(weight, Tensor) and plain and not need_weights:
        packed = linear(query, weight, bias).reshape(*query.shape[:2], 3, heads, width)
        if not batch_first:
            packed = packed.permute(1, 0, 2, 3, 4)
        found = self_attention(packed, mask, dropout_p, is_causal)
        weights = None
    else:
        q, k, v = _projected(query, key, value, weight, bias, same)
        q = _in_heads(q, heads, batch_first)
        k, v = (_with_more(t, static[i], extra[i], add_zero_attn, batch, heads, width, batch_first)
                for i, t in enumerate((k, v)))  # fmt: skip
        mask = _longer(mask, k.shape[2])
        if need_weights:
            found, weights = _with_weights(q, k, v, mask, dropout_p, is_causal)
            if average_attn_weights:
                weights = weights.mean(1)
            weights = weights.squeeze(0) if single else weights
        else:
            found = _of_record(q, k, v, mask, dropout_p, is_causal)
            weights = None
        found = found.transpose(1, 2)
    if not batch_first:
        found = found.transpose(0, 1)
    out = linear(found.reshape(*found.shape[:2], features), out_weight, out_bias)
    return out.squeeze(0) if single else out, weights


def _check_inputs(query: Tensor, key: Tensor, value: Tensor, features: int, heads: int, batch_first: bool) -> None:
    for t in (query, key, value):
        check_tensor(_OP, t)
    shape = "[N, L, E]" if batch_first else "[L, N, E]"
    if query.ndim not in (2, 3) or not query.ndim == key.ndim == value.ndim:
        raise ShapeError(f"{_OP}: query {query.spec}, key {key.spec} and value {value.spec} must all be {shape}, "
                         "or all [L, E]")  # fmt: skip
    if query.shape[-1] != features:
        raise RequirementError(f"{_OP}: the query {query.spec} has {query.shape[-1]} features, not {features}")
    if key.shape[:-1] != value.shape[:-1]:
        raise ShapeError(f"{_OP}: key {key.spec} and value {value.spec} must have the same batch and positions")
    at = 0 if batch_first else 1
    if query.ndim == 3 and query.shape[at] != key.shape[at]:
        raise ShapeError(f"{_OP}: query {query.spec} and key {key.spec} have different batches",
                         fix=f"With batch_first={batch_first} they are {shape}.")  # fmt: skip
    if heads <= 0 or features % heads:
        raise RequirementError(f"{_OP}: {features} features cannot be shared among {heads} heads")


# -- projections --------------------------------------------------------------------------------------------------


def _projected(query: Tensor, key: Tensor, value: Tensor, weight: Any, bias: Tensor | None, same: bool) -> Any:
    """Queries, keys and values, each by its part of the projection."""
    if isinstance(weight, Tensor):
        if same:
            return linear(query, weight, bias).chunk(3, -1)
        weights = weight.chunk(3, 0)
    else:
        weights = weight
    biases = (None, None, None) if bias is None else bias.chunk(3, 0)
    return [linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True)]


def _in_heads(x: Tensor, heads: int, batch_first: bool) -> Tensor:
    """[N, L, E] or [L, N, E] → [N, heads, L, E / heads], as a view."""
    parts = x.reshape(*x.shape[:2], heads, -1)
    return parts.permute(0, 2, 1, 3) if batch_first else parts.permute(1, 2, 0, 3)


def _with_more(
    x: Tensor, static: Tensor | None, extra: Tensor | None, add_zero: bool, batch: int, heads: int, width: int,
    batch_first: bool,
) -> Tensor:  # fmt: skip
    """Keys or values in heads; on request with a learnt one and one of zeros at the end."""
    if static is not None:
        if tuple(static.shape[::2]) != (batch * heads, width):
            raise ShapeError(f"{_OP}: static keys and values are [{batch * heads}, L, {width}], not {static.spec}")
        x = static.reshape(batch, heads, -1, width)
    else:
        x = _in_heads(x, heads, batch_first)
    if extra is not None:
        x = cat([x, extra.reshape(1, heads, 1, width).expand(batch, heads, 1, width)], 2)
    return cat([x, x.new_zeros(batch, heads, 1, width)], 2) if add_zero else x


# -- masks --------------------------------------------------------------------------------------------------------


def _mask(
    attn_mask: Tensor | None, padding: Tensor | None, batch: int, heads: int, queries: int, keys: int, query: Tensor,
    is_causal: bool, need_weights: bool,
) -> tuple[Tensor | None, bool]:  # fmt: skip
    """Both masks as one that broadcasts against [N, heads, L, S]: bool where a key is seen, or numbers to be added.

    `is_causal` promises that the mask is the causal one, which is then not looked at.
    """
    if attn_mask is not None:
        _check_mask("attn_mask", attn_mask, query)
        wanted = ((queries, keys), (batch * heads, queries, keys))
        if tuple(attn_mask.shape) not in wanted:
            raise ShapeError(f"{_OP}: attn_mask {attn_mask.spec} must be {list(wanted[0])} or {list(wanted[1])}")
        if is_causal and padding is None and not need_weights:
            attn_mask = None
        else:
            is_causal = False
            if attn_mask.ndim == 3:
                attn_mask = attn_mask.reshape(batch, heads, queries, keys)
    if padding is not None:
        _check_mask("key_padding_mask", padding, query)
        if tuple(padding.shape) != (batch, keys):
            raise ShapeError(f"{_OP}: key_padding_mask {padding.spec} must be {[batch, keys]}: one value for each key")
        padding = padding.reshape(batch, 1, 1, keys)
    given = [mask for mask in (attn_mask, padding) if mask is not None]
    if not given:
        return None, is_causal
    if all(mask.dtype is bool_ for mask in given):  # True hides a key.
        hidden = given[0] if len(given) == 1 else given[0] | given[1]
        return ~hidden, is_causal
    numbers = [where(mask, -math.inf, 0.0) if mask.dtype is bool_ else mask for mask in given]
    numbers = [as_dtype_of(mask, query.dtype) for mask in numbers]
    return numbers[0] if len(numbers) == 1 else numbers[0] + numbers[1], is_causal


def _check_mask(name: str, mask: Tensor, query: Tensor) -> None:
    check_tensor(_OP, mask)
    if mask.dtype is not bool_ and not mask.dtype.is_floating_point:
        raise DTypeError(f"{_OP}: {name} must be of bool (True: do not look) or of a floating-point dtype (added to "
                         f"the scores), not {mask.spec}", fix="Convert it with .bool().")  # fmt: skip


def _longer(mask: Tensor | None, keys: int) -> Tensor | None:
    """A mask for the keys that were added, which all may look at."""
    if mask is None or mask.shape[-1] in (1, keys):
        return mask
    more = keys - mask.shape[-1]
    if mask.dtype is bool_:
        return ~pad(~mask, (0, more))
    return pad(mask, (0, more))


# -- attention in each head ---------------------------------------------------------------------------------------


def _of_record(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool) -> Tensor:
    if mask is None or not is_causal:
        return scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal)
    attrs = attention_settings(q.shape[-1], None, True, dropout_p)
    return apply(REGISTRY["attention"], (q, k, v, mask), attrs)[0]  # type: ignore[no-any-return]


def _with_weights(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, is_causal: bool
) -> tuple[Tensor, Tensor]:
    """Step by step, because the weights are a result too, with a gradient of their own."""
    scores = matmul(q * (1 / math.sqrt(q.shape[-1])), k.transpose(-2, -1))
    seen = None
    if is_causal:
        seen = scores.detach().new_ones(scores.shape[-2:], dtype=bool_).tril()
    if mask is not None and mask.dtype is bool_:
        seen = mask if seen is None else seen & mask
    elif mask is not None:
        scores = scores + mask
    if seen is not None:
        scores = where(seen, scores, -math.inf)
    if seen is not None or mask is not None:
        # The softmax of a row of -inf only is NaN, and so is its gradient: such rows get zeros, past the softmax.
        nothing = scores.detach().amax(-1, keepdim=True) == -math.inf
        weights = where(nothing, 0.0, softmax(where(nothing, 0.0, scores), -1))
    else:
        weights = softmax(scores, -1)
    if dropout_p:
        weights = dropout(weights, dropout_p)
    return matmul(weights, v), weights
