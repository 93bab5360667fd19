"""Recurrent layers: RNN, LSTM and GRU over padded, packed or ragged sequences, or a plain list of them.

Every form of input is packed in order of time (see `sequences.py`), so that the cost of a sequence follows from its
length, and each direction of each layer is one op.
"""

from __future__ import annotations

import math
import numbers
import warnings
from typing import Any

from wayfare.api.autocast import is_autocast_enabled
from wayfare.api.functions.creation import empty
from wayfare.api.functions.join import cat, stack
from wayfare.core.errors import ArgumentError, ArgumentTypeError, DTypeError, OperationError, ShapeError
from wayfare.core.spec import float64
from wayfare.core.tensor import Tensor
from wayfare.nn.cells import lstm_gates
from wayfare.nn.functional.dropout import dropout
from wayfare.nn.functional.linear import linear
from wayfare.nn.functional.recurrent import gru_sequence, lstm_sequence, rnn_sequence
from wayfare.nn.init import uniform_
from wayfare.nn.module import Module
from wayfare.nn.parameter import Parameter
from wayfare.nn.sequences import Packing, packing_of
from wayfare.nn.shown_options import differing

__all__ = ["RNNBase", "RNN", "LSTM", "GRU"]

_GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}
States = tuple[Tensor, ...]


