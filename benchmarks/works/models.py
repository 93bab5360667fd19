"""What the sides of a training step share: shapes and weights of the models, data, and the numbers they decide by."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

Batch = tuple[np.ndarray, ...]
Shapes = dict[str, tuple[int, ...]]

# So slow that no model learns its batches by heart, nor turns to other branches, in the thousands of steps of a
# measurement: a fast side does more steps than a slow one, and all of them must be the same work.
STANDING_RATE = 1e-6
COMPARED_STEPS = 5

# The model that halts: it turns until its values are small, and shortens what is still long.
HALT_BELOW, LONG, MOST_TURNS = 0.5, 23.5, 12


def weights(shapes: Shapes) -> dict[str, np.ndarray]:
    """Small random numbers for every parameter; scales of normalisation layers start near one."""
    numbers = np.random.default_rng(1)
    found = {}
    for name, shape in shapes.items():
        values = numbers.standard_normal(shape, dtype=np.float32) * (0.05 if len(shape) > 1 else 0.01)
        found[name] = values + 1 if "norm" in name and name.endswith("weight") else values
    return found


def linear(name: str, fan_in: int, fan_out: int) -> Shapes:
    """The parameters of one linear layer."""
    return {f"{name}.weight": (fan_out, fan_in), f"{name}.bias": (fan_out,)}


def perceptron(sizes: tuple[int, ...]) -> Shapes:
    """Linear layers in a Sequential with something between them."""
    found: Shapes = {}
    for number, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        found |= linear(str(2 * number), fan_in, fan_out)
    return found


def encoder(width: int, layers: int) -> Shapes:
    """Transformer blocks in a TransformerEncoder, four times as wide inside."""
    block: Shapes = {
        "self_attn.in_proj_weight": (3 * width, width),
        "self_attn.in_proj_bias": (3 * width,),
        **linear("self_attn.out_proj", width, width),
        **linear("linear1", width, 4 * width),
        **linear("linear2", 4 * width, width),
        **{f"norm{number}.{part}": (width,) for number in (1, 2) for part in ("weight", "bias")},
    }
    return {f"layers.{number}.{name}": shape for number in range(layers) for name, shape in block.items()}


def lstm_cell(size: int, hidden: int) -> Shapes:
    """The parameters of an LSTMCell, called `cell`."""
    return {
        "cell.weight_ih": (4 * hidden, size),
        "cell.weight_hh": (4 * hidden, hidden),
        "cell.bias_ih": (4 * hidden,),
        "cell.bias_hh": (4 * hidden,),
    }


def halting_batches(batch: int = 32, width: int = 64, kinds: int = 8) -> list[Batch]:
    """Inputs of different magnitudes: they need different numbers of turns, and some end long, some short."""
    numbers = np.random.default_rng(0)
    found: list[Batch] = []
    for kind in range(kinds):
        x = numbers.standard_normal((batch, width), dtype=np.float32) * np.float32(1 + 0.75 * kind)
        found.append((x, numbers.integers(0, 4, batch)))
    return found


def sequences(lengths: list[int], batch: int, width: int, classes: int) -> dict[int, Batch]:
    """A labelled batch of sequences for each length."""
    numbers = np.random.default_rng(0)
    return {
        length: (
            numbers.standard_normal((batch, length, width), dtype=np.float32),
            numbers.integers(0, classes, batch),
        )
        for length in lengths
    }
