"""Recurrent cells: one step for a batch of states. Two products with BLAS, and one kernel for all the rest."""

from __future__ import annotations

import math
from typing import Any

from wayfare.api.autocast import is_autocast_enabled
from wayfare.api.functions.creation import empty, zeros
from wayfare.api.fused import fused
from wayfare.core.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from wayfare.core.tensor import Tensor
from wayfare.nn.functional.linear import linear
from wayfare.nn.functional.recurrent import gru_sequence, lstm_states, rnn_sequence
from wayfare.nn.init import uniform_
from wayfare.nn.module import Module
from wayfare.nn.one_call import one_call_of_a_cell
from wayfare.nn.parameter import Parameter
from wayfare.nn.shown_options import differing

__all__ = ["RNNCellBase", "RNNCell", "LSTMCell", "GRUCell"]


# -- the element-wise part ---------------------------------------------------------------------------------------------


@fused
def lstm_gates(x: Tensor, a: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """The next h and c, from the projections of input and state (gates input, forget, cell, output) and the last c."""
    i, f, g, o = (of_x + of_a for of_x, of_a in zip(x.chunk(4, -1), a.chunk(4, -1), strict=True))
    after = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * after.tanh(), after


@fused
def gru_gates(x: Tensor, a: Tensor, h: Tensor) -> Tensor:
    """The next h, from the projections of input and state (gates reset, update, new) and the last h."""
    (xr, xz, xn), (ar, az, an) = x.chunk(3, -1), a.chunk(3, -1)
    new = (xn + (xr + ar).sigmoid() * an).tanh()
    return new + (xz + az).sigmoid() * (h - new)  # type: ignore[no-any-return]


@fused
def _tanh_of_sum(x: Tensor, a: Tensor) -> Tensor:
    return (x + a).tanh()


@fused
def _relu_of_sum(x: Tensor, a: Tensor) -> Tensor:
    return (x + a).relu()


# -- many steps of many sequences, for automatic batching -----------------------------------------------------------


def _weights(cell: Any) -> tuple[Any, ...]:
    return cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh


def _rnn_steps(cell: Any, rows: Tensor, states: Any, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return rnn_sequence(rows, *states, *_weights(cell), batch_sizes=sizes, nonlinearity=cell.nonlinearity)[:1]


def _lstm_steps(cell: Any, rows: Tensor, states: Any, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return lstm_states(rows, *states, *_weights(cell), batch_sizes=sizes)


def _gru_steps(cell: Any, rows: Tensor, states: Any, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return gru_sequence(rows, *states, *_weights(cell), batch_sizes=sizes)[:1]


# -- cells ----------------------------------------------------------------------------------------------------------


class RNNCellBase(Module):
    """What the cells share: weights of `num_chunks` gates for input and state, and the checks of what is given."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool, num_chunks: int, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        width = num_chunks * hidden_size
        self.weight_ih = Parameter(empty(width, input_size, device=device, dtype=dtype))
        self.weight_hh = Parameter(empty(width, hidden_size, device=device, dtype=dtype))
        self.bias_ih: Parameter | None
        self.bias_hh: Parameter | None
        for name in ("bias_ih", "bias_hh"):
            self.register_parameter(name, Parameter(empty(width, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights and biases, uniform within ±1/√hidden_size."""
        bound = 1 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for parameter in self.parameters():
            uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        """Sizes, and options that differ from the default."""
        return ", ".join([f"{self.input_size}, {self.hidden_size}", *differing(self, bias=True)])

    def _checked_input(self, input: Any) -> None:
        name = type(self).__name__
        if not isinstance(input, Tensor):
            raise ArgumentTypeError(f"{name}: takes a Tensor, not {type(input).__name__}")
        if input.ndim not in (1, 2):
            raise ArgumentError(f"{name}: expects an input of 1 or 2 dimensions, [{self.input_size}] or "
                                f"[batch, {self.input_size}], not {input.spec}")  # fmt: skip
        if input.shape[-1] != self.input_size:
            raise ShapeError(f"{name}: expects an input of [batch, {self.input_size}] or [{self.input_size}], not "
                             f"{input.spec}")  # fmt: skip
        _check_dtype(name, input, self.weight_ih)

    def _state(self, input: Tensor, given: Tensor | None, what: str) -> Tensor:
        """A state that fits the input; zeros where none is given."""
        expected = (*input.shape[:-1], self.hidden_size)
        if given is None:
            return zeros(*expected, dtype=input.dtype, device=input.device)
        name = type(self).__name__
        if not isinstance(given, Tensor):
            raise ArgumentTypeError(f"{name}: {what} must be a Tensor, not {type(given).__name__}")
        if given.ndim not in (1, 2):
            raise ArgumentError(f"{name}: {what} must have 1 or 2 dimensions, it is {given.spec}")
        if tuple(given.shape) != expected:
            raise ShapeError(f"{name}: {what} must be {list(expected)} for an input {input.spec}, it is {given.spec}")
        _check_dtype(name, given, self.weight_hh)
        return given

    def _products(self, input: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        return linear(input, self.weight_ih, self.bias_ih), linear(h, self.weight_hh, self.bias_hh)


def _check_dtype(name: str, given: Tensor, weight: Tensor) -> None:
    if given.dtype is not weight.dtype and not is_autocast_enabled(given.device.type):
        raise DTypeError(f"{name}: the input is {given.dtype}, the weights are {weight.dtype}",
                         fix="Convert one of them with .to(dtype).")  # fmt: skip


class RNNCell(RNNCellBase):
    """`tanh(W_ih x + b_ih + W_hh h + b_hh)`, or with relu.

    Input [batch, input_size] and h [batch, hidden_size] (zeros if not given) to the next h; also without a batch.
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh", device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def extra_repr(self) -> str:
        """Sizes, and options that differ from the default."""
        return ", ".join([super().extra_repr(), *differing(self, nonlinearity="tanh")])

    @one_call_of_a_cell(_rnn_steps)
    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """The next h."""
        self._checked_input(input)
        x, a = self._products(input, self._state(input, hx, "hx"))
        if self.nonlinearity == "tanh":
            return _tanh_of_sum(x, a)  # type: ignore[no-any-return]
        if self.nonlinearity == "relu":
            return _relu_of_sum(x, a)  # type: ignore[no-any-return]
        raise ArgumentError(f"RNNCell: nonlinearity must be 'tanh' or 'relu', it is {self.nonlinearity!r}")


class LSTMCell(RNNCellBase):
    """One step of a long short-term memory.

    Input [batch, input_size] and (h, c), each [batch, hidden_size] (zeros if not given), to the next (h, c); also
    without a batch. Gates stand as input, forget, cell, output in the weights.
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    @one_call_of_a_cell(_lstm_steps)
    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """The next (h, c)."""
        self._checked_input(input)
        if hx is not None and (not isinstance(hx, (tuple, list)) or len(hx) != 2):
            raise ArgumentTypeError(f"LSTMCell: hx must be a pair (h, c), not {type(hx).__name__}")
        h, c = (None, None) if hx is None else hx
        x, a = self._products(input, self._state(input, h, "hx[0]"))
        return lstm_gates(x, a, self._state(input, c, "hx[1]"))  # type: ignore[no-any-return]


class GRUCell(RNNCellBase):
    """One step of a gated recurrent unit.

    Input [batch, input_size] and h [batch, hidden_size] (zeros if not given) to the next h; also without a batch.
    Gates stand as reset, update, new in the weights.
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    @one_call_of_a_cell(_gru_steps)
    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """The next h."""
        self._checked_input(input)
        h = self._state(input, hx, "hx")
        x, a = self._products(input, h)
        return gru_gates(x, a, h)  # type: ignore[no-any-return]