class RNNBase(Module):
    """What the recurrent layers share: their weights, and the way through layers and directions."""

    weight_ih_l0: Parameter

    def __init__(
        self, mode: str, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.mode = mode
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = dropout
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        self._check_options()
        self._names_of: list[list[str]] = []  # of the weights, by layer and direction
        for layer in range(num_layers):
            for direction in range(self._directions):
                self._add_weights(layer, direction, device, dtype)
        self.reset_parameters()

    def _check_options(self) -> None:
        name = type(self).__name__
        if self.mode not in _GATES:
            raise ArgumentError(f"{name}: there is no mode {self.mode!r}", fix=f"Use one of {', '.join(_GATES)}.")
        rate = self.dropout
        if isinstance(rate, bool) or not isinstance(rate, numbers.Number) or not 0 <= rate <= 1:
            raise ArgumentError(f"{name}: dropout is a probability from 0 to 1, but is {rate!r}")
        if rate > 0 and self.num_layers == 1:
            warnings.warn(f"{name}: dropout comes between layers, so with num_layers=1 it does nothing", stacklevel=4)
        if isinstance(self.hidden_size, bool) or not isinstance(self.hidden_size, int):
            raise ArgumentTypeError(f"{name}: hidden_size must be an int, not {type(self.hidden_size).__name__}")
        for option in ("hidden_size", "num_layers"):
            if getattr(self, option) <= 0:
                raise ArgumentError(f"{name}: {option} must be positive, it is {getattr(self, option)}")
        if not 0 <= self.proj_size < self.hidden_size:
            raise ArgumentError(f"{name}: proj_size must be from 0 to below hidden_size ({self.hidden_size}), it is "
                                f"{self.proj_size}")  # fmt: skip
        if self.proj_size and self.mode != "LSTM":
            raise ArgumentError(f"{name}: only an LSTM has a proj_size", fix="Leave it out.")

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def _out_size(self) -> int:
        """The size of h."""
        return self.proj_size or self.hidden_size

    def _add_weights(self, layer: int, direction: int, device: Any, dtype: Any) -> None:
        width = _GATES[self.mode] * self.hidden_size
        wide = self.input_size if layer == 0 else self._out_size * self._directions
        shapes: dict[str, tuple[int, ...]] = {"weight_ih": (width, wide), "weight_hh": (width, self._out_size)}
        if self.bias:
            shapes |= {"bias_ih": (width,), "bias_hh": (width,)}
        if self.proj_size:
            shapes["weight_hr"] = (self.proj_size, self.hidden_size)
        ending = f"_l{layer}{'_reverse' if direction else ''}"
        for name, shape in shapes.items():
            self.register_parameter(name + ending, Parameter(empty(*shape, device=device, dtype=dtype)))
        self._names_of.append([name + ending for name in shapes])

    def reset_parameters(self) -> None:
        """Draw new weights and biases, uniform within ±1/√hidden_size."""
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            uniform_(parameter, -bound, bound)

    def flatten_parameters(self) -> None:
        """Nothing: weights need not lie in one piece of memory here."""

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of each direction of each layer."""
        return [[getattr(self, name) for name in names] for names in self._names_of]

    def extra_repr(self) -> str:
        """Sizes, and options that differ from the default."""
        usual = {"proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0,
                 "bidirectional": False}  # fmt: skip
        return ", ".join([f"{self.input_size}, {self.hidden_size}", *differing(self, **usual)])

    # -- running ----------------------------------------------------------------------------------------------------

    def _run(self, input: Any, given: tuple[Any, ...] | None) -> tuple[Any, States]:
        """The output in the form of the input, and the final states [layers·directions, sequences, …]."""
        name = type(self).__name__
        packing = packing_of(name, input, self.input_size, self.batch_first)
        rows = packing.rows
        if rows.dtype is not self.weight_ih_l0.dtype and not is_autocast_enabled(rows.device.type):
            raise DTypeError(f"{name}: the input is {rows.dtype}, the weights are {self.weight_ih_l0.dtype}",
                             fix="Convert one of them with .to(dtype).")  # fmt: skip
        states = self._first_states(packing, given)
        finals: list[States] = []
        weights = self.all_weights
        for layer in range(self.num_layers):
            if layer and self.dropout and self.training:
                rows = dropout(rows, self.dropout)
            outs = []
            for direction in range(self._directions):
                number = layer * self._directions + direction
                mine = [s if s.ndim == 2 else s[number] for s in states]
                out, *last = self._direction(rows, mine, weights[number], packing.sizes, bool(direction))
                outs.append(out)
                finals.append(tuple(last))
            rows = outs[0] if len(outs) == 1 else cat(outs, 1)
        ends = tuple([packing.in_given_order(f[0].unsqueeze(0) if len(f) == 1 else stack(f), 1)
                      for f in zip(*finals, strict=True)])  # fmt: skip
        return packing.as_given(rows), ends if packing.batched else tuple([e.squeeze(1) for e in ends])

    def _direction(self, rows: Tensor, states: list[Tensor], weights: list[Parameter], sizes: tuple[int, ...],
                   reverse: bool) -> tuple[Tensor, ...]:  # fmt: skip
        if self.proj_size:
            return _projected_lstm(rows, states, weights[:-1], weights[-1], sizes, reverse)
        if self.mode == "LSTM":
            return lstm_sequence(rows, *states, *weights, batch_sizes=sizes, reverse=reverse)
        if self.mode == "GRU":
            return gru_sequence(rows, *states, *weights, batch_sizes=sizes, reverse=reverse)
        kind = self.mode.removeprefix("RNN_").lower()
        return rnn_sequence(rows, *states, *weights, batch_sizes=sizes, reverse=reverse, nonlinearity=kind)

    def _first_states(self, packing: Packing, given: tuple[Any, ...] | None) -> States:
        """States [layers·directions, sequences, size] in the packed order; [sequences, size] where all are zeros."""
        sizes = (self._out_size, self.hidden_size) if self.mode == "LSTM" else (self._out_size,)
        if given is None:
            return tuple([packing.rows.new_zeros(packing.count, size) for size in sizes])
        name, count = type(self).__name__, self.num_layers * self._directions
        found = []
        for number, (state, size) in enumerate(zip(given, sizes, strict=True)):
            what = f"hx[{number}]" if len(sizes) > 1 else "hx"
            if not isinstance(state, Tensor):
                raise ArgumentTypeError(f"{name}: {what} must be a Tensor, not {type(state).__name__}")
            expected = (count, packing.count, size) if packing.batched else (count, size)
            if tuple(state.shape) != expected:
                meaning = "[layers·directions, sequences, size]" if packing.batched else "[layers·directions, size]"
                raise ShapeError(f"{name}: {what} must be {list(expected)} {meaning}, it is {state.spec}")
            if state.dtype is not packing.rows.dtype and not _are_cast(state, packing.rows):
                raise DTypeError(f"{name}: {what} is {state.dtype}, the input {packing.rows.dtype}",
                                 fix="Convert one of them with .to(dtype).")  # fmt: skip
            found.append(packing.longest_first(state if packing.batched else state.unsqueeze(1), 1))
        return tuple(found)


def _are_cast(*tensors: Tensor) -> bool:
    """Does autocast give them one dtype? A state that a call returned is in the narrow one, the input is not."""
    return is_autocast_enabled(tensors[0].device.type) and all([_is_castable(t) for t in tensors])


def _is_castable(t: Tensor) -> bool:
    """Does autocast change the dtype of such tensors? It leaves float64 as it is."""
    return t.is_floating_point() and t.dtype is not float64


def _projected_lstm(
    rows: Tensor, states: list[Tensor], weights: list[Parameter], projection: Parameter, sizes: tuple[int, ...],
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """An LSTM whose h is projected at each step: step by step on the graph."""
    (h, c), (weight_ih, weight_hh, *biases) = states, weights
    of_input = linear(rows, weight_ih, biases[0] + biases[1] if biases else None)
    outs = list(of_input.split(list(sizes)))
    for t in range(len(sizes) - 1, -1, -1) if reverse else range(len(sizes)):
        size = sizes[t]
        wide, after = lstm_gates(outs[t], linear(h[:size], weight_hh), c[:size])
        outs[t] = linear(wide, projection)
        h, c = (cat([outs[t], h[size:]]), cat([after, c[size:]])) if size < h.shape[0] else (outs[t], after)
    return cat(outs) if outs else rows.new_zeros(0, h.shape[1]), h, c


class RNN(RNNBase):
    """`h = tanh(W_ih x + b_ih + W_hh h + b_hh)` (or relu) for each step of each sequence, in layers.

    Input: a tensor [steps, batch, input_size] ([batch, steps, …] with `batch_first`, [steps, input_size] for one
    sequence), a `PackedSequence`, a `wf.data.Padded`, a `wf.Ragged`, or a list of sequences [steps, input_size] of any
    lengths, also 0.
    Gives (output, h_n): the output has the form of the input and the size directions·hidden_size, h_n is
    [layers·directions, batch, hidden_size] in the order of the input. `hx` is like h_n; zeros if not given.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh", bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        if nonlinearity not in ("tanh", "relu"):
            raise ArgumentError(f"RNN: nonlinearity must be 'tanh' or 'relu', it is {nonlinearity!r}")
        super().__init__(f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, bias, batch_first,
                         dropout, bidirectional, device=device, dtype=dtype)  # fmt: skip
        self.nonlinearity = nonlinearity

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        """(output, h_n)."""
        output, (h,) = self._run(input, None if hx is None else (hx,))
        return output, h


class LSTM(RNNBase):
    """A long short-term memory over each sequence, in layers.

    Input: a tensor [steps, batch, input_size] ([batch, steps, …] with `batch_first`, [steps, input_size] for one
    sequence), a `PackedSequence`, a `wf.data.Padded`, a `wf.Ragged`, or a list of sequences [steps, input_size] of any
    lengths, also 0.
    Gives (output, (h_n, c_n)): the output has the form of the input and the size directions·hidden_size, the states are
    [layers·directions, batch, hidden_size] in the order of the input. `hx` is like (h_n, c_n); zeros if not given.
    With `proj_size`, h is mapped to that size at each step.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__("LSTM", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
                         proj_size, device, dtype)  # fmt: skip

    def forward(self, input: Any, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Any, tuple[Tensor, Tensor]]:
        """(output, (h_n, c_n))."""
        if hx is not None and (not isinstance(hx, (tuple, list)) or len(hx) != 2):
            raise OperationError(f"LSTM: hx must be a pair (h, c), not {type(hx).__name__}")
        output, (h, c) = self._run(input, None if hx is None else tuple(hx))
        return output, (h, c)


class GRU(RNNBase):
    """A gated recurrent unit over each sequence, in layers.

    Input: a tensor [steps, batch, input_size] ([batch, steps, …] with `batch_first`, [steps, input_size] for one
    sequence), a `PackedSequence`, a `wf.data.Padded`, a `wf.Ragged`, or a list of sequences [steps, input_size] of any
    lengths, also 0.
    Gives (output, h_n): the output has the form of the input and the size directions·hidden_size, h_n is
    [layers·directions, batch, hidden_size] in the order of the input. `hx` is like h_n; zeros if not given.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__("GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
                         device=device, dtype=dtype)  # fmt: skip

    def forward(self, input: Any, hx: Tensor | None = None) -> tuple[Any, Tensor]:
        """(output, h_n)."""
        output, (h,) = self._run(input, None if hx is None else (hx,))
        return output, h
