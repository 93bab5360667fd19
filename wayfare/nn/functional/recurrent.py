"""Recurrent layers over packed sequences: one direction of one layer in one step of the graph.

Sequences are packed in order of time, the longest first, as in a `PackedSequence`: `batch_sizes[t]` rows of `input`
[rows, features] belong to step t. States are [sequences, hidden]; sequences beyond `batch_sizes[0]` are empty and keep
theirs. With `reverse` each sequence is read from its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wayfare.api.functions._along import check_tensor
from wayfare.core.dispatch import apply
from wayfare.core.errors import ArgumentError
from wayfare.core.op import REGISTRY
from wayfare.core.tensor import Tensor

__all__ = ["gru_sequence", "lstm_sequence", "rnn_sequence"]


def _applied(
    op: str, input: Tensor, states: tuple[Tensor, ...], weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor | None,
    bias_hh: Tensor | None, batch_sizes: Sequence[int], reverse: bool,
) -> Any:  # fmt: skip
    for t in (input, *states, weight_ih, weight_hh):
        check_tensor(op, t)
    biases = tuple([weight_ih.new_zeros(weight_ih.shape[0]) if b is None else b for b in (bias_ih, bias_hh)])
    attrs = {"sizes": tuple(batch_sizes), "reverse": reverse}
    return apply(REGISTRY[op], (input, *states, weight_ih, weight_hh, *biases), attrs)


def lstm_sequence(
    input: Tensor, h: Tensor, c: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None, *, batch_sizes: Sequence[int], reverse: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """A long short-term memory: the outputs [rows, hidden], and the final h and c. Gates stand as input, forget, cell,
    output in the weights [4·hidden, …]."""
    made = _applied("lstm_sequence", input, (h, c), weight_ih, weight_hh, bias_ih, bias_hh, batch_sizes, reverse)
    return made[0], made[1], made[2]


def lstm_states(
    input: Tensor, h: Tensor, c: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor | None,
    bias_hh: Tensor | None, *, batch_sizes: Sequence[int],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The h and the c after every row, each [rows, hidden]."""
    made = _applied("lstm_sequence", input, (h, c), weight_ih, weight_hh, bias_ih, bias_hh, batch_sizes, False)
    return made[0], made[-1]


def gru_sequence(
    input: Tensor, h: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None, *, batch_sizes: Sequence[int], reverse: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A gated recurrent unit: the outputs [rows, hidden], and the final h. Gates stand as reset, update, new in the
    weights [3·hidden, …]."""
    made = _applied("gru_sequence", input, (h,), weight_ih, weight_hh, bias_ih, bias_hh, batch_sizes, reverse)
    return made[0], made[1]


def rnn_sequence(
    input: Tensor, h: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor | None = None,
    bias_hh: Tensor | None = None, *, batch_sizes: Sequence[int], reverse: bool = False, nonlinearity: str = "tanh",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A plain recurrence with `"tanh"` or `"relu"`: the outputs [rows, hidden], and the final h."""
    if nonlinearity not in ("tanh", "relu"):
        raise ArgumentError(f"rnn_sequence: nonlinearity must be 'tanh' or 'relu', it is {nonlinearity!r}")
    op = f"rnn_{nonlinearity}_sequence"
    made = _applied(op, input, (h,), weight_ih, weight_hh, bias_ih, bias_hh, batch_sizes, reverse)
    return made[0], made[1]
