"""How the recurrences of `layers.py` are written as ONNX's LSTM, GRU and RNN.

Wayfare packs sequences in order of time; ONNX wants [steps, sequences, features], and the gates in another order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wayfare.core.symbolic_sizes import Repeated

# For each cell: the ONNX operator, the order of its gates in terms of ours, its activations.
_CELLS: dict[str, tuple[str, tuple[int, ...], list[str]]] = {
    # input, forget, cell, output → input, output, forget, cell
    "lstm_sequence": ("LSTM", (0, 3, 1, 2), ["Sigmoid", "Tanh", "Tanh"]),
    # reset, update, new → update, reset, new
    "gru_sequence": ("GRU", (1, 0, 2), ["Sigmoid", "Tanh"]),
    "rnn_tanh_sequence": ("RNN", (0,), ["Tanh"]),
    "rnn_relu_sequence": ("RNN", (0,), ["Relu"]),
}


def rule_for(name: str, states: int, unused: int) -> Any:
    """The rule of one recurrence; the last `unused` results are only for gradients, and are None."""
    kind, order, activations = _CELLS[name]

    def rule(b: Any, x: Any, *others: Any, sizes: Any, reverse: bool) -> Any:
        first, (of_input, of_state, *biases) = others[:states], others[states:]
        features, hidden = of_input.shape[1], of_state.shape[1]
        if sizes == ():  # ONNX Runtime crashes on a sequence without steps
            return (b.full((0, hidden), 0, x.dtype), *first, *[None] * unused)
        if isinstance(sizes, Repeated):
            steps, count, even = sizes.times, sizes.value, True
        else:
            steps, count = len(sizes), max(sizes, default=0)
            even = all(n == count for n in sizes)
        if not even and any(type(n) is not int for n in sizes):
            raise b.refuse("sequences of different lengths whose number depends on the input")
        if even:
            rows, lengths = _steps_of(b, x, (steps, count, features)), None
        else:
            rows, lengths = _padded(b, x, sizes, features)
        weights = [_reordered(b, w, order) for w in (of_input, of_state)]
        bias = _joined(b, [_reordered(b, v, order) for v in biases])
        given = [b.node("Unsqueeze", s, [0]) if s.shape[0] == count else _front(b, s, count) for s in first]
        options: dict[str, Any] = {"hidden_size": hidden, "direction": "reverse" if reverse else "forward",
                                   "activations": activations}  # fmt: skip
        if kind == "GRU":
            options["linear_before_reset"] = 1
        made = b.node(kind, rows, *weights, bias, lengths, *given, outputs=1 + states, dtype=x.dtype, **options)
        out = b.node("Reshape", made[0], (-1, hidden), dtype=x.dtype)
        if not even:
            out = b.node("Gather", out, _places(sizes), axis=0, dtype=x.dtype)
        finals = [b.node("Squeeze", m, [0], dtype=x.dtype) for m in made[1:]]
        finals = [f if s.shape[0] == count else _with_rest(b, f, s, count) for f, s in zip(finals, first, strict=True)]
        return (out, *finals, *[None] * unused)

    return rule


def _steps_of(b: Any, x: Any, shape: tuple[Any, ...]) -> Any:
    """Packed rows as [steps, sequences, features].

    ONNX Runtime ends the whole process where a recurrence has no steps or no sequences. So at least one of each is
    asked for: what is empty is then an error of the Reshape, whose name says why.
    """
    if not any(map(b.varies, shape)):
        return b.ops.reshape(x, shape=shape)
    place, b.place = b.place, f"{b.place}/not_empty" if b.place else "not_empty"
    try:
        counts = b.node("Max", b.sizes(shape[:2]), [1], shape=(2,))
        return b.node("Reshape", x, b.node("Concat", counts, b.sizes(shape[2:]), axis=0, shape=(3,)), shape=shape)
    finally:
        b.place = place


def _reordered(b: Any, weight: Any, order: tuple[int, ...]) -> Any:
    """A weight or bias with its gates in ONNX's order, and an axis for the direction in front."""
    gates = len(order)
    held = b.root.graph.initializers.get(weight.name)
    if held is not None:
        parts = np.split(held, gates)
        reordered = np.concatenate([parts[g] for g in order])[None]
        return b.initializer(b.fresh_name(f"{weight.name}.gates"), reordered)
    if gates > 1:
        parts = b.node("Split", weight, [weight.shape[0] // gates] * gates, axis=0, outputs=gates, dtype=weight.dtype)
        weight = b.node("Concat", *[parts[g] for g in order], axis=0)
    return b.node("Unsqueeze", weight, [0])


def _joined(b: Any, biases: list[Any]) -> Any:
    """The biases of input and state, concatenated."""
    held = [b.root.graph.initializers.get(v.name) for v in biases]
    if any(h is None for h in held):
        return b.node("Concat", *biases, axis=1)
    return b.initializer(b.fresh_name(f"{biases[0].name}.both"), np.concatenate(held, axis=1))


def _front(b: Any, state: Any, count: Any) -> Any:
    """The states of those sequences that have steps."""
    return b.node("Unsqueeze", b.node("Slice", state, [0], [count], [0]), [0])


def _with_rest(b: Any, final: Any, state: Any, count: Any) -> Any:
    """Sequences without steps keep their states."""
    return b.node("Concat", final, b.node("Slice", state, [count], [state.shape[0]], [0]), axis=0)


def _padded(b: Any, x: Any, sizes: tuple[int, ...], features: int) -> tuple[Any, Any]:
    """Packed rows as [steps, sequences, features]; after the end of a sequence, arbitrary rows."""
    starts = np.cumsum([0, *sizes])[:-1]
    count = sizes[0]
    rows = [[start + (s if s < n else 0) for s in range(count)] for start, n in zip(starts, sizes, strict=True)]
    places = np.array(rows)
    lengths = np.array([sum(s < n for n in sizes) for s in range(count)], np.int32)
    return b.node("Gather", x, places.astype(np.int64), axis=0), lengths


def _places(sizes: tuple[int, ...]) -> Any:
    """Where the packed rows are in [steps·sequences]."""
    return np.array([t * sizes[0] + s for t, n in enumerate(sizes) for s in range(n)], np.int64)
