"""Tree-LSTM cells (Tai, Socher and Manning, 2015): a state (h, c) for each node, from those of its children.

    def state(node):                                   def state(node):
        if node.is_leaf:                                   return cell(node.x, [state(n) for n in node.children])
            return cell.leaf(node.x)
        return cell(state(node.left), state(node.right))

All shapes may have a batch in front: [hidden_size] or [batch, hidden_size].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from wayfare.api.autocast import is_autocast_enabled
from wayfare.api.functions.creation import empty
from wayfare.api.functions.join import cat, stack
from wayfare.api.fused import fused
from wayfare.core.errors import ArgumentTypeError, DTypeError, ShapeError
from wayfare.core.tensor import Tensor
from wayfare.nn.functional.linear import linear
from wayfare.nn.init import uniform_
from wayfare.nn.module import Module
from wayfare.nn.one_call import one_call
from wayfare.nn.parameter import Parameter

__all__ = ["BinaryTreeLSTMCell", "ChildSumTreeLSTMCell"]

State = tuple[Tensor, Tensor]


# -- the element-wise part ---------------------------------------------------------------------------------------------


@fused
def _leaf_gates(x: Tensor) -> State:
    i, o, u = x.chunk(3, -1)
    c = i.sigmoid() * u.tanh()
    return o.sigmoid() * c.tanh(), c


@fused
def _binary_gates(a: Tensor, left: Tensor, right: Tensor) -> State:
    i, o, u, of_left, of_right = a.chunk(5, -1)
    c = i.sigmoid() * u.tanh() + of_left.sigmoid() * left + of_right.sigmoid() * right
    return o.sigmoid() * c.tanh(), c


@fused
def _binary_gates_with_input(x: Tensor, a: Tensor, left: Tensor, right: Tensor) -> State:
    (xi, xo, xu, xf), (i, o, u, of_left, of_right) = x.chunk(4, -1), a.chunk(5, -1)
    c = (xi + i).sigmoid() * (xu + u).tanh() + (xf + of_left).sigmoid() * left + (xf + of_right).sigmoid() * right
    return (xo + o).sigmoid() * c.tanh(), c


@fused
def _child_sum_gates(x: Tensor, of_sum: Tensor, of_each: Tensor, c: Tensor) -> State:
    (xi, xo, xu, xf), (i, o, u) = x.chunk(4, -1), of_sum.chunk(3, -1)
    kept = ((xf.unsqueeze(-2) + of_each).sigmoid() * c).sum(-2)
    after = (xi + i).sigmoid() * (xu + u).tanh() + kept
    return (xo + o).sigmoid() * after.tanh(), after


# -- cells ----------------------------------------------------------------------------------------------------------


class _TreeCell(Module):
    """Weights of the gates for the input and for the children's states, a bias of `bias` numbers, and the checks."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: int, state_shape: tuple[int, int], device: Any, dtype: Any
    ) -> None:
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.weight_ih = Parameter(empty(4 * hidden_size, input_size, device=device, dtype=dtype))
        self.weight_hh = Parameter(empty(*state_shape, device=device, dtype=dtype))
        self.bias: Parameter | None
        self.register_parameter("bias", Parameter(empty(bias, device=device, dtype=dtype)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new weights and a new bias, uniform within ±1/√hidden_size."""
        bound = 1 / math.sqrt(self.hidden_size) if self.hidden_size > 0 else 0
        for parameter in self.parameters():
            uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        """Sizes, and whether there is no bias."""
        return f"{self.input_size}, {self.hidden_size}" + (", bias=False" if self.bias is None else "")

    def _leaf(self, x: Tensor) -> State:
        """The state of a leaf, which has nothing to forget."""
        gates = 3 * self.hidden_size
        bias = None if self.bias is None else self.bias[:gates]
        return _leaf_gates(linear(x, self.weight_ih[:gates], bias))  # type: ignore[no-any-return]

    def _check_input(self, x: Any) -> None:
        name = type(self).__name__
        if not isinstance(x, Tensor):
            raise ArgumentTypeError(f"{name}: x must be a Tensor, not {type(x).__name__}")
        if x.ndim not in (1, 2) or x.shape[-1] != self.input_size:
            raise ShapeError(f"{name}: x must be [{self.input_size}] or [batch, {self.input_size}], it is {x.spec}")
        self._check_dtype("x", x)

    def _check_dtype(self, what: str, given: Tensor) -> None:
        if given.dtype is not self.weight_hh.dtype and not is_autocast_enabled(given.device.type):
            raise DTypeError(f"{type(self).__name__}: {what} is {given.dtype}, the weights are {self.weight_hh.dtype}",
                             fix="Convert one of them with .to(dtype).")  # fmt: skip

    def _checked_state(self, state: Any, what: str, batch: tuple[int, ...] | None) -> tuple[int, ...]:
        """Refuse anything but a pair (h, c) with this batch (None: any); returns the batch."""
        name, hidden = type(self).__name__, self.hidden_size
        pair = isinstance(state, (tuple, list)) and len(state) == 2 and all(isinstance(s, Tensor) for s in state)
        if not pair:
            raise ArgumentTypeError(f"{name}: {what} must be a state (h, c), not {type(state).__name__}",
                                    fix="Give what the cell returned for that node.")  # fmt: skip
        h, c = state
        found = tuple(h.shape[:-1]) if batch is None else batch
        fits = h.ndim in (1, 2) and tuple(h.shape) == tuple(c.shape) == (*found, hidden)
        if not fits:
            expected = f"[{hidden}] or [batch, {hidden}]" if batch is None else f"{[*batch, hidden]}"
            raise ShapeError(f"{name}: h and c of {what} must be {expected}, they are {h.spec} and {c.spec}")
        self._check_dtype(f"h of {what}", h)
        return found


class BinaryTreeLSTMCell(_TreeCell):
    """A Tree-LSTM for nodes of two children, each with a forget gate of its own.

    `cell.leaf(x)` and `cell(left, right)` give (h, c), each [hidden_size] or [batch, hidden_size]. An inner node may
    have an input too: `cell(left, right, x)`.
    Gates stand as input, output, update, forget in `weight_ih` [4·hidden, input], and with one forget gate for the
    left and one for the right child in `bias` and `weight_hh` [5·hidden, 2·hidden], whose columns are those of the left
    h and the right h.
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(input_size, hidden_size, bias and 5 * hidden_size, (5 * hidden_size, 2 * hidden_size), device,
                         dtype)  # fmt: skip

    @one_call
    def leaf(self, x: Tensor) -> State:
        """The state of a leaf with the input x."""
        self._check_input(x)
        return self._leaf(x)

    @one_call
    def forward(self, left: State, right: State, x: Tensor | None = None) -> State:
        """The state of a node from those of its two children, and its own input if it has one."""
        batch = self._checked_state(left, "left", None)
        self._checked_state(right, "right", batch)
        both = cat([left[0], right[0]], -1)
        if x is not None:
            self._check_input(x)
            if tuple(x.shape[:-1]) != batch:
                raise ShapeError(f"{type(self).__name__}: x is {x.spec}, which does not fit states of {left[0].spec}")
            of_x, of_both = linear(x, self.weight_ih), linear(both, self.weight_hh, self.bias)
            return _binary_gates_with_input(of_x, of_both, left[1], right[1])  # type: ignore[no-any-return]
        return _binary_gates(linear(both, self.weight_hh, self.bias), left[1], right[1])  # type: ignore[no-any-return]


class ChildSumTreeLSTMCell(_TreeCell):
    """A Tree-LSTM for nodes of any number of children, in no order: their h are added, each has a forget gate.

    `cell(x, children)` gives (h, c), each [hidden_size] or [batch, hidden_size], from the node's input and a list of
    its children's states; a leaf has none. Gates stand as input, output, update, forget in `weight_ih`
    [4·hidden, input] and `bias`, the first three also in `weight_hh` [3·hidden, hidden] for the sum of the children's
    h; `weight_fh` [hidden, hidden] makes the forget gate of each child from its own h.
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__(input_size, hidden_size, bias and 4 * hidden_size, (3 * hidden_size, hidden_size), device,
                         dtype)  # fmt: skip
        self.weight_fh = Parameter(empty(hidden_size, hidden_size, device=device, dtype=dtype))
        self.reset_parameters()

    @one_call
    def forward(self, x: Tensor, children: Sequence[State] = ()) -> State:
        """The state of a node from its input and its children's states."""
        self._check_input(x)
        listed = isinstance(children, (list, tuple))
        if not listed or (len(children) == 2 and all(isinstance(child, Tensor) for child in children)):
            given = "one state" if listed else type(children).__name__
            raise ArgumentTypeError(f"{type(self).__name__}: children must be a list of states (h, c), not {given}",
                                    fix="For one child write cell(x, [child]).")  # fmt: skip
        if not children:
            return self._leaf(x)
        of_x = linear(x, self.weight_ih, self.bias)
        batch = tuple(x.shape[:-1])
        for number, child in enumerate(children):
            self._checked_state(child, f"child {number}", batch)
        h = stack([child[0] for child in children], -2)
        of_sum = linear(h.sum(-2), self.weight_hh)
        of_each = linear(h, self.weight_fh)
        c = stack([child[1] for child in children], -2)
        return _child_sum_gates(of_x, of_sum, of_each, c)  # type: ignore[no-any-return]
