"""Recurrent layers as ops: one direction of a plain RNN, an LSTM or a GRU over packed sequences.

Inputs are x [rows, features] (packed in order of time, see `_recurrence.py`), the first states [sequences, hidden], the
weights of input [gates·hidden, features] and state [gates·hidden, hidden], and their biases. `sizes` says how many rows
each step has. Out come the state after every row [rows, hidden], the final states, what the gradient reads, and the
other states after every row (the c of an LSTM).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from wayfare.core.autocast import LOWER
from wayfare.core.errors import ArgumentError, DTypeError, ShapeError
from wayfare.core.flops import recurrence
from wayfare.core.numpy_math import Array
from wayfare.core.op import Op, Sample, joint
from wayfare.core.signature import FLAG, SIZES, takes
from wayfare.core.spec import Spec, spec_of
from wayfare.ops._define import by_loop, define, expand_unbatched
from wayfare.ops.recurrent._recurrence import Sizes, pull, pull_recorded, run
from wayfare.ops.recurrent.cell import Cell
from wayfare.ops.recurrent.native import register
from wayfare.ops.recurrent.onnx_rules import rule_for

_HALF = np.dtype("float16")

# -- what one step computes -----------------------------------------------------------------------------------------


def _lstm_step(m: Any, x: Any, a: Any, before: Any) -> Any:
    i, f, o = m.sigmoid(x[0] + a[0]), m.sigmoid(x[1] + a[1]), m.sigmoid(x[3] + a[3])
    g = m.tanh(x[2] + a[2])
    c = f * before[0] + i * g
    return (i, f, g, o), (), (o * m.tanh(c), c)


def _lstm_gradient(m: Any, kept: Any, _extra: Any, before: Any, g: Any, back: Any, direct: Any) -> Any:
    i, f, candidate, o = kept
    t = m.tanh(f * before[0] + i * candidate)
    dh = g + back
    dc = direct[0] + dh * o * (1 - t * t)
    di, df = dc * candidate * i * (1 - i), dc * before[0] * f * (1 - f)
    return (di, df, dc * i * (1 - candidate * candidate), dh * t * o * (1 - o)), None, (dc * f,)


def _gru_step(m: Any, x: Any, a: Any, before: Any) -> Any:
    r, z = m.sigmoid(x[0] + a[0]), m.sigmoid(x[1] + a[1])
    n = m.tanh(x[2] + r * a[2])
    return (r, z, n), (a[2],), (n + z * (before[0] - n),)


def _gru_gradient(m: Any, kept: Any, extra: Any, before: Any, g: Any, back: Any, direct: Any) -> Any:
    r, z, n = kept
    dh = g + back + direct[0]
    past = dh * z
    dn = (dh - past) * (1 - n * n)
    dz = past * (1 - z) * (before[0] - n)
    dr = dn * extra[0] * r * (1 - r)
    return (dr, dz, dn), (dr, dz, dn * r), (past,)


def _tanh_step(m: Any, x: Any, a: Any, before: Any) -> Any:
    h = m.tanh(x[0] + a[0])
    return (h,), (), (h,)


def _tanh_gradient(m: Any, kept: Any, _extra: Any, _before: Any, g: Any, back: Any, _direct: Any) -> Any:
    return ((g + back) * (1 - kept[0] * kept[0]),), None, ()


def _relu_step(m: Any, x: Any, a: Any, before: Any) -> Any:
    h = m.relu(x[0] + a[0])
    return (h,), (), (h,)


def _relu_gradient(m: Any, kept: Any, _extra: Any, _before: Any, g: Any, back: Any, _direct: Any) -> Any:
    return (m.gate(g + back, kept[0] != 0),), None, ()


# -- references: each sequence by itself, each step as its definition says ------------------------------------------


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * np.tanh(0.5 * x) + 0.5)


def _plain(act: Callable[[Array], Array]) -> Callable[..., Any]:
    def cell(x: Array, a: Array, h: Array) -> Any:
        y = act(x + a)
        return y, (), (y,)

    return cell


def _lstm_cell(x: Array, a: Array, h: Array, c: Array) -> Any:
    i, f, g, o = np.split(x + a, 4)
    gates = [_sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)]
    c = gates[1] * c + gates[0] * gates[2]
    return np.concatenate(gates), (), (gates[3] * np.tanh(c), c)


def _gru_cell(x: Array, a: Array, h: Array) -> Any:
    (xr, xz, xn), (ar, az, an) = np.split(x, 3), np.split(a, 3)
    r, z = _sigmoid(xr + ar), _sigmoid(xz + az)
    n = np.tanh(xn + r * an)
    return np.concatenate([r, z, n]), (an,), ((1 - z) * n + z * h,)


def _reference(cell: Cell, compute: Callable[..., Any]) -> Callable[..., Any]:
    def reference(x: Array, *others: Array, sizes: Sizes, reverse: bool) -> list[Array]:
        *states, of_input, of_state, input_bias, state_bias = others
        total, hidden = x.shape[0], of_state.shape[1]
        out, kept = np.zeros((total, hidden)), np.zeros((total, cell.gates * hidden))
        extra = [np.zeros((total, hidden)) for _ in range(cell.extra)]
        before, finals = [np.zeros((total, hidden)) for _ in states], [s.copy() for s in states]
        later = [np.zeros((total, hidden)) for _ in states[1:]]
        starts = np.cumsum([0, *sizes])
        for s in range(states[0].shape[0]):
            rows = [starts[t] + s for t, size in enumerate(sizes) if s < size]
            for row in reversed(rows) if reverse else rows:
                current = [f[s].copy() for f in finals]
                x_part, a_part = of_input @ x[row] + input_bias, of_state @ current[0] + state_bias
                kept[row], more, after = compute(x_part, a_part, *current)
                out[row] = after[0]
                for target, value in zip(later, after[1:], strict=True):
                    target[row] = value
                for target, value in zip([*extra, *before], [*more, *current], strict=True):
                    target[row] = value
                for final, value in zip(finals, after, strict=True):
                    final[s] = value
        return [out, *finals, kept, *extra, *before, *later]

    return reference


# -- the records ----------------------------------------------------------------------------------------------------


def _check(cell: Cell, specs: Sequence[Spec], sizes: Sizes) -> None:
    name, x, states = cell.name, specs[0], specs[1 : 1 + cell.states]
    of_input, of_state, *biases = specs[1 + cell.states :]
    if any(s.dtype is not x.dtype for s in specs):
        raise DTypeError(f"{name}: all inputs must have one dtype, they are {', '.join(str(s.dtype) for s in specs)}",
                         fix="Convert the input or the layer with .to(dtype).")  # fmt: skip
    if not x.dtype.is_floating_point:
        raise DTypeError(f"{name}: takes floating-point tensors, not {x.dtype}", fix="Convert it with .float().")
    if x.ndim != 2 or of_input.ndim != 2 or of_state.ndim != 2 or x.shape[1] != of_input.shape[1]:
        raise ShapeError(f"{name}: packed rows {x} do not fit an input weight {of_input} and a state weight {of_state}")
    hidden = of_state.shape[1]
    width = (cell.gates * hidden,)
    if of_state.shape[:1] != width or of_input.shape[:1] != width or any(b.shape != width for b in biases):
        raise ShapeError(f"{name}: weights {of_input} and {of_state} and biases {biases[0]} and {biases[1]} do not "
                         f"fit; for {hidden} hidden units each has {width[0]} rows")  # fmt: skip
    most = max(sizes, default=0)
    if any(s.ndim != 2 or s.shape != states[0].shape or s.shape[1] != hidden or s.shape[0] < most for s in states):
        shown = " and ".join(map(repr, states))
        raise ShapeError(f"{name}: states {shown} do not fit; each is [at least {most} sequences, {hidden}]")
    if sum(sizes) != x.shape[0] or any(b > a for a, b in pairwise(sizes)) or 0 in sizes[-1:]:
        raise ArgumentError(f"{name}: the numbers of rows in each step must not rise, and add up to {x.shape[0]}; "
                            f"they are {list(sizes)}")  # fmt: skip


# The cells of the records below.
CELLS: list[Cell] = []


def _record(cell: Cell, compute: Callable[..., Any], around: int, workspace: int = 0) -> Op:
    """The record of a cell; `around` is how many operations a step is apart from its products, for each number."""
    count = cell.states
    reads = tuple(range(1 + count, 2 + 2 * count + (1 if cell.extra else 0)))
    outputs = reads[-1] + count
    differentiable = (*range(1 + count), *range(1 + reads[-1], outputs))

    def infer(*specs: Spec, sizes: Sizes, reverse: bool) -> tuple[Spec, ...]:
        _check(cell, specs, sizes)
        dtype, total, hidden = specs[0].dtype, specs[0].shape[0], specs[1].shape[1]
        rows, extra = Spec((total, hidden), dtype), Spec((total, cell.extra * hidden), dtype)
        kept = Spec((total, cell.gates * hidden), dtype)
        return (rows, *specs[1 : 1 + count], kept, *([extra] if cell.extra else []), *[rows] * (2 * count - 1))

    def forward(*arrays: Array, sizes: Sizes, reverse: bool) -> tuple[Array, ...]:
        _check(cell, [spec_of(a) for a in arrays], sizes)
        if arrays[0].dtype == _HALF:
            made = forward(*[a.astype(np.float32) for a in arrays], sizes=sizes, reverse=reverse)
            return tuple([a.astype(_HALF) for a in made])
        return run(cell, arrays[0], arrays[1 : 1 + count], arrays[1 + count :], sizes, reverse)

    def vjp(m: Any, needs: Any, g: Any, y: Any, x: Any, *others: Any, sizes: Sizes, reverse: bool) -> list[Any]:
        states, weights = others[:count], others[count:]
        if not m.works_on_arrays:
            found = pull_recorded(m, cell, g, x, states, weights, sizes, reverse)
            return [d if need else None for d, need in zip(found, needs, strict=True)]
        if x.dtype == _HALF:
            given: Any
            g, y, given = ([a if a is None else a.astype(np.float32) for a in group] for group in (g, y, (x, *others)))
            found = pull(cell, needs, g, y, given[0], given[1 : 1 + count], given[1 + count :], sizes, reverse)
            return [d if d is None else d.astype(_HALF) for d in found]
        return pull(cell, needs, g, y, x, states, weights, sizes, reverse)

    def batch(m: Any, size: int, inputs: tuple[Any, ...], batched: tuple[bool, ...], attrs: dict[str, Any]) -> Any:
        if any(batched[1 + count :]):
            return by_loop(cell.name)(m, size, inputs, batched, attrs)
        # With shared weights a batch is only more sequences; those of one number stand side by side.
        mixed = [m.reshape(m.permute(a, dims=(1, 0, 2)), shape=(a.shape[1] * size, a.shape[2]))
                 for a in expand_unbatched(m, size, inputs[: 1 + count], batched[: 1 + count])]  # fmt: skip
        made = getattr(m, cell.name)(*mixed, *inputs[1 + count :], sizes=tuple(n * size for n in attrs["sizes"]),
                                     reverse=attrs["reverse"])  # fmt: skip
        return tuple(m.permute(m.reshape(o, shape=(o.shape[0] // size, size, o.shape[1])), dims=(1, 0, 2))
                     for o in made)  # fmt: skip

    def samples(rng: Any) -> Iterable[Sample]:
        for sizes, sequences, features, hidden in (
            ((2, 1), 2, 1, 1), ((1,), 1, 2, 1), ((2,), 3, 1, 1), ((3, 3, 2, 1, 1), 4, 3, 2), ((), 2, 3, 2),
        ):  # fmt: skip
            for reverse in (False, True):
                width = cell.gates * hidden
                shapes = [(sum(sizes), features), *[(sequences, hidden)] * count, (width, features), (width, hidden),
                          (width,), (width,)]  # fmt: skip
                yield Sample(tuple(rng.normal(size=s) for s in shapes), {"sizes": sizes, "reverse": reverse})

    register(cell)
    CELLS.append(cell)
    return define(
        cell.name, signature=takes(5 + count, sizes=SIZES, reverse=FLAG),
        family="recurrence", autocast=LOWER, forward=forward, infer=infer, vjp=joint(vjp), batch=batch, samples=samples,
        reference=_reference(cell, compute), outputs=outputs, differentiable_outputs=differentiable,
        kept_outputs=reads, takes_none=True, kinds="f", work=recurrence(cell.gates, around),
        onnx=rule_for(cell.name, count, outputs - 1 - count), workspace=workspace,
    )  # fmt: skip


_record(Cell("lstm_sequence", 4, 2, _lstm_step, _lstm_gradient, reads=1), _lstm_cell, 13, workspace=1)
_record(Cell("gru_sequence", 3, 1, _gru_step, _gru_gradient, extra=1, reads=0, inner_bias=True), _gru_cell, 12)
_record(Cell("rnn_tanh_sequence", 1, 1, _tanh_step, _tanh_gradient), _plain(np.tanh), 2)
_record(Cell("rnn_relu_sequence", 1, 1, _relu_step, _relu_gradient), _plain(lambda x: np.maximum(x, 0)), 2)
