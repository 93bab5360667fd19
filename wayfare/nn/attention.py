"""MultiheadAttention: several attentions side by side, each on its part of the features."""

from __future__ import annotations

from typing import Any

from wayfare.api.functions.creation import empty
from wayfare.core.errors import ArgumentError, RequirementError, ShapeError
from wayfare.core.tensor import Tensor
from wayfare.nn.functional.attention import scaled_dot_product_attention, self_attention
from wayfare.nn.functional.linear import linear
from wayfare.nn.functional.multi_head import attend
from wayfare.nn.functional.ragged_attention import by_length, check_ragged, is_ragged
from wayfare.nn.init import xavier_normal_, xavier_uniform_, zeros_
from wayfare.nn.linear import Linear
from wayfare.nn.module import Module
from wayfare.nn.parameter import Parameter

__all__ = ["MultiheadAttention"]


class NonDynamicallyQuantizableLinear(Linear):
    """A `Linear` under the name that PyTorch shows for the last projection of attention."""


class MultiheadAttention(Module):
    """`num_heads` attentions side by side, each on its share of `embed_dim` features.

    Queries, keys and values are projected (keys from `kdim` and values from `vdim` features, if those differ), each
    head attends, and the result is projected. `dropout` drops weights in training; `add_bias_kv` adds a
    learnt key and value to each sequence, `add_zero_attn` one of zeros. With `batch_first` sequences are [N, L, E],
    else [L, N, E]; a single one is [L, E].
    """

    in_proj_weight: Parameter | None
    q_proj_weight: Parameter | None
    k_proj_weight: Parameter | None
    v_proj_weight: Parameter | None
    in_proj_bias: Parameter | None
    bias_k: Parameter | None
    bias_v: Parameter | None

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
        add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        if embed_dim <= 0 or num_heads <= 0:
            raise ArgumentError("MultiheadAttention: embed_dim and num_heads must be positive, they are "
                                f"{embed_dim} and {num_heads}")  # fmt: skip
        if embed_dim % num_heads:
            raise RequirementError(f"MultiheadAttention: {embed_dim} features cannot be shared among {num_heads} heads",
                                   fix="Make embed_dim a multiple of num_heads.")  # fmt: skip
        super().__init__()
        self.embed_dim = embed_dim
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.num_heads = num_heads
        self.dropout = dropout
        self.batch_first = batch_first
        self.head_dim = embed_dim // num_heads
        self.add_zero_attn = add_zero_attn
        one = self.kdim == embed_dim and self.vdim == embed_dim

        def learnt(*shape: int) -> Parameter:
            return Parameter(empty(*shape, device=device, dtype=dtype))

        self.register_parameter("in_proj_weight", learnt(3 * embed_dim, embed_dim) if one else None)
        self.register_parameter("q_proj_weight", None if one else learnt(embed_dim, embed_dim))
        self.register_parameter("k_proj_weight", None if one else learnt(embed_dim, self.kdim))
        self.register_parameter("v_proj_weight", None if one else learnt(embed_dim, self.vdim))
        self.register_parameter("in_proj_bias", learnt(3 * embed_dim) if bias else None)
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.register_parameter("bias_k", learnt(1, 1, embed_dim) if add_bias_kv else None)
        self.register_parameter("bias_v", learnt(1, 1, embed_dim) if add_bias_kv else None)
        self._reset_parameters()

    def _reset_parameters(self) -> None:
        for weight in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if weight is not None:
                xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            zeros_(self.in_proj_bias)
            assert self.out_proj.bias is not None
            zeros_(self.out_proj.bias)
        for extra in (self.bias_k, self.bias_v):
            if extra is not None:
                xavier_normal_(extra)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None,
        need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """The output, of the query's shape, and the weights [N, L, S] (or [N, heads, L, S], or None).

        `key_padding_mask` [N, S] and `attn_mask` [L, S] or [N * heads, L, S] hide keys where they are True; those of a
        floating-point dtype are added to the scores. `is_causal` promises that `attn_mask`, which may then be left
        out, is the causal one. Without `need_weights` it is faster. Queries that may look at nothing get zeros.

        Ragged sequences need no mask and give ragged ones, without weights.
        """
        if is_ragged(query):
            return self._within_rows(query, key, value, key_padding_mask, attn_mask, is_causal), None
        return attend(
            query, key, value, self.embed_dim, self.num_heads, self._weights(), self.in_proj_bias,
            (self.bias_k, self.bias_v), self.add_zero_attn, self.dropout if self.training else 0.0,
            self.out_proj.weight, self.out_proj.bias, key_padding_mask=key_padding_mask, need_weights=need_weights,
            attn_mask=attn_mask, average_attn_weights=average_attn_weights, is_causal=is_causal,
            batch_first=self.batch_first,
        )  # fmt: skip

    def _weights(self) -> Any:
        if self.in_proj_weight is not None:
            return self.in_proj_weight
        return self.q_proj_weight, self.k_proj_weight, self.v_proj_weight

    def _within_rows(
        self, query: Any, key: Any, value: Any, key_padding_mask: Any, attn_mask: Any, is_causal: bool
    ) -> Any:
        """Rows of different lengths, those of one length together."""
        name = "MultiheadAttention"
        check_ragged(name, query, key, value, key_padding_mask=key_padding_mask, attn_mask=attn_mask)
        if query.values.ndim != 2 or query.values.shape[-1] != self.embed_dim:
            raise ShapeError(f"{name}: a ragged query needs values [total, {self.embed_dim}], not {query.values.spec}")
        if self.bias_k is not None or self.add_zero_attn:
            raise ArgumentError(f"{name}: add_bias_kv and add_zero_attn are not there for ragged sequences")
        drops = self.dropout if self.training else 0.0
        if query is key and key is value and self.in_proj_weight is not None:
            projected = linear(query.values, self.in_proj_weight, self.in_proj_bias)
            packed = projected.reshape(-1, 3, self.num_heads, self.head_dim)
            found = by_length(lambda x: self_attention(x, None, drops, is_causal), (packed, query.offsets))
        else:
            weights = self._weights()
            weights = weights.chunk(3, 0) if isinstance(weights, Tensor) else weights
            biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3, 0)
            parts = [
                (linear(x.values, w, b).reshape(-1, self.num_heads, self.head_dim), x.offsets)
                for x, w, b in zip((query, key, value), weights, biases, strict=True)
            ]
            found = by_length(lambda q, k, v: _from_others(q, k, v, drops, is_causal), *parts)
        out = self.out_proj(found.reshape(-1, self.embed_dim))
        return query.map_values(lambda _: out)


def _from_others(q: Tensor, k: Tensor, v: Tensor, dropout_p: float, is_causal: bool) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return scaled_dot_product_attention(q, k, v, None, dropout_p, is_causal).transpose(1, 2)
