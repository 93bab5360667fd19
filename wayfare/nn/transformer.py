"""Transformers: layers of attention and feed-forward networks, stacks of them, and the model of both."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import wayfare.nn.functional as F
from wayfare.api.functions.creation import full
from wayfare.core.errors import OperationError, ShapeError
from wayfare.core.tensor import Tensor
from wayfare.nn.attention import MultiheadAttention
from wayfare.nn.containers import ModuleList
from wayfare.nn.dropout import Dropout
from wayfare.nn.functional.ragged_attention import is_ragged
from wayfare.nn.init import xavier_uniform_
from wayfare.nn.linear import Linear
from wayfare.nn.module import Module
from wayfare.nn.normalization import LayerNorm

__all__ = [
    "Transformer", "TransformerEncoder", "TransformerDecoder", "TransformerEncoderLayer", "TransformerDecoderLayer",
]  # fmt: skip

Activation = str | Callable[[Tensor], Tensor]


def _as_function(activation: Activation) -> Callable[[Tensor], Tensor]:
    if not isinstance(activation, str):
        return activation
    if activation not in ("relu", "gelu"):
        raise OperationError(f"transformer: activation is 'relu', 'gelu' or a function, not {activation!r}")
    return F.relu if activation == "relu" else F.gelu


def _normed(norm: Module | None, x: Any) -> Any:
    if norm is None:
        return x
    return x.map_values(norm) if is_ragged(x) else norm(x)


# -- one layer ----------------------------------------------------------------------------------------------------


class _Layer(Module):
    """What layers of both kinds share: attention of a sequence to itself, and the feed-forward part."""

    self_attn: MultiheadAttention
    multihead_attn: MultiheadAttention
    norm1: LayerNorm
    norm2: LayerNorm
    norm3: LayerNorm
    dropout1: Dropout
    dropout2: Dropout
    dropout3: Dropout
    activation: Callable[[Tensor], Tensor]
    _attentions: tuple[str, ...]

    def __init__(
        self, d_model: int, nhead: int, dim_feedforward: int = 2048, dropout: float = 0.1,
        activation: Activation = F.relu, layer_norm_eps: float = 1e-5, batch_first: bool = False,
        norm_first: bool = False, bias: bool = True, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        new: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        # In PyTorch's order: each attention, and the feed-forward part, has its norm and dropout.
        for name in self._attentions:
            attention = MultiheadAttention(d_model, nhead, dropout=dropout, batch_first=batch_first, **new)
            self.add_module(name, attention)
        self.linear1 = Linear(d_model, dim_feedforward, **new)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, **new)
        self.norm_first = norm_first
        parts = range(1, len(self._attentions) + 2)
        for part in parts:
            self.add_module(f"norm{part}", LayerNorm(d_model, eps=layer_norm_eps, **new))
        for part in parts:
            self.add_module(f"dropout{part}", Dropout(dropout))
        self.activation = _as_function(activation)

    def _attend(
        self, attention: MultiheadAttention, x: Tensor, others: Tensor, attn_mask: Tensor | None,
        key_padding_mask: Tensor | None, is_causal: bool,
    ) -> Tensor:  # fmt: skip
        found, _ = attention(
            x, others, others, attn_mask=attn_mask, key_padding_mask=key_padding_mask, is_causal=is_causal,
            need_weights=False,
        )  # fmt: skip
        return found

    def _feed_forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(_Layer):
    """Attention of a sequence to itself, then a feed-forward network for each position; both are residual.

    `norm_first` normalises what goes into each part, else what comes out. Sequences are [L, N, d_model], with
    `batch_first` [N, L, d_model], single ones [L, d_model], or ragged.
    """

    _attentions = ("self_attn",)

    def forward(
        self, src: Tensor, src_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """The shape stays. Masks are those of `MultiheadAttention`."""

        def attended(x: Tensor) -> Tensor:
            return self.dropout1(self._attend(
                self.self_attn, x, x, src_mask, src_key_padding_mask, is_causal))  # fmt: skip

        def attended_in_rows(x: Tensor) -> Tensor:
            rows: Any = src
            rows = rows.map_values(lambda _: x)
            found: Any = self._attend(self.self_attn, rows, rows, src_mask, src_key_padding_mask, is_causal)
            return self.dropout1(found.values)

        if is_ragged(src):
            return src.map_values(lambda x: self._run(x, attended_in_rows))  # type: ignore[attr-defined, no-any-return]
        return self._run(src, attended)

    def _run(self, x: Tensor, attended: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_first:
            x = x + attended(self.norm1(x))
            return x + self.dropout2(self._feed_forward(self.norm2(x)))
        x = self.norm1(x + attended(x))
        return self.norm2(x + self.dropout2(self._feed_forward(x)))


class TransformerDecoderLayer(_Layer):
    """Attention of a sequence to itself, attention to another (the memory), then a feed-forward network.

    Shapes and settings are those of `TransformerEncoderLayer`.
    """

    _attentions = ("self_attn", "multihead_attn")

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False, memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """The shape of `tgt` stays. Masks are those of `MultiheadAttention`, `memory_…` for looking at the memory."""

        def to_itself(x: Tensor) -> Tensor:
            return self.dropout1(self._attend(
                self.self_attn, x, x, tgt_mask, tgt_key_padding_mask, tgt_is_causal))  # fmt: skip

        def to_memory(x: Tensor) -> Tensor:
            return self.dropout2(self._attend(
                self.multihead_attn, x, memory, memory_mask, memory_key_padding_mask, memory_is_causal))  # fmt: skip

        x = tgt
        if self.norm_first:
            x = x + to_itself(self.norm1(x))
            x = x + to_memory(self.norm2(x))
            return x + self.dropout3(self._feed_forward(self.norm3(x)))
        x = self.norm1(x + to_itself(x))
        x = self.norm2(x + to_memory(x))
        return self.norm3(x + self.dropout3(self._feed_forward(x)))


# -- stacks of layers ---------------------------------------------------------------------------------------------


class TransformerEncoder(Module):
    """`num_layers` copies of a layer one after the other, and a norm at the end if there is one.

    `enable_nested_tensor` and `mask_check` are accepted: sequences without padding are ragged here.
    """

    norm: Module | None

    def __init__(
        self, encoder_layer: TransformerEncoderLayer, num_layers: int, norm: Module | None = None,
        enable_nested_tensor: bool = True, mask_check: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.layers = ModuleList(copy.deepcopy(encoder_layer) for _ in range(num_layers))
        self.num_layers = num_layers
        self.norm = norm
        self.enable_nested_tensor = enable_nested_tensor
        self.mask_check = mask_check

    def forward(
        self, src: Tensor, mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:  # fmt: skip
        """The shape stays."""
        x = src
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=bool(is_causal), src_key_padding_mask=src_key_padding_mask)
        return _normed(self.norm, x)  # type: ignore[no-any-return]


class TransformerDecoder(Module):
    """`num_layers` copies of a layer one after the other, and a norm at the end if there is one."""

    norm: Module | None

    def __init__(self, decoder_layer: TransformerDecoderLayer, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = ModuleList(copy.deepcopy(decoder_layer) for _ in range(num_layers))
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self, tgt: Tensor, memory: Tensor, tgt_mask: Tensor | None = None, memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None, memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """The shape of `tgt` stays."""
        x = tgt
        for layer in self.layers:
            x = layer(
                x, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=bool(tgt_is_causal),
                memory_is_causal=memory_is_causal,
            )  # fmt: skip
        return _normed(self.norm, x)  # type: ignore[no-any-return]


class Transformer(Module):
    """An encoder, and a decoder that attends to its output: from a source sequence and a partial target to a target.

    `custom_encoder` and `custom_decoder` take the places of the two.
    """

    encoder: Any
    decoder: Any

    def __init__(
        self, d_model: int = 512, nhead: int = 8, num_encoder_layers: int = 6, num_decoder_layers: int = 6,
        dim_feedforward: int = 2048, dropout: float = 0.1, activation: Activation = F.relu, custom_encoder: Any = None,
        custom_decoder: Any = None, layer_norm_eps: float = 1e-5, batch_first: bool = False, norm_first: bool = False,
        bias: bool = True, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        layer = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias)
        new: dict[str, Any] = {"device": device, "dtype": dtype}

        def norm() -> LayerNorm:
            return LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **new)

        if custom_encoder is None:
            custom_encoder = TransformerEncoder(TransformerEncoderLayer(*layer, **new), num_encoder_layers, norm())
        self.encoder = custom_encoder
        if custom_decoder is None:
            custom_decoder = TransformerDecoder(TransformerDecoderLayer(*layer, **new), num_decoder_layers, norm())
        self.decoder = custom_decoder
        self._reset_parameters()
        self.d_model = d_model
        self.nhead = nhead
        self.batch_first = batch_first

    def _reset_parameters(self) -> None:
        for parameter in self.parameters():
            if parameter.ndim > 1:
                xavier_uniform_(parameter)

    def forward(
        self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None, src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None, memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None, tgt_is_causal: bool | None = None, memory_is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """Source [S, N, d_model] and target [T, N, d_model] (batch first if asked, or without a batch) to the target's
        shape. Give `tgt_mask=generate_square_subsequent_mask(T)` so that no position looks ahead."""
        at = 0 if self.batch_first else 1
        if src.ndim == 3 and tgt.ndim == 3 and src.shape[at] != tgt.shape[at]:
            raise ShapeError(f"Transformer: source {src.spec} and target {tgt.spec} have different batches")
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise ShapeError(f"Transformer: source {src.spec} and target {tgt.spec} must have {self.d_model} features")
        memory = self.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal)
        return self.decoder(  # type: ignore[no-any-return]
            tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )  # fmt: skip

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Tensor:
        """The causal mask [sz, sz]: -inf where a position would look ahead, 0 elsewhere."""
        return full((sz, sz), -math.inf, device=device, dtype=dtype).triu(1)
