"""The training steps of `steps` for JAX: models as functions of their parameters, updates written out, all jitted."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np

from benchmarks.works import Prepared, Unavailable, models, nothing
from benchmarks.works.models import Batch, Shapes

Parameters = dict[str, Any]
FIRST, SECOND, TINY = 0.9, 0.999, 1e-8


def training(
    jax: Any, mode: str, model: str, shapes: Shapes, batches: list[Batch], rate: float, kind: str = "Adam"
) -> Prepared:
    """A jitted step that gives its state's memory to the next one.

    Steps return before they are done, as is JAX's way, and a round ends when its last is; in the mode "waited for"
    each is waited for, as by a loop that looks at its losses.
    """
    step = jitted(jax, mode, model, shapes, rate, kind)
    turns = cycle([tuple(jax.numpy.asarray(array) for array in batch) for batch in batches])
    last: list[Any] = [None]

    def turn() -> Any:
        try:
            last[0] = step(*next(turns))
        except jax.errors.TracerBoolConversionError:
            raise Unavailable("TracerBoolConversionError: a traced function cannot branch on a value.") from None
        return last[0]

    def waited_for() -> Any:
        return turn().block_until_ready()

    def results() -> list[np.ndarray]:
        return [np.array([float(turn()) for _ in range(models.COMPARED_STEPS * len(batches))], np.float32)]

    if mode == "waited for":
        return Prepared(waited_for, results, nothing, kept=step)
    return Prepared(turn, results, lambda: last[0].block_until_ready(), kept=step)


def jitted(jax: Any, mode: str, model: str, shapes: Shapes, rate: float, kind: str = "Adam") -> Callable[..., Any]:
    """The step as a function of a batch that keeps the state and returns the loss; `.compiled` is what jit made."""
    jnp = importlib.import_module("jax.numpy")
    loss_of = LOSSES[f"{model}, rewritten" if mode == "rewritten" else model](jax, jnp)
    compiled = jax.jit(_step(jax, jnp, loss_of, rate, kind), donate_argnums=0)
    parameters = {name: jnp.asarray(array) for name, array in models.weights(shapes).items()}
    averages = [{name: jnp.zeros_like(value) for name, value in parameters.items()} for _ in range(2)]
    state: Any = (parameters, *averages, jnp.zeros((), jnp.float32))

    def step(*batch: Any) -> Any:
        nonlocal state
        state, loss = compiled(state, *batch)
        return loss

    step.compiled = compiled  # type: ignore[attr-defined]
    return step


def _step(jax: Any, jnp: Any, loss_of: Callable[..., Any], rate: float, kind: str) -> Callable[..., Any]:
    def updated(value: Any, slope: Any, first: Any, second: Any, count: Any) -> tuple[Any, Any, Any]:
        if kind == "SGD":
            return value - rate * slope, first, second
        first = FIRST * first + (1 - FIRST) * slope
        second = SECOND * second + (1 - SECOND) * slope * slope
        size = jnp.sqrt(second / (1 - SECOND**count)) + TINY
        return value - rate * (first / (1 - FIRST**count)) / size, first, second

    def step(state: Any, *batch: Any) -> Any:
        parameters, firsts, seconds, count = state
        loss, slopes = jax.value_and_grad(loss_of)(parameters, *batch)
        count = count + 1
        changed = {
            name: updated(value, slopes[name], firsts[name], seconds[name], count)
            for name, value in parameters.items()
        }
        parameters, firsts, seconds = ({name: parts[i] for name, parts in changed.items()} for i in range(3))
        return (parameters, firsts, seconds, count), loss

    return step


def _linear(p: Parameters, name: str, x: Any) -> Any:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def _cross_entropy(jax: Any, jnp: Any, logits: Any, labels: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean()


def _logistic(jax: Any, jnp: Any) -> Callable[..., Any]:
    def loss_of(p: Parameters, x: Any, y: Any) -> Any:
        z = x @ p["weight"].T + p["bias"]
        return (jax.nn.softplus(z) - z * y).mean()

    return loss_of


def _mlp(jax: Any, jnp: Any) -> Callable[..., Any]:
    def loss_of(p: Parameters, x: Any, y: Any) -> Any:
        *hidden, last = sorted({int(name.partition(".")[0]) for name in p})
        for number in hidden:
            x = jax.nn.relu(_linear(p, str(number), x))
        return _cross_entropy(jax, jnp, _linear(p, str(last), x), y)

    return loss_of


def encode(jax: Any, jnp: Any, p: Parameters, x: Any, heads: int = 4) -> Any:
    """The transformer blocks whose parameters are `layers.0…`, `layers.1…` and so on, normalised after each part."""
    batch, length, width = x.shape

    def norm(name: str, x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        normal = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return normal * p[f"{name}.weight"] + p[f"{name}.bias"]

    def split(x: Any) -> Any:
        return x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)

    for number in range(1 + max(int(name.split(".")[1]) for name in p if name.startswith("layers."))):
        layer = f"layers.{number}"
        projected = x @ p[f"{layer}.self_attn.in_proj_weight"].T + p[f"{layer}.self_attn.in_proj_bias"]
        query, key, value = (split(part) for part in jnp.split(projected, 3, -1))
        scores = query @ key.transpose(0, 1, 3, 2) / np.float32(np.sqrt(width // heads))
        mixed = (jax.nn.softmax(scores) @ value).transpose(0, 2, 1, 3).reshape(batch, length, width)
        x = norm(f"{layer}.norm1", x + _linear(p, f"{layer}.self_attn.out_proj", mixed))
        wide = jax.nn.relu(_linear(p, f"{layer}.linear1", x))
        x = norm(f"{layer}.norm2", x + _linear(p, f"{layer}.linear2", wide))
    return x


def _transformer(jax: Any, jnp: Any) -> Callable[..., Any]:
    return lambda p, x, target: ((encode(jax, jnp, p, x) - target) ** 2).mean()


def _labelled_sequences(jax: Any, jnp: Any) -> Callable[..., Any]:
    def loss_of(p: Parameters, x: Any, y: Any) -> Any:
        return _cross_entropy(jax, jnp, _linear(p, "head", encode(jax, jnp, p, x).mean(1)), y)

    return loss_of


def _lstm_cell(jax: Any, jnp: Any, p: Parameters, x: Any, h: Any, c: Any) -> tuple[Any, Any]:
    gates = x @ p["cell.weight_ih"].T + p["cell.bias_ih"] + h @ p["cell.weight_hh"].T + p["cell.bias_hh"]
    enter, forget, candidate, leave = jnp.split(gates, 4, -1)
    c = jax.nn.sigmoid(forget) * c + jax.nn.sigmoid(enter) * jnp.tanh(candidate)
    return jax.nn.sigmoid(leave) * jnp.tanh(c), c


def _lstm_loop(jax: Any, jnp: Any) -> Callable[..., Any]:
    def loss_of(p: Parameters, x: Any, y: Any) -> Any:
        h = c = jnp.zeros((x.shape[1], p["cell.weight_hh"].shape[1]), x.dtype)
        for moment in x:
            h, c = _lstm_cell(jax, jnp, p, moment, h, c)
        return _cross_entropy(jax, jnp, _linear(p, "head", h), y)

    return loss_of


def _lstm_loop_rewritten(jax: Any, jnp: Any) -> Callable[..., Any]:
    """The loop as a scan: unrolled, it takes half a minute to compile."""

    def loss_of(p: Parameters, x: Any, y: Any) -> Any:
        zeros = jnp.zeros((x.shape[1], p["cell.weight_hh"].shape[1]), x.dtype)
        (h, _), _ = jax.lax.scan(lambda hc, moment: (_lstm_cell(jax, jnp, p, moment, *hc), None), (zeros, zeros), x)
        return _cross_entropy(jax, jnp, _linear(p, "head", h), y)

    return loss_of


def _halting(jax: Any, jnp: Any) -> Callable[..., Any]:
    def loss_of(p: Parameters, h: Any, y: Any) -> Any:
        turns = 0
        while jnp.abs(h).mean() > models.HALT_BELOW and turns < models.MOST_TURNS:
            h = 0.7 * h + 0.1 * jnp.tanh(_linear(p, "turn", h))
            turns += 1
        length = jnp.sqrt((h * h).sum())
        if length > models.LONG:
            h = h / length * models.LONG
        return _cross_entropy(jax, jnp, _linear(p, "head", h), y)

    return loss_of


def _halting_rewritten(jax: Any, jnp: Any) -> Callable[..., Any]:
    """The loop as a scan to its bound that does nothing once it is over: `while_loop` has no reverse gradient."""

    def loss_of(p: Parameters, h: Any, y: Any) -> Any:
        def turn(h: Any, _: None) -> tuple[Any, None]:
            going = jnp.abs(h).mean() > models.HALT_BELOW
            return jax.lax.cond(going, lambda h: 0.7 * h + 0.1 * jnp.tanh(_linear(p, "turn", h)), lambda h: h, h), None

        h, _ = jax.lax.scan(turn, h, None, models.MOST_TURNS)
        length = jnp.sqrt((h * h).sum())
        h = jax.lax.cond(length > models.LONG, lambda h: h / length * models.LONG, lambda h: h, h)
        return _cross_entropy(jax, jnp, _linear(p, "head", h), y)

    return loss_of


LOSSES: dict[str, Callable[[Any, Any], Callable[..., Any]]] = {
    "logistic": _logistic,
    "mlp": _mlp,
    "transformer": _transformer,
    "labelled sequences": _labelled_sequences,
    "lstm_loop": _lstm_loop,
    "lstm_loop, rewritten": _lstm_loop_rewritten,
    "halting": _halting,
    "halting, rewritten": _halting_rewritten,
}
